# SPDX-License-Identifier: Apache-2.0
"""What counts for pods of a PodGroup (spec.schedulingGroup) beyond the verdict on each node.

kube-scheduler asks about the members of a group one after the other, assumes each on a node, and may revert them all;
it does so for each candidate placement and each step of a preemption (kubernetes
pkg/scheduler/schedule_one_podgroup.go). A question about a member therefore changes nothing for its group: an answer
follows from the cluster, the pod and the names alone.

kube-scheduler counts the units of assumed members, but not the memory that they declare on shared GPUs. So a node with
memory for `c` of the `n` members that wait is open to `c` of them, chosen by rank, whatever order they are asked in: as
many as are open fit. What was named for a group with declared memory counts for all other pods, until HOLD_SECONDS
after the last question, in place of a promise.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.kube.gangs import Gang, gang_of, pod_group_key, workload_of
from app.kube.pending_pods import PendingPod
from app.kube.pod_object import pod_object
from app.kube.pods import GPU_MEMORY, Pod
from app.nodes.model import Node
from app.placement.engine import judge
from app.policy.demand import Demand
from app.values.reasons import Code, Reason, reason
from app.world.state import State

HOLD_SECONDS = 1.0
"""A binding is seen within a second (docs/reference/sharing-and-memory.md#memory-budgets). One that takes longer, for a
volume or a claim, is seen as a nomination before (kubernetes gate NominatedNodeNameForExpectation, on since v1.35)."""
LAYOUTS_KEPT = 64
ZONE = "topology.kubernetes.io/zone"
KEPT_FOR_MEMBERS = reason(
    Code.GPUMemoryBudgetExceeded, "memory of the shared GPUs is kept for other pods of the group that waits"
)
HELD_FOR_GROUP = reason(
    Code.GPUMemoryBudgetExceeded, "memory of the shared GPUs is kept for a group that was asked about last"
)
SERVED_TWICE = reason(
    Code.GPUHeldByDevicePlugin,
    "device plugin and DRA both serve the node's GPUs, and a group asks for both of them",
)


@dataclass(frozen=True, slots=True)
class GroupHold:
    """A node that was named for a member of a group. `members` are the UIDs that the group had then, and `all_units`
    the units and devices that the member asks for.
    """

    group: str
    members: tuple[str, ...]
    units: tuple[tuple[str, int], ...]
    memory_mib: int
    until: float
    all_units: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The members of a group that wait, and how the memory of each node is divided among them.

    `needs` is the most MiB that one member declares of a resource. For each node with a budget, `rooms` is the number
    of members for which it has memory, and `starts` the rank of the first one to which it is open. `mixed` says that
    the group asks for GPUs both by resource and by claim.
    """

    members: tuple[str, ...]
    needs: Mapping[str, int]
    starts: Mapping[str, int]
    rooms: Mapping[str, int]
    mixed: bool


class SchedulingGroups:
    """The layouts of groups by the state of the cluster, and what was named for groups within HOLD_SECONDS."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._layouts: dict[Hashable, Layout] = {}
        self._closed: dict[tuple[int, str, bool], Mapping[str, Reason]] = {}
        self._cliques: dict[Hashable, frozenset[str]] = {}
        self.holds: dict[tuple[str, str], GroupHold] = {}

    def closed(self, pod: Pod, demand: Demand, now: float) -> Mapping[str, Reason]:
        """Return the nodes that are closed to a pod although they fit: by its group, or by what other groups hold."""
        self.expire(now)
        if not pod.pod_group:
            return self._held_from(pod, demand, None)
        layout = self._layout(pod, demand)
        key = (id(layout), pod.uid, bool(demand.declared_mib))
        closed = self._closed.get(key)
        if closed is None:
            closed = self._closed[key] = self._closed_by_group(pod, demand, layout)
        return {**closed, **self._held_from(pod, demand, layout)} if self.holds else closed

    def regained(self, pod: Pod, demand: Demand, lost: Iterable[str], recount: bool) -> list[str]:
        """List the nodes that are refused only for what members of the pod's own group are nominated for."""
        if not pod.pod_group:
            return []
        members = self._layout(pod, demand).members
        own = self._state.allocations.nominated(members)
        nodes = {name: self._state.node_without_pods(name, members) for name in own.intersection(lost)}
        return [name for name, node in nodes.items() if node is not None and judge(demand, node, recount) is None]

    def hold(self, pod: Pod, demand: Demand, name: str, now: float) -> None:
        """Note the node that was named for a member, where only we count what it takes there."""
        node = self._state.nodes.get(name)
        counted = bool(node is not None and ((demand.declared_mib and node.free.memory) or node.free.twice))
        if not (counted or demand.namespace_limits):
            return
        group, members = pod_group_key(pod.namespace, pod.pod_group), self._layout(pod, demand).members
        self.holds.pop((pod.uid, name), None)
        made = GroupHold(group, members, demand.resources, demand.declared_mib, now + HOLD_SECONDS, demand.gpus)
        self.holds[pod.uid, name] = made

    def expire(self, now: float) -> None:
        """Drop what is held no longer; it is in the order of its end."""
        while self.holds and (first := next(iter(self.holds.items())))[1].until <= now:
            del self.holds[first[0]]

    def cliques(self, pod: Pod, demand: Demand) -> frozenset[str]:
        """Return the NVLink domains that a pod of a workload should prefer: those in which its other pods run.

        For a PodGroup of which no pod has a place it is the smallest domain with room for all that wait, or else the
        largest, so that every member prefers the same one.
        """
        taken = self._state.group_cliques(pod)
        if taken or not pod.pod_group or not demand.requests_gpus:
            return taken
        waiting = self._state.pending_pods.of_gang(pod_group_key(pod.namespace, pod.pod_group))
        number = len(waiting.keys() | {pod.uid})
        key = (self._state.changes.generation, number, demand)
        if key not in self._cliques:
            if len(self._cliques) >= LAYOUTS_KEPT:
                self._cliques.clear()
            self._cliques[key] = self._roomiest(demand, number)
        return self._cliques[key]

    def _roomiest(self, demand: Demand, number: int) -> frozenset[str]:
        rooms: dict[str, int] = {}
        for node in self._state.nodes.values():
            if node.clique and judge(demand, node, recount=True) is None:
                counts = [node.free.units.get(resource, 0) // amount for resource, amount in demand.resources if amount]
                rooms[node.clique] = rooms.get(node.clique, 0) + min(counts, default=1)
        order = sorted(rooms, key=lambda clique: (rooms[clique] < number, abs(rooms[clique] - number), clique))
        return frozenset(order[:1])

    def _layout(self, pod: Pod, demand: Demand) -> Layout:
        """Divide the memory of all nodes among the members that wait and declare memory, and the pod itself."""
        waiting = self._state.pending_pods.of_gang(pod_group_key(pod.namespace, pod.pod_group))
        needs = {resource: amount * demand.declared_mib for resource, amount in demand.resources}
        members = {pod.uid}
        for uid, pending in waiting.items():
            if pending.memory_mib:
                members.add(uid)
                for resource, amount in pending.gpu_requests:
                    needs[resource] = max(needs.get(resource, 0), amount * pending.memory_mib)
        sides = {(bool(pending.gpu_requests), bool(pending.claims)) for pending in waiting.values()}
        mixed = len(sides | {(bool(demand.resources), bool(demand.claims))}) > 1
        key = (self._state.changes.generation, tuple(sorted(members)), tuple(sorted(needs.items())), mixed)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= LAYOUTS_KEPT:
                self._layouts.clear()
                self._closed.clear()
            layout = self._layouts[key] = self._divide(tuple(sorted(members)), needs, mixed)
        return layout

    def _divide(self, members: tuple[str, ...], needs: Mapping[str, int], mixed: bool) -> Layout:
        """Open the nodes of one kind and zone to one member after the other, in the order of the nodes' names."""
        starts: dict[str, int] = {}
        rooms: dict[str, int] = {}
        turns: dict[Hashable, int] = {}
        own = self._state.allocations.nominated(members)
        for name in sorted(name for name, node in self._state.nodes.items() if node.free.memory):
            node = self._state.nodes[name]
            without = self._state.node_without_pods(name, members) if name in own else node
            room = _room(without or node, needs, {})
            kind = (id(node.node_class), node.labels.get(ZONE))
            starts[name] = turns.get(kind, 0)
            rooms[name] = room
            turns[kind] = (starts[name] + min(room, _units(node, needs))) % len(members)
        return Layout(members, needs, starts, rooms, mixed)

    def _closed_by_group(self, pod: Pod, demand: Demand, layout: Layout) -> Mapping[str, Reason]:
        closed: dict[str, Reason] = {}
        if layout.mixed:
            closed = dict.fromkeys(self._state.served_twice, SERVED_TWICE)
        if demand.declared_mib:
            for name, room in layout.rooms.items():
                if not _open(layout, pod.uid, name, room):
                    closed[name] = KEPT_FOR_MEMBERS
        return closed

    def _held_from(self, pod: Pod, demand: Demand, layout: Layout | None) -> Mapping[str, Reason]:
        """Return the nodes that are closed by what is held for other groups, or for the same one of other members.

        The layout is that of the pod's group, None for a pod without one.
        """
        group, members = pod_group_key(pod.namespace, pod.pod_group), layout.members if layout else ()
        held: dict[str, dict[str, int]] = {}
        for (uid, name), hold in self.holds.items():
            own = uid == pod.uid or (hold.group, hold.members) == (group, members)
            if not own and self._state.allocations.get(uid) is None:
                taken = held.setdefault(name, {})
                for resource, amount in hold.units:
                    taken[resource] = taken.get(resource, 0) + amount * hold.memory_mib
        closed: dict[str, Reason] = {}
        for name, taken in held.items():
            if (node := self._state.nodes.get(name)) is None:
                continue
            without = (self._state.node_without_pods(name, members) or node) if layout else node
            needs = layout.needs if layout else {key: amount * demand.declared_mib for key, amount in demand.resources}
            room = _room(without, needs, taken)
            if node.free.twice or room < 1:
                closed[name] = SERVED_TWICE if node.free.twice else HELD_FOR_GROUP
            elif layout and demand.declared_mib and not _open(layout, "", name, room):
                closed[name] = HELD_FOR_GROUP
        return closed


def gang_of_pod(state: State, pod: Pod, document: Mapping[str, Any]) -> Gang | None:
    """Return the gang of a pod with its pods that wait, the pod itself first; None for a pod without one.

    Where no document of another pod is kept, it is the pod's own with what the other requests.
    """
    if not (key := gang_of(pod_object(document))):
        return None
    waiting = state.pending_pods.of_gang(key)
    own = waiting.get(pod.uid)
    others = [other for uid, other in waiting.items() if uid != pod.uid]
    alike = {**document, "status": {}}  # its claims are not theirs
    documents = (document, *(other.document or _like(alike, own, other) for other in others))
    bound = state.allocations.bound_of(workload_of(pod.namespace, {}, pod.pod_group))
    return Gang(key, documents, bound, state.pod_groups.get(f"{pod.namespace}/{pod.pod_group}"))


def _like(document: Mapping[str, Any], own: PendingPod | None, other: PendingPod) -> Mapping[str, Any]:
    """Write a pod like another one of its gang, but for its requests of GPUs where they differ."""
    if own is None or (own.gpu_requests, own.memory_mib) == (other.gpu_requests, other.memory_mib):
        return document
    amounts = {resource: str(amount) for resource, amount in other.gpu_requests}
    containers = [{"name": "main", "resources": {"limits": amounts, "requests": amounts}}]
    annotations = {GPU_MEMORY: f"{other.memory_mib}Mi"} if other.memory_mib else {}
    metadata = {**document["metadata"], "annotations": annotations}
    return {
        **document,
        "metadata": metadata,
        "spec": {**document["spec"], "containers": containers, "initContainers": []},
    }


def _open(layout: Layout, uid: str, name: str, room: int) -> bool:
    """Tell whether a node with memory for `room` members is open to a member: to all, or to that many ranks.

    The empty UID is open only where all are.
    """
    number = len(layout.members)
    if room >= number or name not in layout.starts:
        return True
    return bool(uid) and (layout.members.index(uid) - layout.starts[name]) % number < room


def _room(node: Node, needs: Mapping[str, int], taken: Mapping[str, int]) -> int:
    """Count the members for which a node has memory, beside what is taken; many where none of it is budgeted."""
    rooms = [
        max(0, left - taken.get(resource, 0)) // needs[resource]
        for resource, left in node.free.memory.items()
        if needs.get(resource)
    ]
    return min(rooms, default=MANY)


def _units(node: Node, needs: Mapping[str, int]) -> int:
    return min((node.free.units.get(resource, 0) for resource in needs if resource in node.free.memory), default=MANY)


MANY = 1 << 30
"""More members than any group has."""
