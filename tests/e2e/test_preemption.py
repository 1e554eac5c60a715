# SPDX-License-Identifier: Apache-2.0
"""Preemption on the real scheduler: no pod is evicted from a node that would not fit afterwards."""

from collections.abc import Iterator

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, kubelets, node_object
from tests.controlplane.kubectl import Object
from tests.e2e.stage import (
    Service,
    create_namespace,
    create_pod,
    eventually,
    gpu_pod,
    serving,
    start_scheduler,
    wait_for_node,
    wait_for_refusal,
)

FLEET = {
    "a100-0": ("NVIDIA-A100-SXM4-80GB", "550.54.15", 2),
    "a100-1": ("NVIDIA-A100-SXM4-80GB", "550.54.15", 2),
    "a10-0": ("NVIDIA-A10", "550.54.15", 2),
    "t4-0": ("Tesla-T4", "535.104.05", 2),
    "t4-1": ("Tesla-T4", "535.104.05", 2),
}
GRACE_SECONDS = 90
"""Seconds for an eviction and the next try."""


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """Five nodes, kubelets that finish deletions, two priorities, and a scheduler."""
    sizes = FLEET.items()
    add_nodes(plane.api, [node_object(name, *make[:2], {"nvidia.com/gpu": make[2]}) for name, make in sizes])
    for name, value in (("low", 1), ("high", 1000)):
        plane.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": value})
    with serving(plane) as running, kubelets(plane.api):
        start_scheduler(plane, running)
        yield running


@pytest.fixture
def full(plane: ControlPlane, service: Service, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace whose low-priority pods hold every GPU; they are deleted afterwards."""
    assert service.ready()
    namespace = create_namespace(plane, f"full-{abs(hash(request.node.name)) % 10**8}")
    for name, (_, _, gpus) in FLEET.items():
        for index in range(gpus):
            low = gpu_pod(f"{name}-{index}", namespace, priorityClassName="low", nodeName=name)
            create_pod(plane, low)
    yield namespace
    plane.api.delete(f"/api/v1/namespaces/{namespace}/pods")
    eventually("the pods are gone", lambda: not plane.api.items(f"/api/v1/namespaces/{namespace}/pods"))


def urgent_pod(namespace: str, **annotations: str) -> Object:
    return gpu_pod("urgent", namespace, annotations=annotations, priorityClassName="high")


def remaining_pods(plane: ControlPlane, namespace: str) -> set[str]:
    """Name the low-priority pods whose deletion nobody requested."""
    pods = plane.api.items(f"/api/v1/namespaces/{namespace}/pods")
    return {pod["metadata"]["name"] for pod in pods if not pod["metadata"].get("deletionTimestamp")} - {"urgent"}


def test_pod_that_fits_nowhere_by_policy_evicts_nobody(plane: ControlPlane, service: Service, full: str) -> None:
    """P7, P49, F43: without the verb, ten pods on five nodes were evicted for nothing."""
    before, prevented = remaining_pods(plane, full), service.metric("gpu_usher_evictions_prevented_total")
    pod = urgent_pod(full, products="H100")
    create_pod(plane, pod)

    text = wait_for_refusal(plane, pod)
    eventually("we were asked", lambda: service.metric("gpu_usher_evictions_prevented_total") >= prevented + len(FLEET))

    assert "Insufficient nvidia.com/gpu" in text
    assert remaining_pods(plane, full) == before


def test_pod_that_fits_after_an_eviction_evicts_only_there(plane: ControlPlane, full: str) -> None:
    """F43: one pod of the one right product is evicted, and no other."""
    before = remaining_pods(plane, full)
    pod = urgent_pod(full, products="A10")
    create_pod(plane, pod)

    assert wait_for_node(plane, pod, GRACE_SECONDS) == "a10-0"
    [gone] = before - remaining_pods(plane, full)
    assert gone.startswith("a10-0")
