# SPDX-License-Identifier: Apache-2.0
"""Preemption on the real scheduler: nobody is evicted for a place that would not do."""

from collections.abc import Iterator

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, kubelets, node_object
from tests.controlplane.kubectl import Object
from tests.e2e.stage import (
    OURS,
    Service,
    create_pod,
    eventually,
    gpu_pod,
    namespace,
    node_of,
    refused,
    serving,
    start_scheduler,
)

FLEET = {
    "a100-0": ("NVIDIA-A100-SXM4-80GB", "550.54.15", 2),
    "a100-1": ("NVIDIA-A100-SXM4-80GB", "550.54.15", 2),
    "a10-0": ("NVIDIA-A10", "550.54.15", 2),
    "t4-0": ("Tesla-T4", "535.104.05", 2),
    "t4-1": ("Tesla-T4", "535.104.05", 2),
}
MODES = {OURS: {}, "whole-nodes": {"nodeCacheCapable": False}}
GRACE_SECONDS = 90
"""Bound on an eviction and the next try."""


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """Five nodes, kubelets that let deleted pods go, two priorities, a scheduler by names and one by whole nodes."""
    sizes = FLEET.items()
    add_nodes(plane.api, [node_object(name, *make[:2], {"nvidia.com/gpu": make[2]}) for name, make in sizes])
    for name, value in (("low", 1), ("high", 1000)):
        plane.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": value})
    with serving(plane) as running, kubelets(plane.api):
        for name, change in MODES.items():
            start_scheduler(plane, running, name=name, change=change)
        yield running


@pytest.fixture(params=MODES, ids=["names", "whole nodes"])
def scheduler(request: pytest.FixtureRequest) -> str:
    """How the scheduler talks to us."""
    return str(request.param)


@pytest.fixture
def full(plane: ControlPlane, service: Service, scheduler: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace whose low-priority pods hold every GPU; emptied afterwards."""
    assert service.ready()
    where = namespace(plane, f"full-{abs(hash(request.node.name)) % 10**8}")
    for name, (_, _, gpus) in FLEET.items():
        for index in range(gpus):
            low = gpu_pod(f"{name}-{index}", where, priorityClassName="low", nodeName=name)
            low["spec"]["schedulerName"] = scheduler
            create_pod(plane, low)
    yield where
    plane.api.delete(f"/api/v1/namespaces/{where}/pods")
    eventually("the pods are gone", lambda: not plane.api.items(f"/api/v1/namespaces/{where}/pods"))


def urgent(where: str, scheduler: str, **annotations: str) -> Object:
    pod = gpu_pod("urgent", where, annotations=annotations, priorityClassName="high")
    pod["spec"]["schedulerName"] = scheduler
    return pod


def alive(plane: ControlPlane, where: str) -> set[str]:
    """Name the low-priority pods that nobody has asked to go."""
    pods = plane.api.items(f"/api/v1/namespaces/{where}/pods")
    return {each["metadata"]["name"] for each in pods if not each["metadata"].get("deletionTimestamp")} - {"urgent"}


def test_pod_that_fits_nowhere_by_policy_evicts_nobody(
    plane: ControlPlane, service: Service, full: str, scheduler: str
) -> None:
    """P7, P49, F43: seen without the verb: ten pods evicted on five nodes for nothing."""
    before, prevented = alive(plane, full), service.metric("gpu_usher_evictions_prevented_total")
    pod = urgent(full, scheduler, products="H100")
    create_pod(plane, pod)

    text = refused(plane, pod)
    eventually("we were asked", lambda: service.metric("gpu_usher_evictions_prevented_total") >= prevented + len(FLEET))

    assert "Insufficient nvidia.com/gpu" in text
    assert alive(plane, full) == before


def test_pod_that_fits_after_an_eviction_evicts_only_there(plane: ControlPlane, full: str, scheduler: str) -> None:
    """F43: one pod of the one right product, and no other."""
    before = alive(plane, full)
    pod = urgent(full, scheduler, products="A10")
    create_pod(plane, pod)

    assert node_of(plane, pod, GRACE_SECONDS) == "a10-0"
    [gone] = before - alive(plane, full)
    assert gone.startswith("a10-0")
