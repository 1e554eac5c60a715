# SPDX-License-Identifier: Apache-2.0
"""One wrong node, one loaded winner, one policy that only warns: verdicts that cannot come about by chance."""

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
from tests.e2e.mixed import call_extender, fleet, winners
from tests.e2e.stage import (
    OURS,
    Service,
    create_namespace,
    create_pod,
    eventually,
    gpu_pod,
    install_webhooks,
    serving,
    start_scheduler,
    wait_for_node,
    wait_for_refusal,
)

FLEET = list(fleet(23))
"""The nodes of the demo fleet."""
CANDIDATES = ("packed", "emptier-0", "emptier-1")
"""The only nodes of their product, two of which get the best score for packing."""
NODES = len(FLEET) + len(CANDIDATES)
SLICE = {"nvidia.com/mig-1g.10gb": 1}
ADMITTED, BARE = "admitted", "bare"
"""Namespaces for which the webhooks are called, and for which not: there the extender alone decides."""
RULE = (
    "priority: 10, action: {0}, match: {{podSelector: {{matchLabels: {{rule: {0}}}}}}},"
    " placement: {{products: {{allow: [H100]}}}}"
)
RETRY_SECONDS = 60
"""Seconds until the next try of a watch or of the scheduler."""

pytestmark = pytest.mark.usefixtures("service")


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """The demo fleet and three more nodes, webhooks, and schedulers by names and by whole nodes."""
    more = [node_object(name, "NVIDIA-GH200-480GB", "580.95.05") for name in CANDIDATES]
    add_nodes(plane.api, [*FLEET, *more])
    with serving(plane) as running:
        install_webhooks(plane, running)
        start_scheduler(plane, running)
        start_scheduler(plane, running, name="whole-nodes", change={"nodeCacheCapable": False})
        create_namespace(plane, ADMITTED)
        create_namespace(plane, BARE, **{"gpu_usher.io__ignore": "true"})
        yield running


