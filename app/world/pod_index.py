# SPDX-License-Identifier: Apache-2.0
"""The parts of State about pods, and the one record of a pod that they keep.

`PodRecord` is read once of each pod. `NodeRequests` sums requests by node, `PendingPodIndex` holds the pods that wait,
`PodCounts` the number of pods by shape, and `ClaimingPods` the nodes on which pods with claims run, by workload.

An event of a pod costs the number of its resources, in a fleet of any size. Explanations read the requests, and for
nodes with GPUs the scorers read the unrequested CPU.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any, Generic, TypeVar

from app.knowledge.tables import Knowledge
from app.kube.gangs import read_workload
from app.kube.gpu_usage import GPUUsage, read_bound_requests, read_gpu_usage
from app.kube.pending_pods import PendingPod, read_pending_pod
from app.kube.pod_object import PodObject
from app.kube.pod_requests import CORE_MILLI, CPU, PODS, Amounts, PodRequests, quantity_units
from app.kube.pod_shapes import PodShape, read_pod_shape
from app.nodes.mig_state import node_that_gives_one_unit
from app.nodes.model import Node

Place = tuple[str, str]
"""The key of a workload (kube/gangs.py workload_of), and a node."""


def read_place(pod: PodObject) -> Place | None:
    """Read the workload and the node of a running pod with claims; None for any other pod."""
    if not (pod.spec.node_name and pod.spec.resource_claims) or pod.finished:
        return None
    group = read_workload(pod)
    return (intern(group), intern(pod.spec.node_name)) if group else None


class ClaimingPods:
    """The workload and the node of each pod with claims, by UID.

    Pods that request GPUs by resource are counted with what they hold (gpu_allocations.py). Those that only claim
    devices hold nothing that is counted there, and yet pods of their workload prefer their NVLink domain.
    """

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._by_group: dict[str, dict[str, str]] = {}

    def put(self, uid: str, place: Place | None) -> None:
        """Add or change a pod; None removes it."""
        before = self._places.pop(uid, None)
        if before is not None:
            pods = self._by_group[before[0]]
            del pods[uid]
            if not pods:
                del self._by_group[before[0]]
        if place is not None:
            self._places[uid] = place
            self._by_group.setdefault(place[0], {})[uid] = place[1]

    def nodes_of(self, group: str, but: str = "") -> Iterable[str]:
        """Return the nodes of the pods of a workload, except the pod with the UID `but`; repeats are possible."""
        return [node for uid, node in self._by_group.get(group, {}).items() if uid != but]


Shape = TypeVar("Shape", bound=Hashable)


@dataclass(frozen=True, slots=True)
class PodRecord:
    """What the State keeps of one pod; None for what it has not.

    `usage` is the GPUs that it holds, `requests` what it requests of its node, `pending` is set while it waits for GPUs
    or devices, `shape` while it holds or waits for GPUs. `place` is its workload and node if it claims devices.
    `refused_by` is the node whose device plugin refused it several units of a shared GPU.
    """

    usage: GPUUsage | None = None
    requests: PodRequests | None = None
    pending: PendingPod | None = None
    shape: PodShape | None = None
    place: Place | None = None
    refused_by: str | None = None


NO_POD = PodRecord()


def read_pod_record(
    pod: PodObject, knowledge: Knowledge, before: GPUUsage | None = None, document: Mapping[str, Any] | None = None
) -> PodRecord:
    """Read a pod. `before` is what it was last seen to hold; a pending pod keeps the `document`.

    Raises MalformedPod, QuantityError.
    """
    requests = read_bound_requests(pod)
    usage, pending = None, None
    if requests is None or requests.may_have_gpus:
        # A running pod holds what it held: only its CPU and memory can be resized.
        same = before and not pod.finished and pod.spec.node_name == before.node
        usage = before if same else read_gpu_usage(pod, knowledge)
    if requests is None:
        pending = read_pending_pod(pod, knowledge, document)
    shape = read_pod_shape(pod, usage, requests, pending)
    return PodRecord(usage, requests, pending, shape, read_place(pod), node_that_gives_one_unit(pod, knowledge))


NOTHING: Mapping[str, int] = {}


class NodeRequests:
    """Requests by pod UID, and their sum by node. A node's sum is replaced, never changed, so readers may keep it."""

    def __init__(self) -> None:
        self._pods: dict[str, PodRequests] = {}
        self.used: dict[str, Mapping[str, int]] = {}

    def put(self, uid: str, requests: PodRequests | None) -> set[str]:
        """Set what a pod requests, None for nothing; return the nodes whose sum changed."""
        before = self._pods.get(uid)
        if before == requests:
            return set()
        if before is not None:
            del self._pods[uid]
            self._add(before, -1)
        if requests is not None:
            self._pods[uid] = requests
            self._add(requests, 1)
        return {changed.node for changed in (before, requests) if changed is not None}

    def cpu_left(self, node: Node) -> int | None:
        """Return the milli-CPU of a node that no pod requests; None without GPUs or if the amount is unknown.

        It is rounded to whole cores, so that small pods seldom invalidate cached verdicts.
        """
        amount = node.allocatable.get(CPU)
        if amount is None or not node.has_gpus:
            return None
        left = quantity_units(CPU, str(amount)) - self.used.get(node.name, NOTHING).get(CPU, 0)
        return left // CORE_MILLI * CORE_MILLI

    def _add(self, requests: PodRequests, sign: int) -> None:
        used = {**self.used.get(requests.node, NOTHING)}
        amounts: Amounts = (*requests.amounts, (PODS, 1))
        for resource, amount in amounts:
            used[resource] = used.get(resource, 0) + sign * amount
        if used[PODS]:
            self.used[requests.node] = used
        else:
            del self.used[requests.node]


