# SPDX-License-Identifier: Apache-2.0
"""One node that a device plugin and a DRA driver both serve, on the real scheduler: one side at a time (F135)."""

from collections.abc import Iterator

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object
from tests.dra.makes import device, device_class, slice_of
from tests.e2e.offers import dra_path
from tests.e2e.stage import create_namespace, create_pod, eventually, gpu_pod, pods_of, read_pod, refusal
from tests.e2e.woken_stage import waking_service

NAMESPACE, NODE, GPU = "twice", "both", "nvidia.com/gpu"
PODS = 8
PATIENCE_SECONDS = 90


@pytest.fixture
def plane_served_twice(plane: ControlPlane) -> Iterator[ControlPlane]:
    """Four GPUs of one node, in allocatable and in a ResourceSlice, and our service with its scheduler."""
    create_namespace(plane, NAMESPACE)
    add_nodes(plane.api, [node_object(NODE, offers={GPU: 4})])
    plane.api.create(f"{dra_path(plane)}/deviceclasses", device_class("gpu.nvidia.com", "gpu"))
    devices = [device(number, "gpu", "h100") for number in range(4)]
    plane.api.create(f"{dra_path(plane)}/resourceslices", slice_of(NODE, devices))
    exactly = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1}
    template = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    path = f"{dra_path(plane)}/namespaces/{NAMESPACE}/resourceclaimtemplates"
    plane.api.create(path, {"metadata": {"name": "one"}, "spec": template})
    with waking_service(plane, "--every-pod"):
        yield plane


def claiming_pod(name: str) -> Object:
    """Write a pod that claims one GPU."""
    pod = gpu_pod(name, NAMESPACE, {}, resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one"}])
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return pod


def bound(plane: ControlPlane, prefix: str) -> list[str]:
    """Name the bound pods of one side."""
    pods = (pod for pod in pods_of(plane, NAMESPACE) if pod["spec"].get("nodeName"))
    return sorted(name for pod in pods if (name := pod["metadata"]["name"]).startswith(prefix))


def test_pods_of_one_side_at_a_time_are_bound_to_a_node_served_twice(plane_served_twice: ControlPlane) -> None:
    """F135: pods of both sides at once; four of one side are bound, and the other side's when these are gone."""
    plane = plane_served_twice
    pods = [gpu_pod(f"plugin-{n}", NAMESPACE) if n % 2 else claiming_pod(f"claim-{n}") for n in range(PODS)]
    for pod in pods:
        create_pod(plane, pod)

    def settled() -> bool:
        stored = [read_pod(plane, pod) for pod in pods]
        return all(pod["spec"].get("nodeName") or refusal(pod) for pod in stored) and bool(bound(plane, ""))

    eventually("all pods are judged", settled, PATIENCE_SECONDS)
    by_plugin, by_claim = bound(plane, "plugin"), bound(plane, "claim")
    first, other = ("plugin", "claim") if by_plugin else ("claim", "plugin")
    for name in bound(plane, first):
        plane.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}?gracePeriodSeconds=0")

    assert (len(by_plugin), len(by_claim)) in ((4, 0), (0, 4))
    eventually("the other side has the node", lambda: len(bound(plane, other)) == 4, PATIENCE_SECONDS)
    assert bound(plane, first) == []
