# SPDX-License-Identifier: Apache-2.0
"""Preemption where memory of shared GPUs is short: no pod is evicted from a node whose memory would stay too small."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, kubelets, node_object
from tests.controlplane.kubectl import Object
from tests.controlplane.relay import Relay
from tests.e2e.mixed import call_extender
from tests.e2e.stage import (
    Service,
    create_namespace,
    create_pod,
    eventually,
    gpu_pod,
    read_pod,
    serving,
    start_scheduler,
    wait_for_node,
    wait_for_refusal,
)

PRIORITIES = {"spare": 1, "low": 2, "middle": 10, "urgent": 1000}
NODES, MEMORY_MIB = ("a10-x", "a10-y"), 23028
GRACE_SECONDS = 90
"""Seconds for an eviction and the next try."""
AT_X = {"place": "a10-x"}
Pods = tuple[tuple[str, str], ...]
"""(priority, declared memory) of the pods on a node."""
HELPS: Pods = (("middle", "2Gi"), ("middle", "2Gi"), ("middle", "2Gi"), ("low", "16Gi"))
TOO_LITTLE: Pods = (("middle", "6Gi"), ("middle", "6Gi"), ("middle", "6Gi"), ("spare", "2Gi"))
"""Four shares of 23,028 MiB are all held. kube-scheduler counts shares alone: the one pod of the lowest priority goes
(pkg/scheduler/framework/plugins/defaultpreemption, SelectVictimsOnNode), whatever memory it leaves."""


@pytest.fixture(scope="module")
def relay(plane: ControlPlane) -> Iterator[Relay]:
    """The network between the service and the API server, which a test can cut."""
    made = Relay(plane.port)
    yield made
    made.close()


@pytest.fixture(scope="module")
def service(plane: ControlPlane, relay: Relay) -> Iterator[Service]:
    """Two nodes of a GPU in four time-slices, priorities, kubelets, and a scheduler."""
    shared = {"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "4"}
    labels = {**shared, "nvidia.com/gpu.memory": str(MEMORY_MIB), "nvidia.com/gpu.count": "1"}
    make = ("NVIDIA-A10-SHARED", "550.54.15", {"nvidia.com/gpu": 4})
    add_nodes(plane.api, [node_object(node, *make, labels={**labels, "place": node}) for node in NODES])
    for name, value in PRIORITIES.items():
        plane.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": value})
    behind = str(plane.kubeconfig("gpu-usher", relay.port))
    with serving(plane, kubeconfig=behind) as running, kubelets(plane.api):
        start_scheduler(plane, running)
        yield running


@pytest.fixture
def namespace(plane: ControlPlane, service: Service, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace whose pods are deleted, and known to be deleted, before the next test."""
    assert service.ready()
    name = create_namespace(plane, f"memory-{abs(hash(request.node.name)) % 10**8}")
    pods = f"/api/v1/namespaces/{name}/pods"
    yield name
    plane.api.delete(pods, fieldSelector="spec.nodeName=")  # first, as a waiting pod would be tried once more
    plane.api.delete(pods)
    eventually("the pods are gone", lambda: not plane.api.items(pods))
    eventually("their memory is free", lambda: {memory_left(service, name, node, "22Gi") for node in NODES} == {""})


def memory_pod(namespace: str, name: str, memory: str | None, **spec: Any) -> Object:
    """Write a pod that takes one share and declares how much memory it will use."""
    return gpu_pod(name, namespace, annotations={"gpu-memory": memory} if memory else {}, **spec)


def memory_left(service: Service, namespace: str, node: str, memory: str) -> str:
    """Ask filter whether a node has this memory left; "" if so. A second call for too much takes the promise back."""
    refusals = []
    for amount in (memory, "23Gi"):
        pod = memory_pod(namespace, "probe", amount)
        pod["metadata"]["uid"] = "probe"
        answer = call_extender(service, "filter", pod, [node])
        refusals.append(answer["Error"] or answer["FailedNodes"].get(node, ""))
    assert refusals[1]
    return str(refusals[0])


def fill_node(plane: ControlPlane, service: Service, namespace: str, node: str, pods: Pods) -> None:
    """Bind pods to a node without the scheduler, and wait until the service has counted the last of them."""
    for index, (priority, memory) in enumerate(pods):
        name = f"{node}-{index}-{priority}"
        create_pod(plane, memory_pod(namespace, name, memory, priorityClassName=priority, nodeName=node))
    rest = MEMORY_MIB - sum(int(memory.removesuffix("Gi")) * 1024 for _, memory in pods)
    exactly, over = f"{rest}Mi", f"{rest + 1}Mi"
    eventually(
        "all are counted",
        lambda: memory_left(service, namespace, node, over) and not memory_left(service, namespace, node, exactly),
    )


def urgent_pod(namespace: str, memory: str, **spec: Any) -> Object:
    return memory_pod(namespace, "urgent", memory, priorityClassName="urgent", **spec)


def evicted_pods(plane: ControlPlane, namespace: str, before: set[str]) -> set[str]:
    """Name the pods of `before` whose deletion was requested, or that are gone."""
    return before - remaining_pods(plane, namespace)


def remaining_pods(plane: ControlPlane, namespace: str) -> set[str]:
    pods = plane.api.items(f"/api/v1/namespaces/{namespace}/pods")
    return {pod["metadata"]["name"] for pod in pods if not pod["metadata"].get("deletionTimestamp")}


def test_nothing_is_evicted_where_the_victims_free_too_little_memory(
    plane: ControlPlane, service: Service, namespace: str
) -> None:
    """F43, F65: the scheduler would evict one pod for its share, after which 12Gi would still not fit."""
    fill_node(plane, service, namespace, "a10-x", TOO_LITTLE)
    before, prevented = remaining_pods(plane, namespace), service.metric("gpu_usher_evictions_prevented_total")
    pod = urgent_pod(namespace, "12Gi", nodeSelector=AT_X)
    create_pod(plane, pod)

    text = wait_for_refusal(plane, pod)
    eventually("we were asked", lambda: service.metric("gpu_usher_evictions_prevented_total") > prevented)

    assert "1 Insufficient nvidia.com/gpu" in text
    assert evicted_pods(plane, namespace, before) == set()
    assert not read_pod(plane, pod)["status"].get("nominatedNodeName")


def test_pod_goes_where_it_frees_enough_memory(plane: ControlPlane, service: Service, namespace: str) -> None:
    """F43, F65: the pod with 16Gi is evicted, after which 12Gi fit."""
    fill_node(plane, service, namespace, "a10-x", HELPS)
    before = remaining_pods(plane, namespace)
    pod = urgent_pod(namespace, "12Gi", nodeSelector=AT_X)
    create_pod(plane, pod)

    assert wait_for_node(plane, pod, GRACE_SECONDS) == "a10-x"
    assert evicted_pods(plane, namespace, before) == {"a10-x-3-low"}