MOST_PODS = 20_000
"""Pods in the index, some 400 bytes each (a guess at what a person reads). Further pods are only counted."""


NO_PODS: Mapping[str, PendingPod] = {}


class PendingPodIndex(Mapping[str, PendingPod]):
    """Pending pods by UID. `generation` counts changes of the index; `missed` counts pods beyond MOST_PODS."""

    def __init__(self) -> None:
        self._pods: dict[str, PendingPod] = {}
        self._gangs: dict[str, dict[str, PendingPod]] = {}
        self.generation = self.missed = 0

    def put(self, uid: str, pod: PendingPod | None) -> None:
        """Add or change a pod; None removes it, because it is no longer pending."""
        before = self._pods.get(uid)
        if pod is not None and before is None and len(self._pods) >= MOST_PODS:
            self.missed += 1
            return
        if before is not None and before.gang:
            del self._gangs[before.gang][uid]
            if not self._gangs[before.gang]:
                del self._gangs[before.gang]
        if pod is None:
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = pod  # also where it is equal, since what is not compared may have changed
            if pod.gang:
                self._gangs.setdefault(pod.gang, {})[uid] = pod
        self.generation += before != pod

    def gangs(self) -> Mapping[str, Mapping[str, PendingPod]]:
        """Return the pending pods of all gangs by UID, by the gang's key."""
        return self._gangs

    def of_gang(self, gang: str) -> Mapping[str, PendingPod]:
        """Return the pending pods of a gang by UID."""
        return self._gangs.get(gang, NO_PODS)

    def by_name(self, namespace: str, name: str) -> PendingPod | None:
        """Return a pod by its namespace and name; None if it is not in the index."""
        return next((pod for pod in self._pods.values() if (pod.namespace, pod.name) == (namespace, name)), None)

    def __getitem__(self, uid: str) -> PendingPod:
        return self._pods[uid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pods)

    def __len__(self) -> int:
        return len(self._pods)


class PodCount(Generic[Shape]):
    """The number of pods of a shape, and how many of them the reader knew when it last asked."""

    __slots__ = ("known", "pods", "shape")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.pods = self.known = 0


class PodCounts(Generic[Shape]):
    """The shape of each pod by UID, and the number of pods by shape, for one reader that asks for what has changed."""

    def __init__(self) -> None:
        self._by_uid: dict[str, PodCount[Shape]] = {}
        self._counts: dict[Shape, PodCount[Shape]] = {}
        self.changed: dict[PodCount[Shape], None] = {}
        """The counts of which the reader does not know all."""

    def put(self, uid: str, shape: Shape | None) -> None:
        """Add or change a pod; None removes it."""
        before = self._by_uid.get(uid)
        if before is not None:
            if before.shape == shape:
                return
            del self._by_uid[uid]
            before.pods -= 1
            self.changed[before] = None
            if not before.pods and not before.known:
                del self._counts[before.shape], self.changed[before]
        if shape is not None:
            count = self._counts.get(shape)
            if count is None:
                count = self._counts[shape] = PodCount(shape)
            self._by_uid[uid] = count
            count.pods += 1
            self.changed[count] = None

    def changes(self) -> Iterator[tuple[Shape, int]]:
        """Yield each shape whose number of pods has changed since the last call, and by how much."""
        changed, self.changed = self.changed, {}
        for count in changed:
            difference, count.known = count.pods - count.known, count.pods
            if not count.pods:
                del self._counts[count.shape]
            if difference:
                yield count.shape, difference

    def all(self) -> Iterator[tuple[Shape, int]]:
        """Yield each shape with its number of pods, as the first call of `changes` would."""
        for count in self._counts.values():
            count.known = 0
            self.changed[count] = None
        return self.changes()

    def __len__(self) -> int:
        return len(self._by_uid)
