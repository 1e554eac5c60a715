# SPDX-License-Identifier: Apache-2.0
"""Preemption where the memory of shared GPUs is what is short: nobody goes for a place that stays too small."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, kubelets, node_object, pod_path
from tests.controlplane.kubectl import Object
from tests.controlplane.relay import Relay
from tests.e2e.mixed import asked_of
from tests.e2e.stage import (
    OURS,
    Service,
    create_pod,
    eventually,
    gpu_pod,
    namespace,
    node_of,
    read_pod,
    refused,
    serving,
    start_scheduler,
)

GIVEN_AWAY = "memory of the shared GPUs is given away"
MODES = {OURS: {}, "whole-nodes": {"nodeCacheCapable": False}}
PRIORITIES = {"spare": 1, "low": 2, "middle": 10, "urgent": 1000}
NODES, MEMORY_MIB = ("a10-x", "a10-y"), 23028
GRACE_SECONDS = 90
"""Bound on an eviction and the next try."""
STALE_SECONDS = 90
"""Bound on the 30 s after which a lost watch makes the view stale."""
AT_X = {"place": "a10-x"}
Pods = tuple[tuple[str, str], ...]
"""(priority, declared memory) of the pods on a node."""
HELPS: Pods = (("middle", "2Gi"), ("middle", "2Gi"), ("middle", "2Gi"), ("low", "16Gi"))
TOO_LITTLE: Pods = (("middle", "6Gi"), ("middle", "6Gi"), ("middle", "6Gi"), ("spare", "2Gi"))
"""Four shares of 23,028 MiB are all held. kube-scheduler counts shares alone: the one pod of the lowest priority goes
(pkg/scheduler/framework/plugins/defaultpreemption, SelectVictimsOnNode), whatever memory it leaves."""


@pytest.fixture(scope="module")
def relay(plane: ControlPlane) -> Iterator[Relay]:
    """The network between the service and the API server."""
    made = Relay(plane.port)
    yield made
    made.close()


@pytest.fixture(scope="module")
def service(plane: ControlPlane, relay: Relay) -> Iterator[Service]:
    """Two nodes of a GPU in four time-slices, priorities, kubelets, a scheduler by names and one by whole nodes."""
    shared = {"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "4"}
    labels = {**shared, "nvidia.com/gpu.memory": str(MEMORY_MIB), "nvidia.com/gpu.count": "1"}
    make = ("NVIDIA-A10-SHARED", "550.54.15", {"nvidia.com/gpu": 4})
    add_nodes(plane.api, [node_object(each, *make, labels={**labels, "place": each}) for each in NODES])
    for name, value in PRIORITIES.items():
        plane.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": value})
    behind = str(plane.kubeconfig("gpu-usher", relay.port))
    with serving(plane, kubeconfig=behind) as running, kubelets(plane.api):
        for name, change in MODES.items():
            start_scheduler(plane, running, name=name, change=change)
        yield running


@pytest.fixture(params=MODES, ids=["names", "whole nodes"])
def scheduler(request: pytest.FixtureRequest) -> str:
    """How the scheduler talks to us."""
    return str(request.param)


@pytest.fixture
def where(plane: ControlPlane, service: Service, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace; its pods are gone, and known to be gone, before the next test."""
    assert service.ready()
    name = namespace(plane, f"memory-{abs(hash(request.node.name)) % 10**8}")
    pods = f"/api/v1/namespaces/{name}/pods"
    yield name
    plane.api.delete(pods, fieldSelector="spec.nodeName=")  # first: a pod that waits would be tried once more
    plane.api.delete(pods)
    eventually("the pods are gone", lambda: not plane.api.items(pods))
    eventually("their memory is free", lambda: {left(service, name, each, "22Gi") for each in NODES} == {""})


def declaring(where: str, name: str, memory: str | None, **spec: Any) -> Object:
    """Write a pod that takes one share, and says how much memory it will use."""
    return gpu_pod(name, where, annotations={"gpu-memory": memory} if memory else {}, **spec)


