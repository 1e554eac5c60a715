# SPDX-License-Identifier: Apache-2.0
"""One wrong node, one loaded winner, one policy that only warns: verdicts of ours that luck cannot pass."""

import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object, pod_path
from tests.controlplane.kubectl import Object
from tests.controlplane.relay import Relay
from tests.e2e.mixed import asked_of, fleet, winner
from tests.e2e.stage import (
    OURS,
    Service,
    create_pod,
    eventually,
    gpu_pod,
    install_webhooks,
    namespace,
    node_of,
    refused,
    serving,
    start_scheduler,
)

FLEET = list(fleet(23))
"""The demo fleet, once."""
EQUALS = ("equal-0", "equal-1")
CANDIDATES = (*EQUALS, "emptier")
"""The only nodes of their product: two of them fill up best, alike."""
NODES = len(FLEET) + len(CANDIDATES)
SLICE = {"nvidia.com/mig-1g.10gb": 1}
ADMITTED, BARE = "admitted", "bare"
"""Namespaces in which the webhooks are asked, and in which they are not: there the extender alone decides."""
RULE = (
    "priority: 10, action: {0}, match: {{podSelector: {{matchLabels: {{rule: {0}}}}}}},"
    " placement: {{products: {{allow: [H100]}}}}"
)
RETRY_SECONDS = 60
"""Bound on the next try of a watch or of the scheduler."""

pytestmark = pytest.mark.usefixtures("service")


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """The demo fleet and three nodes more, webhooks, schedulers by names and by whole nodes."""
    more = [node_object(name, "NVIDIA-GH200-480GB", "580.95.05") for name in CANDIDATES]
    add_nodes(plane.api, [*FLEET, *more])
    with serving(plane) as running:
        install_webhooks(plane, running)
        start_scheduler(plane, running)
        start_scheduler(plane, running, name="whole-nodes", change={"nodeCacheCapable": False})
        namespace(plane, ADMITTED)
        namespace(plane, BARE, **{"gpu_usher.io__ignore": "true"})
        yield running