def only_on_node(node: str, pod: Object) -> Object:
    """Restrict a pod to one node, and tolerate its taints, so that only our extender can refuse it."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    pod["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return with_tolerations(pod)


def with_tolerations(pod: Object) -> Object:
    """Add the tolerations that the webhook would add."""
    pod["spec"]["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    return pod


WHOLE = "GPU is shared or sliced on this node: wants a whole GPU"
CHANGING = "MIG layout of the node is being changed: wants mig.config.state success"
EXCLUSIVE = {"annotations": {"sharing": "Exclusive"}}
NO_COMPAT = "pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime"
"""An image with CUDA 12.4 and no cuda-compat package, which needs driver 525.60.13 or newer."""
WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "product": ("a100-0-0", {"annotations": {"products": "A10"}}, "GPU product not allowed: wants A10"),
    "time-sliced": ("a10-shared-0-0", EXCLUSIVE, WHOLE),
    "MPS": ("t4-mps-0-0", EXCLUSIVE, WHOLE),
    "two shares": (
        "t4-mps-0-0",
        {"limits": {"nvidia.com/gpu": 2}},
        "only one share of an MPS GPU can be requested: wants 1 a container, or policy sharedReplicas: Leave",
    ),
    "driver 470": ("a100-old-0-0", {"image": NO_COMPAT}, "CUDA driver too old: wants >= 525.60.13"),
    "slices pending": ("h100-mig-pending-0", {"limits": SLICE}, CHANGING),
    "slices failed": (
        "h100-mig-failed-0",
        {"limits": SLICE},
        "MIG Manager failed to make the node's layout: wants mig.config.state success",
    ),
    "upgrading": ("a100-upgrading-0-0", {}, "GPU driver of the node is being upgraded: wants upgrade-done"),
    "memory": (
        "t4-0-0",
        {"annotations": {"gpu-memory": "40Gi"}},
        "GPU memory too small: wants >= 40960 MiB per GPU",
    ),
}
"""A node that the scheduler would take, fields of a pod that must not run there, and our message."""


@pytest.mark.parametrize("scheduler", [OURS, "whole-nodes"], ids=["names", "whole nodes"])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_node_is_refused_where_it_is_the_only_one(plane: ControlPlane, wrong: str, scheduler: str) -> None:
    """F31, F34, F37, F39, F40, F42, F44, F45, F57, F68, F69: the message is ours alone, and no pod is evicted."""
    node, wishes, message = WRONG[wrong]
    pod = only_on_node(node, gpu_pod(f"wrong-{zlib.crc32(f'{wrong} {scheduler}'.encode())}", BARE, **wishes))
    pod["spec"]["schedulerName"] = scheduler
    create_pod(plane, pod)

    text = wait_for_refusal(plane, pod)

    assert text.startswith(f"0/{NODES} nodes are available: 1 {message}, {NODES - 1} node(s) didn't satisfy"), text
    assert text.endswith(
        f"preemption: 0/{NODES} nodes are available: {NODES} Preemption is not helpful for scheduling."
    )
    plane.api.delete(pod_path(pod))  # the scheduler would try it again whenever the cluster changes


def test_equal_reasons_are_counted_together_in_condition_and_event(plane: ControlPlane, service: Service) -> None:
    """P23, F39: the condition and the event count as many nodes as one filter call refuses."""
    pod = with_tolerations(gpu_pod("nowhere", BARE, {"nvidia.com/gpu": 1}, annotations={"products": "B200"}))
    offering = [node["metadata"]["name"] for node in plane.api.items("/api/v1/nodes") if offers_gpus(node)]
    answer = call_extender(service, "filter", pod, offering)
    counts = Counter({**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}.values())
    create_pod(plane, pod)

    text = wait_for_refusal(plane, pod)

    assert counts == {"GPU product not allowed: wants B200": len(offering)}
    assert f"{len(offering)} GPU product not allowed: wants B200, {NODES - len(offering)} Insufficient" in text
    chosen = ["--field-selector=involvedObject.name=nowhere", "-o", "jsonpath={.items[*].message}"]
    eventually("the event is there", lambda: text in plane.kubectl("get", "events", "-n", BARE, *chosen).out)
    plane.api.delete(pod_path(pod))


def offers_gpus(node: Object) -> bool:
    return int(node["status"]["allocatable"].get("nvidia.com/gpu", 0)) > 0


def test_winner_is_chosen_though_in_tree_scores_are_against_it(plane: ControlPlane) -> None:
    """F48: the best node outweighs one with far more free CPU and memory; with weight 1 it would not.

    See docs/reference/scores.md#scores-on-the-wire.
    """
    create_pod(plane, gpu_pod("holds", BARE, nodeName=CANDIDATES[0]))
    pod = gpu_pod("chosen", BARE, annotations={"products": "GH200"}, schedulerName="scored")
    with serving(plane, "scored", filter_answer="all") as service:
        start_scheduler(plane, service, "--filter-answer", "all", name="scored")
        eventually("one is best, and the others are alike", lambda: _one_is_best(scores(service, pod)))
        (best,) = winners(service, pod, CANDIDATES)
        create_pod(plane, gpu_pod("loads", BARE, {"cpu": 58, "memory": "460Gi"}, nodeName=best))

        create_pod(plane, pod)

        assert wait_for_node(plane, pod) == best
        plane.stop("scored")


def _one_is_best(listed: list[int]) -> bool:
    first, *others = listed
    return first == 10 and max(others) == min(others) < 10


def scores(service: Service, pod: Object) -> list[int]:
    """Return the scores of the candidates, highest first."""
    answer = call_extender(service, "prioritize", pod, CANDIDATES)
    return sorted((int(score["Score"]) for score in answer), reverse=True)


@pytest.fixture(scope="module")
def rules(plane: ControlPlane, service: Service) -> None:
    """Two policies that allow H100 alone: one enforces it, one warns."""
    texts = {f"{action.lower()}.yaml": policy(action.lower(), RULE.format(action)) for action in ("Warn", "Enforce")}
    metadata = {"name": "rules", "labels": {"gpu-usher.io/policy": "true"}}
    plane.api.create("/api/v1/namespaces/gpu-usher/configmaps", {"metadata": metadata, "data": texts})
    info = "gpu_usher_policy_info"
    eventually("they are in force", lambda: all(service.metric(info, policy=name) for name in ("warn", "enforce")))


@pytest.mark.usefixtures("rules")
def test_policy_that_enforces_refuses_the_node(plane: ControlPlane) -> None:
    """F20, F30: the extender refuses it where admission was not asked."""
    pod = only_on_node("t4-1-0", gpu_pod("enforced", BARE, labels={"rule": "Enforce"}))
    create_pod(plane, pod)

    assert "1 GPU product not allowed: wants H100" in wait_for_refusal(plane, pod)
    plane.api.delete(pod_path(pod))


@pytest.mark.usefixtures("rules")
def test_policy_that_warns_lets_the_pod_run_there_and_ranks_the_node_lower(
    plane: ControlPlane, service: Service
) -> None:
    """F20: there is no affinity and no refusal, but such a node ranks below one that packs worse."""
    pod = only_on_node("t4-1-0", gpu_pod("warned", ADMITTED, labels={"rule": "Warn"}))

    create_pod(plane, pod)

    assert wait_for_node(plane, pod) == "t4-1-0"
    assert winners(service, gpu_pod("asks", BARE, labels={"rule": "Warn"}), ["h100-1-0", "t4-0-0"]) == {"h100-1-0"}


def test_service_that_has_not_listed_yet_holds_gpu_pods_until_it_has(plane: ControlPlane) -> None:
    """F110, CACHE-06: filter fails until the first lists are in; the scheduler repeats its message, the pod waits."""
    relay = Relay(plane.port)
    relay.cut()
    late = Service(plane, "late", kubeconfig=str(plane.kubeconfig("gpu-usher", relay.port)))
    try:
        eventually("it answers", lambda: not late.ready(), RETRY_SECONDS)
        start_scheduler(plane, late, name="late-scheduler")
        pod = with_tolerations(gpu_pod("early", BARE))
        pod["spec"]["schedulerName"] = "late-scheduler"
        create_pod(plane, pod)
        text = wait_for_refusal(plane, pod)
        relay.mend()

        assert text == "gpu-usher: not synced yet"
        assert wait_for_node(plane, pod, RETRY_SECONDS)
        plane.api.delete(pod_path(pod))  # the GPUs that it holds would count in other tests
    finally:
        late.process.stop()
        relay.close()
