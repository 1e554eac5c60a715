# SPDX-License-Identifier: Apache-2.0
"""Tolerations that admission adds: those for the GPU taints of nodes that could serve the pod (F2 to F4)."""

from typing import Any

import pytest

from app.policy.compiled import PolicySet
from app.world.fleet_facts import FleetFacts
from tests.admission.mutated import fleet, rules, spec_of
from tests.builders import gpus, pod

GPU = "nvidia.com/gpu"
SLICE = "nvidia.com/mig-1g.10gb"
TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}
TOLERATE = rules("tolerations: {fromNodeTaints: true}")


def tolerations(
    document: dict[str, Any], policy_set: PolicySet | None = None, fleet_facts: FleetFacts | None = None
) -> list[dict[str, Any]]:
    """List the tolerations after admission."""
    present_tolerations: list[dict[str, Any]] = spec_of(document, policy_set, fleet_facts).get("tolerations", [])
    return present_tolerations


def copied(value: str = "present", effect: str = "NoSchedule", key: str = GPU) -> dict[str, str]:
    """Write the toleration for exactly one taint."""
    return {"key": key, "operator": "Equal", "value": value, "effect": effect}


def anything(key: str = GPU, effect: str = "NoSchedule") -> dict[str, str]:
    """Write the toleration for every value of a taint key."""
    return {"key": key, "operator": "Exists", "effect": effect}


def tainted(*taints: dict[str, str], **more: Any) -> dict[str, Any]:
    """Return the builder's arguments for a node with taints."""
    return {"taints": list(taints), **more}


TEAMS = [tainted(TAINT, {"key": "dedicated", "value": team, "effect": "NoSchedule"}) for team in ("a", "b")]
SPOT, UPGRADE = "cloud.google.com/gke-spot", "nvidia.com/gpu-driver-upgrade"
SYSTEM = [{"key": key, "effect": "NoSchedule"} for key in ("node.kubernetes.io/unschedulable", SPOT, UPGRADE)]
AKS = {"key": "sku", "value": "gpu", "effect": "NoSchedule"}
SHARE = "nvidia.com/gpu.shared"
SLICED, SHARED = tainted(TAINT, offers={SLICE: 7}), tainted(TAINT, offers={SHARE: 4})
A10 = tainted(TAINT | {"value": "a10"}, product="NVIDIA-A10")
AMD = tainted(TAINT | {"value": "amd"}, offers={"amd.com/gpu": 8})
H100 = pod(annotations={"products": "H100"})


@pytest.mark.parametrize(
    ("document", "nodes", "expected"),
    [
        pytest.param(pod(), [], [anything()], id="unknown fleet: the resource's own key (F2)"),
        pytest.param(pod(), [tainted(TAINT)], [copied()], id="copied from the node (F3)"),
        pytest.param(pod(), [tainted(TAINT | {"effect": "NoExecute"})], [copied(effect="NoExecute")], id="effect too"),
        pytest.param(pod(), [tainted(TAINT), tainted(TAINT | {"value": "yes"})], [anything()], id="two values"),
        pytest.param(pod(), [tainted({"key": GPU, "effect": "NoSchedule"})], [copied("")], id="taint without a value"),
        pytest.param(pod(), [tainted(AKS)], [anything(), copied("gpu", key="sku")], id="taint of a cloud"),
        pytest.param(pod(), TEAMS, [copied()], id="never the taint of a team (P16)"),
        pytest.param(pod(), [tainted(TAINT, *SYSTEM)], [copied()], id="never a taint of the system"),
        pytest.param(pod(gpus(1, SLICE)), [SLICED], [copied(), anything(SLICE)], id="slice: GPU taint too (F4)"),
        pytest.param(pod(gpus(1, SLICE)), [], [anything(), anything(SLICE)], id="slice, unknown fleet (F4)"),
        pytest.param(pod(gpus(1, SHARE)), [SHARED], [copied(), anything(SHARE)], id="share: GPU taint too (F4)"),
        pytest.param(pod(), [tainted(TAINT), AMD], [copied()], id="not of a node without the resource"),
        pytest.param(H100, [tainted(TAINT), A10], [copied()], id="not of a node of another product"),
        pytest.param(pod(gpus(1, "amd.com/gpu")), [tainted(TAINT)], [anything("amd.com/gpu")], id="AMD pod"),
        pytest.param(
            pod(gpus(1, "amd.com/gpu")),
            [tainted(AKS, offers={"amd.com/gpu": 8}), tainted(TAINT)],
            [anything("amd.com/gpu"), copied("gpu", key="sku")],
            id="AMD pod, taint of a cloud",
        ),
    ],
)
def test_tolerations_are_those_of_the_gpu_taints_of_nodes_that_could_serve(
    document: dict[str, Any], nodes: list[dict[str, Any]], expected: list[dict[str, str]]
) -> None:
    """P35."""
    assert sorted(expected, key=str) == sorted(tolerations(document, TOLERATE, fleet(*nodes)), key=str)


def test_taint_key_of_a_policy_is_tolerated_too() -> None:
    dedicated = rules("tolerations: {fromNodeTaints: true, keys: [dedicated]}")

    assert [copied(), copied("a", key="dedicated")] == tolerations(pod(), dedicated, fleet(TEAMS[0]))


@pytest.mark.parametrize(
    ("present", "covered"),
    [
        pytest.param(copied(), True, id="equal"),
        pytest.param(anything(), True, id="any value"),
        pytest.param({"key": GPU, "operator": "Exists"}, True, id="any effect"),
        pytest.param({"key": GPU, "value": "present", "effect": "NoSchedule"}, True, id="no operator is Equal"),
        pytest.param({"operator": "Exists"}, True, id="everything"),
        pytest.param(copied("other"), False, id="another value"),
        pytest.param(copied(effect="NoExecute"), False, id="another effect"),
        pytest.param(copied(key="dedicated"), False, id="another key"),
    ],
)
def test_nothing_is_added_that_a_toleration_covers(present: dict[str, str], covered: bool) -> None:
    present_tolerations = tolerations(pod(gpus(1), tolerations=[present]), fleet_facts=fleet(tainted(TAINT)))

    assert ([present] if covered else [present, copied()]) == present_tolerations