def left(service: Service, where: str, node: str, memory: str) -> str:
    """Ask filter whether a node has memory left; empty if so. To ask again for too much takes the promise back."""
    said = []
    for each in (memory, "23Gi"):
        pod = declaring(where, "probe", each)
        pod["metadata"]["uid"] = "probe"
        answer = asked_of(service, "filter", pod, [node])
        said.append(answer["Error"] or answer["FailedNodes"].get(node, ""))
    assert said[1]
    return str(said[0])


def hold(plane: ControlPlane, service: Service, where: str, node: str, pods: Pods) -> None:
    """Put pods on a node past the scheduler, and wait until the service has counted the last of them."""
    for index, (priority, memory) in enumerate(pods):
        name = f"{node}-{index}-{priority}"
        create_pod(plane, declaring(where, name, memory, priorityClassName=priority, nodeName=node))
    rest = MEMORY_MIB - sum(int(memory.removesuffix("Gi")) * 1024 for _, memory in pods)
    exactly, over = f"{rest}Mi", f"{rest + 1}Mi"
    eventually("all are counted", lambda: left(service, where, node, over) and not left(service, where, node, exactly))


def urgent(where: str, scheduler: str, memory: str | None, name: str = "urgent", **spec: Any) -> Object:
    pod = declaring(where, name, memory, priorityClassName="urgent")
    pod["spec"].update(spec, schedulerName=scheduler)
    return pod


def bound(plane: ControlPlane, pod: Object) -> bool:
    return bool(read_pod(plane, pod)["spec"].get("nodeName"))


def stale(service: Service) -> bool:
    return any(each.get("stale") for each in service.health()["caches"].values())


def gone(plane: ControlPlane, where: str, before: set[str]) -> set[str]:
    """Name the pods that were there before, and that somebody has asked to go."""
    return before - staying(plane, where)


def staying(plane: ControlPlane, where: str) -> set[str]:
    pods = plane.api.items(f"/api/v1/namespaces/{where}/pods")
    return {each["metadata"]["name"] for each in pods if not each["metadata"].get("deletionTimestamp")}


def test_nobody_goes_where_the_victims_free_too_little_memory(
    plane: ControlPlane, service: Service, where: str, scheduler: str
) -> None:
    """F43, F65: the scheduler would evict one pod for its share; 12Gi would not fit behind it."""
    hold(plane, service, where, "a10-x", TOO_LITTLE)
    before, prevented = staying(plane, where), service.metric("gpu_usher_evictions_prevented_total")
    pod = urgent(where, scheduler, "12Gi", nodeSelector=AT_X)
    create_pod(plane, pod)

    text = refused(plane, pod)
    eventually("we were asked", lambda: service.metric("gpu_usher_evictions_prevented_total") > prevented)

    assert "1 Insufficient nvidia.com/gpu" in text
    assert gone(plane, where, before) == set()
    assert not read_pod(plane, pod)["status"].get("nominatedNodeName")


def test_pod_goes_where_it_frees_enough_memory(
    plane: ControlPlane, service: Service, where: str, scheduler: str
) -> None:
    """F43, F65: the one with 16Gi goes, and 12Gi fit behind it."""
    hold(plane, service, where, "a10-x", HELPS)
    before = staying(plane, where)
    pod = urgent(where, scheduler, "12Gi", nodeSelector=AT_X)
    create_pod(plane, pod)

    assert node_of(plane, pod, GRACE_SECONDS) == "a10-x"
    assert gone(plane, where, before) == {"a10-x-3-low"}


def test_of_two_nodes_the_one_where_it_helps_loses_a_pod(
    plane: ControlPlane, service: Service, where: str, scheduler: str
) -> None:
    """F43, F65: the scheduler itself would take the other, whose victim has the lower priority."""
    hold(plane, service, where, "a10-x", TOO_LITTLE)
    hold(plane, service, where, "a10-y", HELPS)
    before = staying(plane, where)
    pod = urgent(where, scheduler, "12Gi")
    create_pod(plane, pod)

    assert node_of(plane, pod, GRACE_SECONDS) == "a10-y"
    assert gone(plane, where, before) == {"a10-y-3-low"}


