# SPDX-License-Identifier: Apache-2.0
"""The state: the one mutable index of nodes and of the pods on them, updated event by event.

Every change costs the same in a fleet of any size. Readers on the event loop use the index directly and never await in
between; there are no locks, because nothing else runs meanwhile (docs/reference/listeners.md#state).
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import Any

from app.knowledge.tables import Knowledge
from app.kube.admission_objects import AdmissionObjects
from app.kube.gangs import PodGroup, workload_of
from app.kube.gpu_usage import GPUUsage
from app.kube.numa_zones import NUMAZones
from app.kube.objects import Namespace, RuntimeClass
from app.kube.pending_pods import PendingPod
from app.kube.pod_object import pod_object
from app.kube.pod_shapes import PodShape
from app.kube.pods import Pod
from app.nodes.gpu_health import HEALTHY, Health
from app.nodes.model import FreeResources, Node, NodeClass
from app.nodes.reading import read_node, with_devices, with_other_devices
from app.world.device_state import DeviceState
from app.world.fleet_facts import FleetFacts
from app.world.gpu_allocations import PROMISE_SECONDS, FreeResourcesOfNodes, GPUAllocations, NodesServedTwice
from app.world.image_index import ImageIndex
from app.world.node_groups import FreeGPUs, NodeGroups
from app.world.pod_index import (
    NO_POD,
    ClaimingPods,
    NodeRequests,
    PendingPodIndex,
    PodCounts,
    PodRecord,
    read_pod_record,
)
from app.world.verdict_cache import ChangeLog

CLASSES_SPARE = 1024
"""Node classes kept beyond two per node, before unused ones are dropped; a fleet has dozens, of some 2 kB each."""


class _LabelsByName(dict[str, Mapping[str, str]]):
    """Labels of namespaces; an unknown one has the label that every namespace has."""

    def __missing__(self, name: str) -> Mapping[str, str]:
        return {"kubernetes.io/metadata.name": name}


class Namespaces:
    """Labels by the name of the namespace. `changes` counts namespaces whose labels are others than before."""

    def __init__(self) -> None:
        self.by_name = _LabelsByName()
        self.changes = 0

    def put(self, name: str, labels: Mapping[str, str]) -> None:
        labels = labels or self.by_name.__missing__(name)
        self.changes += self.labels(name) != labels
        self.by_name[name] = labels

    def drop(self, name: str) -> None:
        before = self.labels(name)
        self.by_name.pop(name, None)
        self.changes += self.labels(name) != before

    def labels(self, name: str) -> Mapping[str, str]:
        return self.by_name[name]


class State:
    """Nodes, GPU usage, claims, namespaces and runtime classes as last seen.

    `put_…` methods read a Kubernetes object, `take_…` methods take one that was read; both add or change. `changes` is
    the log of changed nodes. `runtime_classes` is None until listed. `overrun` holds the names of nodes on which pods
    declare more memory of shared GPUs than there is, and `served_twice` those whose GPUs a device plugin and a DRA
    driver both give away. `pod_groups` are those of a snapshot, by namespace/name; a live cluster is asked for one.
    """

    def __init__(self, knowledge: Knowledge) -> None:
        self.devices = DeviceState(knowledge, self._rebuild, self._update_free)
        self.knowledge = knowledge
        self.nodes: dict[str, Node] = {}
        self._nodes_as_read: dict[str, Node] = {}
        self.namespaces = Namespaces()
        self.runtime_classes: dict[str, RuntimeClass] | None = None
        self._node_groups = NodeGroups(knowledge)
        self.changes = ChangeLog()
        self._classes: dict[NodeClass, NodeClass] = {}
        self.allocations = GPUAllocations()
        twice = NodesServedTwice(self.devices.dra, self.allocations, knowledge.families)
        self.node_requests = NodeRequests()
        self._free = FreeResourcesOfNodes(self.devices, self.allocations, twice, self.node_requests.used)
        self._health: dict[str, Health] = {}
        self.overrun: set[str] = set()
        self.served_twice: set[str] = set()
        self.pending_pods = PendingPodIndex()
        self.claiming_pods = ClaimingPods()
        self.pod_counts = PodCounts[PodShape]()
        self.pod_groups: dict[str, PodGroup] = {}
        self.admission_objects = AdmissionObjects()
        self.images = ImageIndex()
        self.free_gpus = FreeGPUs()
        self._refusals: dict[str, str] = {}
        self._fleet: FleetFacts | None = None

    def put_node(self, document: Mapping[str, Any]) -> None:
        """Add or change a node.

        Raises MalformedPod.
        """
        self.take_node(read_node(document, self.knowledge))

    def take_node(self, node: Node) -> None:
        """Add or change a node as read; the very same object, as after a heartbeat, changes nothing."""
        if self._nodes_as_read.get(node.name) is not node:
            self._nodes_as_read[node.name] = node
            if self.devices.dra.pools.by_name:
                self.devices.kinds.drop(node.name)
            self._rebuild([node.name])

    def add_known_facts(self, node: Node) -> Node:
        """Add to a node as read its DRA devices, the health of its GPUs, and what pods and claims have allocated."""
        kinds = None
        if self.devices.dra.pools.by_name:
            kinds = self.devices.kinds.of(node)
            serving = self.devices.serving_on(kinds)
            node = with_devices(node, self.devices.index.devices(node.name), serving, self.knowledge)
            if others := self.devices.index.of_other_vendors(node.name):
                node = with_other_devices(node, others, serving, self.knowledge)
        if (health := self._health.get(node.name)) is not None:
            node = replace(node, node_class=replace(node.node_class, ill=health.ill, ailing=health.ailing))
        if self._refusals and node.name in self._refusals.values():
            node = replace(node, node_class=replace(node.node_class, refuses_several=True))
        if (topology := self._free.topologies.get(node.name)) is not None:
            node = replace(node, node_class=replace(node.node_class, numa=replace(topology[0], free=topology[0].total)))
        return node.with_free(self._free.of(node), self.node_requests.cpu_left(node), kinds)

    def drop_node(self, name: str) -> None:
        self._nodes_as_read.pop(name, None)
        if (node := self.nodes.pop(name, None)) is not None:
            self._node_groups.replace(node, None)
            self.free_gpus.drop(name)
            self.devices.kinds.drop(name)
            self.overrun.discard(name)
            self.served_twice.discard(name)
            self.changes.note(name)

    def put_pod(self, document: Mapping[str, Any]) -> None:
        """Add or change a pod; only its GPU usage and its requests are kept.

        Raises MalformedPod, QuantityError.
        """
        pod = pod_object(document)
        self.take_pod(pod.metadata.uid, read_pod_record(pod, self.knowledge, document=document))

    def _take_refusal(self, uid: str, node: str | None) -> None:
        """Set the node whose device plugin refused several units of a shared GPU to a pod; None for no such pod.

        Until the pod is deleted, the node serves no other pod that asks for several units: it would fail as well, and
        be created anew by its controller, again and again.
        """
        before = self._refusals.pop(uid, None)
        if node is not None:
            self._refusals[uid] = node
        if before != node:
            self._rebuild([name for name in (before, node) if name is not None])

    def take_pod(self, uid: str, record: PodRecord) -> None:
        """Set what is known of a pod, bound, nominated or pending."""
        requested, usage = self.node_requests.put(uid, record.requests), record.usage
        if usage is None:
            waits = record.pending is not None
            self._update_free(self.allocations.unbind(uid) if waits else self.allocations.drop(uid))
        else:
            self._update_free(self.allocations.put(usage) if usage.bound else self.allocations.nominate(usage))
        self._take_rest(uid, record, requested)

    def drop_pod(self, uid: str) -> None:
        """Remove a pod, and any promise to it."""
        requested = self.node_requests.put(uid, None)
        self._update_free(self.allocations.drop(uid))
        self._take_rest(uid, NO_POD, requested)

    def _take_rest(self, uid: str, record: PodRecord, requested: set[str]) -> None:
        """Set what is known of a pod besides the GPUs that it holds. `requested` are nodes whose requests changed."""
        self._update_cpu(requested)
        self.claiming_pods.put(uid, record.place)
        self.pending_pods.put(uid, record.pending)
        self.pod_counts.put(uid, record.shape)
        self._take_refusal(uid, record.refused_by)

    def waiting_pods(self) -> list[PendingPod]:
        """List the pending pods that ask for GPUs, by resource or by claim."""
        return [pod for pod in self.pending_pods.values() if pod.gpu_requests or self.devices.may_claim_gpus(pod)]

    def promise(self, usage: GPUUsage, now: float) -> None:
        """Promise a node to a pod. `now` is of a monotonic clock."""
        self._update_free(self.allocations.promise(usage, now + PROMISE_SECONDS))

    def release(self, uid: str, now: float) -> None:
        """Remove the promise to a pod that is asked about again, and all expired promises."""
        self._update_free(self.allocations.release(uid, now))

    def group_cliques(self, pod: Pod) -> frozenset[str]:
        """Return the NVLink domains of other pods of a Pod's group, bound or promised."""
        group = workload_of(pod.namespace, pod.labels, pod.pod_group)
        if not group:
            return frozenset()
        names = (*self.allocations.nodes_of(group, pod.uid), *self.claiming_pods.nodes_of(group, pod.uid))
        nodes = map(self.nodes.get, names)
        return frozenset(node.clique for node in nodes if node is not None and node.clique)

    def unpromised(self, uid: str) -> Node | None:
        """Return the node that is promised to a pod as it would be without the promise; None if there is none."""
        name = self.allocations.promised(uid)
        return self.node_without_pods(name, (uid,)) if name is not None else None

    def node_without_pods(self, name: str, uids: Container[str]) -> Node | None:
        """Return a node as it would be without these pods, but for units, which kube-scheduler counts itself.

        Unknown UIDs free nothing. None for an unknown node.
        """
        if (node := self.nodes.get(name)) is None or not (node.free.memory or node.free.twice or node.free.numa):
            return node
        memory, twice, numa = (
            self._free.memory(node, uids),
            self._free.twice.of(node, uids),
            self._free.numa(node, uids),
        )
        return replace(node, free=replace(node.free, memory=memory, twice=twice, numa=numa))

    def put_health(self, name: str, health: Health | None) -> None:
        """Set the health of a node's GPUs; None for unknown."""
        before = self._health.pop(name, HEALTHY)
        if health is not None:
            self._health[name] = health
        after = health or HEALTHY
        if (before.ill, before.ailing) != (after.ill, after.ailing):
            self._rebuild([name])

    def put_topology(self, name: str, zones: NUMAZones | None) -> None:
        """Set the devices of a node by NUMA node; None where no NodeResourceTopology says them any more."""
        if zones is None:
            self._free.topologies.pop(name, None)
        else:
            self._free.put_topology(name, zones)
        self._rebuild([name])

    def put_namespace(self, name: str, namespace: Namespace) -> None:
        self.namespaces.put(name, namespace.metadata.labels or {})
        self.admission_objects.put("Namespace", name, namespace)

    def put_runtime_class(self, name: str, runtime_class: RuntimeClass) -> None:
        self.runtime_classes = {**(self.runtime_classes or {}), name: runtime_class}
        self._fleet = None

    def drop_runtime_class(self, name: str) -> None:
        self.runtime_classes = {key: value for key, value in (self.runtime_classes or {}).items() if key != name}
        self._fleet = None

    def runtime_classes_listed(self) -> None:
        """Note that all RuntimeClasses are known, even if there is none."""
        self.runtime_classes = self.runtime_classes or {}
        self._fleet = None

    def intern(self, node_class: NodeClass) -> NodeClass:
        """Return the shared object of equal node classes, so that verdicts can be cached by identity."""
        if len(self._classes) > 2 * len(self.nodes) + CLASSES_SPARE and node_class not in self._classes:
            self._classes = {node.node_class: node.node_class for node in self.nodes.values()}
            self.changes.reset()  # a new class may get the id of a dropped one
        return self._classes.setdefault(node_class, node_class)

    def fleet(self) -> FleetFacts:
        """Return what admission reads of the fleet: groups of GPU nodes, and runtime classes."""
        if self._fleet is None or self._node_groups.changed:
            self._node_groups.changed = False
            self._fleet = self._node_groups.facts(self.runtime_classes)
        return self._fleet

    def _update_free(self, names: Iterable[str]) -> None:
        for name in names:
            node = self.nodes.get(name)
            if node is not None:
                self._change(node, self._free.of(node))

    def _update_cpu(self, names: Iterable[str]) -> None:
        """Update only the free CPU of nodes, for pods without GPUs: no free GPU changes, and so no verdict."""
        for name in names:
            node = self.nodes.get(name)
            if node is not None:
                self._change(node, node.free)

    def _change(self, node: Node, free: FreeResources) -> None:
        cpu = self.node_requests.cpu_left(node)
        if free is not node.free and free != node.free:
            self._store(node.with_free(free, cpu))
        elif cpu != node.free_cpu_milli:  # admission's groups do not count CPU
            self.nodes[node.name] = node.with_free(node.free, cpu)
            self.changes.note(node.name)

    def _rebuild(self, names: Iterable[str]) -> None:
        """Rebuild nodes from what was read."""
        for name in names:
            if (node_as_read := self._nodes_as_read.get(name)) is not None:
                node, before = self.add_known_facts(node_as_read), self.nodes.get(name)
                if before is None or before.node_class is not node.node_class:
                    node_class = self.intern(node.node_class)
                    node = node if node_class is node.node_class else replace(node, node_class=node_class)
                self._store(node)

    def _store(self, node: Node) -> None:
        before = self.nodes.get(node.name)
        self._node_groups.replace(before, node)
        self.nodes[node.name] = node
        self.free_gpus.put(node)
        if node.free.memory or node.name in self.overrun:
            over = any(mib < 0 for mib in node.free.memory.values())
            (self.overrun.add if over else self.overrun.discard)(node.name)  # for doctor and a metric
        (self.served_twice.add if node.free.twice else self.served_twice.discard)(node.name)
        self.changes.note(node.name)
