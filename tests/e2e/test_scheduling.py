# SPDX-License-Identifier: Apache-2.0
"""Where the real scheduler binds pods when it calls the extender, and what it reports when it cannot bind them."""

import re
from collections.abc import Iterator

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, pod_path
from tests.controlplane.kubectl import Object
from tests.e2e.mixed import REQUESTS, PodRequest, fleet, serves, winners
from tests.e2e.stage import (
    OURS,
    Service,
    create_namespace,
    create_pod,
    gpu_pod,
    install_webhooks,
    read_pod,
    serving,
    start_scheduler,
    wait_for_node,
    wait_for_refusal,
)

NODES = 50
GPU = "nvidia.com/gpu"
RUNTIME_CLASS = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
ADMITTED, BARE = "admitted", "bare"
"""Namespaces for which the webhooks are called, and for which not: there the extender alone decides."""
SETTLING = {"nvidia.com/gpu-driver-upgrade-state", "nvidia.com/mig.config.state"}
"""Labels of transient states, which only the extender judges, since affinity would outlive the state."""
PLAIN = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}

pytestmark = pytest.mark.usefixtures("service")


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """Fifty mixed nodes, the service, webhooks, and two schedulers: ours, and a plain one."""
    add_nodes(plane.api, fleet(NODES))
    plane.api.create("/apis/node.k8s.io/v1/runtimeclasses", RUNTIME_CLASS)
    with serving(plane) as running:
        install_webhooks(plane, running)
        start_scheduler(plane, running)
        plane.start_scheduler(PLAIN)
        create_namespace(plane, ADMITTED)
        create_namespace(plane, BARE, **{"gpu_usher.io__ignore": "true"})
        yield running


@pytest.fixture(scope="module")
def scoring(plane: ControlPlane, service: Service) -> Iterator[Service]:  # noqa: ARG001  # after the fleet
    """A service that names all nodes that fit and scores them, for two schedulers: by names, and by whole nodes."""
    with serving(plane, "scoring", filter_answer="all") as running:
        start_scheduler(plane, running, "--filter-answer", "all", name="scored")
        start_scheduler(
            plane, running, "--filter-answer", "all", name="whole-nodes", change={"nodeCacheCapable": False}
        )
        yield running


def nodes(plane: ControlPlane) -> dict[str, Object]:
    return {node["metadata"]["name"]: node for node in plane.api.items("/api/v1/nodes")}


def offering_nodes(plane: ControlPlane) -> list[str]:
    """List the nodes that have a whole GPU free: those that the scheduler shows an extender."""
    free = {name: int(node["status"]["allocatable"].get(GPU, 0)) for name, node in nodes(plane).items()}
    for pod in plane.api.items("/api/v1/pods"):
        if node := pod["spec"].get("nodeName"):
            free[node] -= int(pod["spec"]["containers"][0]["resources"].get("limits", {}).get(GPU, 0))
    return [name for name, units in free.items() if units > 0]


