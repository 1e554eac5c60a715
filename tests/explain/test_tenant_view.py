# SPDX-License-Identifier: Apache-2.0
"""What a tenant may read of an explanation: his own pod, nodes, and counts of others."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from app.cli.explain import snapshot_of
from app.cluster.files import shipped_policies
from app.demo.notation import fleet_names
from app.demo.sample_fleets import demo_fleet
from app.explain.claim_funnel import DeviceStep, RequestFunnel
from app.explain.counterfactual import EvictedPod, Fix, FixStep
from app.explain.explanation import Explanation
from app.explain.pending_pod import explain
from app.explain.tenant_view import for_tenant, scrub
from app.values.computations import finish

NAMESPACES = ("team", "secret-lab", "secret-ops")
"""Everything of namespaces other than `team` has `secret` in its name."""
FREE = "free 2 nvidia.com/gpu on h100, held by secret-lab/secret-a (priority 0), team/mine (priority 0)"
EVICTED = tuple(EvictedPod(name, 0, {"nvidia.com/gpu": 1}) for name in ("secret-lab/secret-a", "team/mine"))
HELD = "3 of pod secret-lab/secret-a, 2 of claim secret-ops/secret-claim, 1 of pod team/mine and 2 more"


def explained(**changes: Any) -> Explanation:
    """Explain a pod that fits nowhere on the sample fleet, with members replaced."""
    limits = {"nvidia.com/gpu": 64}
    spec = {"containers": [{"name": "main", "image": "train:1", "resources": {"limits": limits}}]}
    document = {"metadata": {"name": "waits", "namespace": "team"}, "spec": spec}
    snapshot = snapshot_of(demo_fleet(), shipped_policies())
    return replace(finish(explain(document, snapshot, live=True)), **changes)


def step(text: str, of: str = "fleet", evicts: tuple[EvictedPod, ...] = ()) -> FixStep:
    return FixStep("free-gpus", of, text, evicts)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"fixes": (Fix((step(FREE, evicts=EVICTED),), "h100", 1),)}, id="pods in the way"),
        pytest.param(
            {"fixes": (Fix((step("end pod secret-lab/secret-a, which has gpu-0"),), "h100", 1),)}, id="pod of a claim"
        ),
        pytest.param(
            {"fixes": (Fix((step("delete claim secret-ops/secret-claim, which has gpu-0"),), "h100", 1),)}, id="a claim"
        ),
        pytest.param(
            {"devices": (RequestFunnel("team/c", "gpu", "1 of X", (DeviceStep("in use", 0, 0, HELD),)),)},
            id="holders of devices",
        ),
        pytest.param({"notes": ("waits behind secret-lab/secret-a",)}, id="a note"),
        pytest.param(
            {"not_started": ("device x for claim secret-ops/secret-claim failed",)}, id="why it does not start"
        ),
    ],
)
def test_nothing_of_other_namespaces_is_named(changes: dict[str, Any]) -> None:
    """F104: whatever member would name it."""
    full = explained(**changes)

    known = for_tenant(full, "team", NAMESPACES)

    assert "secret" in json.dumps(msgspec.to_builtins(full))
    assert "secret" not in json.dumps(msgspec.to_builtins(known))
    assert (known.refused, known.funnel, known.fits, known.nodes) == (full.refused, full.funnel, full.fits, full.nodes)


def test_what_is_of_the_pods_own_namespace_stays() -> None:
    """F83: the reader may list his own pods."""
    text = "free 1 nvidia.com/gpu on h100, held by team/mine (priority 0)"
    full = explained(fixes=(Fix((step(text, evicts=EVICTED[1:]),), "h100", 1),))

    assert for_tenant(full, "team", NAMESPACES) == full
    assert scrub(HELD, "team", ["secret-lab", "secret-ops"]) == (
        "3 of a pod of another namespace, 2 of a claim of another namespace, 1 of pod team/mine and 2 more"
    )


def test_verdicts_by_node_are_left_out() -> None:
    """F104."""
    assert for_tenant(explained(verdicts=()), "team", NAMESPACES).verdicts is None


@pytest.mark.parametrize("text", ["nvidia.com/gpu", "/dev/nvidia0", "nvcr.io/nvidia/pytorch:24.05", "10/100 GB"])
def test_other_words_with_a_slash_stay(text: str) -> None:
    """F83: also where a namespace has the name of a part of them."""
    assert scrub(text, "team", ["nvidia", "com", "dev", "secret-lab"]) == text


@pytest.mark.parametrize("fleet", fleet_names())
def test_no_pod_of_a_sample_fleet_is_told_of_others(fleet: str) -> None:
    """F104: each pending pod of each fleet, with fleets of DRA, against the names of all pods of other namespaces."""
    objects = demo_fleet(fleet)
    snapshot = snapshot_of(objects, shipped_policies())
    pods = [document for document in objects if document["kind"] == "Pod"]
    keys = {(document["metadata"]["namespace"], document["metadata"]["name"]) for document in pods}
    namespaces = {namespace for namespace, _ in keys} | {
        document["metadata"]["name"] for document in objects if document["kind"] == "Namespace"
    }
    waiting = [document for document in pods if not document["spec"].get("nodeName")]

    for document in waiting[:6]:
        namespace = document["metadata"]["namespace"]
        known = for_tenant(finish(explain(document, snapshot, live=True)), namespace, namespaces)
        text = json.dumps(msgspec.to_builtins(known))

        foreign = [f"{other}/{name}" for other, name in keys if other != namespace]
        assert not [name for name in foreign if name in text], document["metadata"]["name"]