def held_to(node: str, pod: Object) -> Object:
    """Let one node alone do, and its taints pass: what is refused then is refused by us."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    pod["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return tolerating(pod)


def tolerating(pod: Object) -> Object:
    """Add what the webhook would."""
    pod["spec"]["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    return pod


WHOLE = "GPU is shared or sliced on this node: wants a whole GPU"
CHANGING = "MIG layout of the node is being changed: wants mig.config.state success"
EXCLUSIVE = {"annotations": {"sharing": "Exclusive"}}
NO_COMPAT = "pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime"
"""CUDA 12.4 without a cuda-compat package: no driver before 525.60.13 will do."""
WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "product": ("a100-0-0", {"annotations": {"products": "A10"}}, "GPU product not allowed: wants A10"),
    "time-sliced": ("a10-shared-0-0", EXCLUSIVE, WHOLE),
    "MPS": ("t4-mps-0-0", EXCLUSIVE, WHOLE),
    "two shares": (
        "t4-mps-0-0",
        {"limits": {"nvidia.com/gpu": 2}},
        "only one share of an MPS GPU can be asked: wants 1 a container",
    ),
    "driver 470": ("a100-old-0-0", {"image": NO_COMPAT}, "CUDA driver too old: wants >= 525.60.13"),
    "slices pending": ("h100-mig-pending-0", {"limits": SLICE}, CHANGING),
    "slices failed": ("h100-mig-failed-0", {"limits": SLICE}, CHANGING),
    "upgrading": ("a100-upgrading-0-0", {}, "GPU driver of the node is being upgraded: wants upgrade-done"),
    "memory": (
        "t4-0-0",
        {"annotations": {"gpu-memory": "40Gi"}},
        "GPU memory too small: wants >= 40960 MiB per GPU",
    ),
}
"""A node that the scheduler would take, a pod that must not run there, and our words."""


@pytest.mark.parametrize("scheduler", [OURS, "whole-nodes"], ids=["names", "whole nodes"])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_node_is_refused_where_it_is_the_only_one(plane: ControlPlane, wrong: str, scheduler: str) -> None:
    """F31, F34, F37, F39, F40, F42, F44, F45, F57, F68, F69: our words alone, and nobody evicted for it."""
    node, asked, message = WRONG[wrong]
    pod = held_to(node, gpu_pod(f"wrong-{zlib.crc32(f'{wrong} {scheduler}'.encode())}", BARE, **asked))
    pod["spec"]["schedulerName"] = scheduler
    create_pod(plane, pod)

    text = refused(plane, pod)

    assert text.startswith(f"0/{NODES} nodes are available: 1 {message}, {NODES - 1} node(s) didn't satisfy"), text
    assert text.endswith(
        f"preemption: 0/{NODES} nodes are available: {NODES} Preemption is not helpful for scheduling."
    )
    plane.api.delete(pod_path(pod))  # it would be tried again whenever the cluster changes


def test_equal_reasons_are_counted_together_in_condition_and_event(plane: ControlPlane, service: Service) -> None:
    """P23, F39: as many nodes as the oracle of one call counts, in the condition and in what kubectl shows."""
    pod = tolerating(gpu_pod("nowhere", BARE, {"nvidia.com/gpu": 1}, annotations={"products": "B200"}))
    offering = [each["metadata"]["name"] for each in plane.api.items("/api/v1/nodes") if offers(each)]
    answer = asked_of(service, "filter", pod, offering)
    counts = Counter({**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}.values())
    create_pod(plane, pod)

    text = refused(plane, pod)

    assert counts == {"GPU product not allowed: wants B200": len(offering)}
    assert f"{len(offering)} GPU product not allowed: wants B200, {NODES - len(offering)} Insufficient" in text
    chosen = ["--field-selector=involvedObject.name=nowhere", "-o", "jsonpath={.items[*].message}"]
    eventually("the event is there", lambda: text in plane.kubectl("get", "events", "-n", BARE, *chosen).out)
    plane.api.delete(pod_path(pod))


def offers(node: Object) -> bool:
    return int(node["status"]["allocatable"].get("nvidia.com/gpu", 0)) > 0


def test_winner_is_chosen_though_in_tree_scores_are_against_it(plane: ControlPlane, service: Service) -> None:
    """F48: 10 against 9 outweighs a node that is nearly out of cpu and memory; weight 1 would not.

    See docs/reference/scores.md#scores-on-the-wire.
    """
    for name in EQUALS:
        create_pod(plane, gpu_pod(f"holds-{name}", BARE, nodeName=name))
    pod = gpu_pod("chosen", BARE, annotations={"products": "GH200"})
    eventually("two are alike", lambda: scores(service, pod)[:2] == [10, 9])
    best = winner(service, pod, CANDIDATES)
    create_pod(plane, gpu_pod("loads", BARE, {"cpu": 58, "memory": "460Gi"}, nodeName=best))

    create_pod(plane, pod)

    assert node_of(plane, pod) == best


def scores(service: Service, pod: Object) -> list[int]:
    """Ask for the scores of the candidates, highest first."""
    answer = asked_of(service, "prioritize", pod, CANDIDATES)
    return sorted((int(each["Score"]) for each in answer), reverse=True)


@pytest.fixture(scope="module")
def rules(plane: ControlPlane, service: Service) -> None:
    """Two policies that allow H100 alone: one is enforced, one warns."""
    texts = {f"{action.lower()}.yaml": policy(action.lower(), RULE.format(action)) for action in ("Warn", "Enforce")}
    metadata = {"name": "rules", "labels": {"gpu-usher.io/policy": "true"}}
    plane.api.create("/api/v1/namespaces/gpu-usher/configmaps", {"metadata": metadata, "data": texts})
    info = "gpu_usher_policy_info"
    eventually("they are in force", lambda: all(service.metric(info, policy=name) for name in ("warn", "enforce")))


@pytest.mark.usefixtures("rules")
def test_policy_that_enforces_refuses_the_node(plane: ControlPlane) -> None:
    """F20, F30: by the extender, where admission was not asked."""
    pod = held_to("t4-1-0", gpu_pod("enforced", BARE, labels={"rule": "Enforce"}))
    create_pod(plane, pod)

    assert "1 GPU product not allowed: wants H100" in refused(plane, pod)
    plane.api.delete(pod_path(pod))


@pytest.mark.usefixtures("rules")
def test_policy_that_warns_lets_the_pod_run_there_and_ranks_the_node_lower(
    plane: ControlPlane, service: Service
) -> None:
    """F20: no affinity, no refusal; a node that it would refuse comes after one that packs worse."""
    pod = held_to("t4-1-0", gpu_pod("warned", ADMITTED, labels={"rule": "Warn"}))

    create_pod(plane, pod)

    assert node_of(plane, pod) == "t4-1-0"
    assert winner(service, gpu_pod("asks", BARE, labels={"rule": "Warn"}), ["h100-1-0", "t4-0-0"]) == "h100-1-0"


def test_service_that_has_not_listed_yet_holds_gpu_pods_until_it_has(plane: ControlPlane) -> None:
    """F110, CACHE-06: running is not ready; the scheduler repeats our words, and the pod waits for nothing else."""
    relay = Relay(plane.port)
    relay.cut()
    late = Service(plane, "late", kubeconfig=str(plane.kubeconfig("gpu-usher", relay.port)))
    try:
        eventually("it answers", lambda: not late.ready(), RETRY_SECONDS)
        start_scheduler(plane, late, name="late-scheduler")
        pod = tolerating(gpu_pod("early", BARE))
        pod["spec"]["schedulerName"] = "late-scheduler"
        create_pod(plane, pod)
        text = refused(plane, pod)
        relay.mend()

        assert text == "gpu-usher: not synced yet"
        assert node_of(plane, pod, RETRY_SECONDS)
        plane.api.delete(pod_path(pod))  # what it holds would count elsewhere
    finally:
        late.process.stop()
        relay.close()