def with_tolerations(pod: Object) -> Object:
    """Add the tolerations that the webhook would add, as the extender is shown only tolerated nodes."""
    pod["spec"]["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    return pod


@pytest.mark.parametrize(
    ("scheduler", "product"), [("scored", "L4"), ("whole-nodes", "A100")], ids=["names", "whole nodes"]
)
def test_node_that_we_score_best_is_the_one_chosen(
    plane: ControlPlane, scoring: Service, scheduler: str, product: str
) -> None:
    """F48: 10 times the weight 10 outweighs all in-tree scores (docs/reference/scores.md#scores-on-the-wire).

    Each pod asks for another product, because the service may not know yet of the pod that was bound just before.
    """
    pod = with_tolerations(gpu_pod(f"best-{scheduler}", BARE, annotations={"products": product}))
    pod["spec"]["schedulerName"] = scheduler
    best = winners(scoring, pod, offering_nodes(plane))

    create_pod(plane, pod)

    assert wait_for_node(plane, pod) in best


@pytest.mark.usefixtures("scoring")
@pytest.mark.parametrize("scheduler", [OURS, "whole-nodes"], ids=["names", "whole nodes"])
@pytest.mark.parametrize("pod_request", REQUESTS, ids=lambda pod_request: pod_request.name)
def test_extender_alone_puts_the_pod_on_a_node_that_the_oracle_accepts(
    plane: ControlPlane, pod_request: PodRequest, scheduler: str
) -> None:
    """P31, F27, F31, F34, F37, F41, F42, F45, F57, F69."""
    pod = with_tolerations(pod_request.pod(f"{scheduler}-{REQUESTS.index(pod_request)}", BARE))
    pod["spec"]["schedulerName"] = scheduler

    create_pod(plane, pod)

    assert serves(pod_request, nodes(plane)[wait_for_node(plane, pod)])


@pytest.mark.parametrize("pod_request", REQUESTS, ids=lambda pod_request: pod_request.name)
def test_webhook_alone_puts_the_pod_on_a_node_that_the_oracle_accepts(
    plane: ControlPlane, pod_request: PodRequest
) -> None:
    """P11, P28, P31, F10, F116: a scheduler without an extender obeys the affinity that admission wrote."""
    pod = pod_request.pod(f"webhook-only-{REQUESTS.index(pod_request)}", ADMITTED)
    pod["spec"]["schedulerName"] = "default-scheduler"

    create_pod(plane, pod)

    node = nodes(plane)[wait_for_node(plane, pod)]
    assert serves(pod_request, node) or SETTLING & node["metadata"]["labels"].keys()


def test_refusals_are_grouped_by_reason_and_name_no_node(plane: ControlPlane) -> None:
    """F39, F40, EXT-04, fault 52: this is the FailedScheduling message that an ML engineer reads."""
    pod = with_tolerations(
        gpu_pod("nowhere", BARE, annotations={"cuda": "13.0", "sharing": "Exclusive", "products": "!H200"})
    )
    create_pod(plane, pod)

    text = wait_for_refusal(plane, pod)

    assert text.startswith(f"0/{NODES} nodes are available: ")
    assert re.search(r"\d+ CUDA driver too old: wants >= 580", text), text
    assert re.search(r"\d+ GPU product not allowed: wants not H200", text), text
    assert re.search(r"\d+ GPU is shared or sliced on this node: wants a whole GPU", text), text
    assert "Preemption is not helpful" in text
    assert not [name for name in nodes(plane) if name in text]
    event = plane.kubectl("get", "events", "-n", BARE, "--field-selector", "involvedObject.name=nowhere").out
    assert "CUDA driver too old" in event
    plane.api.delete(pod_path(pod))  # the scheduler would try it again whenever the cluster changes


def test_only_gpu_pods_reach_the_extender(plane: ControlPlane, service: Service) -> None:
    """By managedResources, a CPU pod of our own scheduler costs no call."""
    before = service.calls("filter")
    pod = gpu_pod("cpu", ADMITTED, {"cpu": 1})
    create_pod(plane, pod)

    wait_for_node(plane, pod)

    assert service.calls("filter") == before


def test_pods_of_another_scheduler_are_not_ours_to_place(plane: ControlPlane, service: Service) -> None:
    """F117, S14: two schedulers run side by side, distinguished by schedulerName."""
    before = service.calls("filter")
    pod = with_tolerations(gpu_pod("theirs", BARE))
    pod["spec"]["schedulerName"] = "default-scheduler"
    create_pod(plane, pod)

    wait_for_node(plane, pod)

    assert service.calls("filter") == before


def test_extender_that_is_down_holds_gpu_pods_until_it_is_back(plane: ControlPlane, service: Service) -> None:
    """F106, fault 54: the scheduler fails closed and reports why; CPU pods are not concerned."""
    service.process.stop()
    pod, other = with_tolerations(gpu_pod("held", BARE)), with_tolerations(gpu_pod("cpu-too", BARE, {"cpu": 1}))
    create_pod(plane, pod)
    create_pod(plane, other)

    assert "connection refused" in wait_for_refusal(plane, pod)
    assert wait_for_node(plane, other)
    assert not read_pod(plane, pod)["spec"].get("nodeName")
    service.restart()
    assert wait_for_node(plane, pod, 60)