def test_pod_that_declares_nothing_needs_a_share_only(
    plane: ControlPlane, service: Service, where: str, scheduler: str
) -> None:
    """F43, F65."""
    hold(plane, service, where, "a10-x", TOO_LITTLE)
    before = staying(plane, where)
    pod = urgent(where, scheduler, None, nodeSelector=AT_X)
    create_pod(plane, pod)

    assert node_of(plane, pod, GRACE_SECONDS) == "a10-x"
    assert gone(plane, where, before) == {"a10-x-3-spare"}


def test_nobody_goes_where_shares_are_left_and_only_memory_is_short(
    plane: ControlPlane, service: Service, where: str, scheduler: str
) -> None:
    """F65: the scheduler finds no victims, for it sees a share to be had; the pod waits until memory is freed.

    It may try again before we have seen the deletion that woke it; then whatever happens next brings it back.
    """
    hold(plane, service, where, "a10-x", (("low", "7Gi"), ("low", "7Gi"), ("low", "7Gi")))
    before = staying(plane, where)
    pod = urgent(where, scheduler, "6Gi", nodeSelector=AT_X)
    create_pod(plane, pod)

    text = refused(plane, pod)

    assert f"1 {GIVEN_AWAY}" in text
    assert "at least one victim pod" in text
    assert gone(plane, where, before) == set()
    plane.api.delete(f"/api/v1/namespaces/{where}/pods/a10-x-0-low")
    eventually("it is free, or taken", lambda: bound(plane, pod) or not left(service, where, "a10-x", "6Gi"))
    plane.api.patch("/api/v1/nodes/a10-y", {"metadata": {"labels": {"turn": scheduler}}})
    assert node_of(plane, pod, GRACE_SECONDS) == "a10-x"


def test_second_preemptor_counts_on_no_memory_that_the_first_will_have(
    plane: ControlPlane, service: Service, where: str, scheduler: str
) -> None:
    """F43, F65: while the victim of the first is still going, its memory is promised already."""
    hold(plane, service, where, "a10-x", (("middle", "2Gi"), ("middle", "1Gi"), ("low", "1Gi"), ("spare", "16Gi")))
    before, slow = staying(plane, where), f"/api/v1/namespaces/{where}/pods/a10-x-3-spare"
    plane.api.patch(slow, {"metadata": {"finalizers": ["e2e.test/slow"]}})
    first, second = (urgent(where, scheduler, "16Gi", name, nodeSelector=AT_X) for name in ("first", "second"))
    create_pod(plane, first)
    eventually("the first has its place", lambda: read_pod(plane, first)["status"].get("nominatedNodeName"))
    eventually("the service has counted it", lambda: left(service, where, "a10-x", "1Gi"))

    create_pod(plane, second)
    refused(plane, second)

    went = gone(plane, where, before)
    plane.api.patch(slow, {"metadata": {"finalizers": None}})
    assert went == {"a10-x-3-spare"}
    assert node_of(plane, first, GRACE_SECONDS) == "a10-x"


def test_stale_view_evicts_nobody(plane: ControlPlane, service: Service, relay: Relay, where: str) -> None:
    """HTTP 503 to preempt, in both modes; the places are right, but who knows (docs/reference/scores.md#preemption)."""
    hold(plane, service, where, "a10-x", HELPS)
    before = staying(plane, where)
    relay.cut()
    eventually("the view is stale", lambda: stale(service), STALE_SECONDS)
    asked = service.calls("preempt")
    pods = [urgent(where, each, "12Gi", f"urgent-{each}", nodeSelector=AT_X) for each in MODES]
    for pod in pods:
        create_pod(plane, pod)

    eventually("both schedulers asked", lambda: service.calls("preempt") >= asked + len(MODES))

    for pod in pods:
        assert "code 503" in refused(plane, pod)
        plane.api.delete(pod_path(pod))
    assert gone(plane, where, before) == set()
    relay.mend()
    eventually("the view is back", lambda: not stale(service), STALE_SECONDS)
