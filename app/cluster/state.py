# SPDX-License-Identifier: Apache-2.0
"""State: the one mutable index of nodes and what holds their GPUs, folded in event by event.

Every change costs the same whatever the fleet's size. Readers on the event loop use it directly and never await
in between; nothing here locks, because nothing else runs meanwhile (docs/reference/listeners.md#state).
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import Any

from app.admission.fleet_facts import FleetFacts
from app.cluster.change_log import ChangeLog
from app.cluster.claim_index import ClaimIndex
from app.cluster.device_index import DeviceIndex
from app.cluster.gpu_allocations import NOMINATED, NOTE_SECONDS, GPUAllocations
from app.cluster.node_groups import NodeGroups
from app.cluster.node_requests import NodeRequests
from app.cluster.pending_index import PendingPodIndex
from app.knowledge.tables import Knowledge
from app.kube.device_classes import DeviceClassIndex
from app.kube.gpu_usage import GPUUsage, read_bound_requests, read_gpu_usage
from app.kube.pending_pods import read_pending_pod
from app.kube.pod_requests import PodRequests
from app.kube.pods import Pod, workload_group
from app.kube.resource_claims import Claim, ClaimedDevices, claimed_devices, read_claim, read_claim_template
from app.kube.resource_slices import DeviceClass, ResourceSlice, read_device_class, read_slice
from app.nodes.dra_devices import remaining_capacity
from app.nodes.gpu_health import HEALTHY, Health
from app.nodes.model import FreeResources, Node, NodeClass
from app.nodes.reading import read_node, with_devices
from app.values.json_members import member

CLASSES_SPARE = 1024
"""Classes kept beyond two a node, before those that no node has are let go; a fleet has dozens, at some 2 kB each."""


class State:
    """Nodes, holdings, namespaces and runtime classes as last seen.

    `changes` tells which nodes are other than they were. `runtime_classes` is None until listed.
    `overrun`: names of nodes on which pods declare more memory of shared GPUs than there is.
    """

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge
        self.nodes: dict[str, Node] = {}
        self._read: dict[str, Node] = {}
        self._devices = DeviceIndex(knowledge)
        self._device_classes = DeviceClassIndex(knowledge.families)
        self.claims = ClaimIndex()
        self.claim_templates = ClaimIndex()
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.runtime_classes: dict[str, Mapping[str, str]] | None = None
        self._node_groups = NodeGroups(knowledge)
        self.changes = ChangeLog()
        self._classes: dict[NodeClass, NodeClass] = {}
        self._occupancy = GPUAllocations()
        self._health: dict[str, Health] = {}
        self.overrun: set[str] = set()
        self.bookings = NodeRequests()
        self.waiting = PendingPodIndex()
        self._fleet: FleetFacts | None = None

    def put_node(self, document: Mapping[str, Any]) -> None:
        """Take a node in, new or changed.

        Raises MalformedPod.
        """
        self.take_node(read_node(document, self.knowledge))

    def take_node(self, node: Node) -> None:
        """Take in a node as read; one that is the very same, a heartbeat, changes nothing."""
        if self._read.get(node.name) is not node:
            self._read[node.name] = node
            self._renew([node.name])

    def complete(self, node: Node) -> Node:
        """Add to a node as read what else is known: its devices, the health of its GPUs, what pods and claims hold."""
        node = with_devices(node, self._devices.devices(node.name), self._device_classes.all(), self.knowledge)
        if (health := self._health.get(node.name)) is not None:
            node = replace(node, node_class=replace(node.node_class, ill=health.ill, ailing=health.ailing))
        return replace(node, free=self._free(node))

    def drop_node(self, name: str) -> None:
        """Forget a node."""
        self._read.pop(name, None)
        if (known := self.nodes.pop(name, None)) is not None:
            self._node_groups.replace(known, None)
            self.overrun.discard(name)
            self.changes.note(name)

    def put_pod(self, document: Mapping[str, Any]) -> None:
        """Take a pod in, new or changed; only what it holds of GPUs is kept.

        Raises MalformedPod, QuantityError.
        """
        uid = member(member(document, "metadata", dict, "") or {}, "uid", str, "metadata.") or ""
        self.take_pod(uid, read_gpu_usage(document, self.knowledge), read_bound_requests(document))
        self.waiting.take(uid, read_pending_pod(document, self.knowledge, keep_document=True))

    def take_pod(self, uid: str, holding: GPUUsage | None, booking: PodRequests | None) -> None:
        """Take in what a pod holds, or is to hold where it is nominated, and what it has booked; None: nothing."""
        touched = self.bookings.take(uid, booking)
        if holding is None:
            touched.update(self._occupancy.unbind(uid))
        elif holding.bound:
            touched.update(self._occupancy.take(holding))
        else:
            touched.update(self._occupancy.promise(holding, NOMINATED))
        self._recount(touched)

    def drop_pod(self, uid: str) -> None:
        """Forget a pod."""
        self._recount({*self._occupancy.drop(uid), *self.bookings.take(uid, None)})
        self.waiting.take(uid, None)

    def promise(self, holding: GPUUsage, now: float) -> None:
        """Note where a pod will be, and what it will hold there. `now`: of a monotonic clock."""
        self._recount(self._occupancy.promise(holding, now + NOTE_SECONDS))

    def release(self, uid: str, now: float) -> None:
        """Forget what is promised to a pod that asks again, and promises that are too old."""
        self._recount(self._occupancy.release(uid, now))

    def group_cliques(self, pod: Pod) -> frozenset[str]:
        """Name the NVLink domains in which other pods of a Pod's group are, or will be."""
        group = workload_group(pod.namespace, pod.labels)
        nodes = (self.nodes.get(name) for name in self._occupancy.nodes_of(group, pod.uid)) if group else ()
        return frozenset(node.clique for node in nodes if node is not None and node.clique)

    def unpromised(self, uid: str) -> Node | None:
        """Give the node that is promised to a pod as it would be without the promise; None where none is."""
        name = self._occupancy.promised(uid)
        return self.without(name, (uid,)) if name is not None else None

    def without(self, name: str, uids: Container[str]) -> Node | None:
        """Give a node as it would be with these pods gone, but for the units: those kube-scheduler counts itself.

        UIDs that we do not know free nothing. None for a node that is not known.
        """
        if (node := self.nodes.get(name)) is None or not node.free.memory:
            return node
        return replace(node, free=replace(node.free, memory=self._memory(node, uids)))

    def put_health(self, name: str, health: Health | None) -> None:
        """Take in what is reported of the health of a node's GPUs; None: nothing is known."""
        before = self._health.pop(name, HEALTHY)
        if health is not None:
            self._health[name] = health
        after = health or HEALTHY
        if (before.ill, before.ailing) != (after.ill, after.ailing):
            self._renew([name])

    def put_slice(self, document: Mapping[str, Any]) -> None:
        """Take a ResourceSlice in, new or changed. Raises MalformedPod."""
        self.take_slice(read_slice(document))

    def take_slice(self, found: ResourceSlice) -> None:
        """Take in a ResourceSlice as read."""
        self._renew(self._devices.put(found))

    def drop_slice(self, name: str) -> None:
        """Forget a ResourceSlice."""
        self._renew(self._devices.drop(name))

    def put_device_class(self, document: Mapping[str, Any]) -> None:
        """Take a DeviceClass in, new or changed; it touches every node that has slices.

        Raises MalformedPod.
        """
        self.take_device_class(read_device_class(document))

    def take_device_class(self, found: DeviceClass) -> None:
        """Take a DeviceClass in as read."""
        if self._device_classes.put(found):
            self._renew(self._devices.nodes())

    def drop_device_class(self, name: str) -> None:
        """Forget a DeviceClass."""
        if self._device_classes.drop(name):
            self._renew(self._devices.nodes())

    def put_claim(self, document: Mapping[str, Any]) -> None:
        """Take a ResourceClaim in, new or changed. Raises MalformedPod."""
        self.take_claim(read_claim(document))

    def take_claim(self, claim: Claim) -> None:
        """Take in a ResourceClaim as read; it touches the node whose devices it was given or gives back."""
        self.claims.put(claim)
        self._recount(self._devices.give(claim.key, claim.devices))

    def drop_claim(self, key: str) -> None:
        """Forget a ResourceClaim, by namespace/name."""
        self.claims.drop(key)
        self._recount(self._devices.give(key))

    def put_claim_template(self, document: Mapping[str, Any]) -> None:
        """Take a ResourceClaimTemplate in, new or changed. Raises MalformedPod."""
        self.claim_templates.put(read_claim_template(document))

    def claimed(self, pod: Pod) -> ClaimedDevices:
        """Say which GPUs a pod claims through DRA (S13)."""
        classes = self._device_classes
        return claimed_devices(pod, self.claims.get, self.claim_templates.get, classes.family, classes.serving)

    def put_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """Take a namespace's labels in."""
        self.namespaces[name] = labels

    def drop_namespace(self, name: str) -> None:
        """Forget a namespace."""
        self.namespaces.pop(name, None)

    def put_runtime_class(self, name: str, selector: Mapping[str, str] | None = None) -> None:
        """Take in that a RuntimeClass exists, and the node selector that it adds to pods."""
        self.runtime_classes = {**(self.runtime_classes or {}), name: selector or {}}
        self._fleet = None

    def drop_runtime_class(self, name: str) -> None:
        """Forget a RuntimeClass."""
        self.runtime_classes = {key: each for key, each in (self.runtime_classes or {}).items() if key != name}
        self._fleet = None

    def runtime_classes_listed(self) -> None:
        """Note that all RuntimeClasses are known, be it none."""
        self.runtime_classes = self.runtime_classes or {}
        self._fleet = None

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        """Give a namespace's labels; an unknown one has the label that every namespace has."""
        return self.namespaces.get(name) or {"kubernetes.io/metadata.name": name}

    def holding(self, uid: str) -> GPUUsage | None:
        """Say what a pod holds; None if nothing that is known."""
        return self._occupancy.get(uid)

    def holdings(self, node: str) -> tuple[GPUUsage, ...]:
        """List what pods hold on a node."""
        return self._occupancy.bound(node)

    def booked(self, node: str) -> Mapping[str, int]:
        """Say what bound pods have booked of a node's resources of every kind."""
        return self.bookings.used.get(node, {})

    def intern(self, node_class: NodeClass) -> NodeClass:
        """Give the one object that stands for all equal classes, so that verdicts can be kept by identity."""
        if len(self._classes) > 2 * len(self.nodes) + CLASSES_SPARE and node_class not in self._classes:
            self._classes = {each.node_class: each.node_class for each in self.nodes.values()}
            self.changes.forget()  # an id may come back now, as that of another class
        return self._classes.setdefault(node_class, node_class)

    def fleet(self) -> FleetFacts:
        """Sum up what admission looks at: kinds of GPU nodes, and the runtime classes."""
        if self._fleet is None or self._node_groups.changed:
            self._node_groups.changed = False
            node_groups = self._node_groups
            self._fleet = FleetFacts(
                node_groups.all(),
                self.runtime_classes,
                node_groups.provisioners(),
                node_groups.pools(),
                node_groups.free,
            )
        return self._fleet

    def _free(self, node: Node) -> FreeResources:
        used = self._occupancy.units(node.name)
        units = {resource: amount - used.get(resource, 0) for resource, amount in node.node_class.offered}
        free = replace(node.free, units=units, memory=self._memory(node), cpu_milli=self.bookings.cpu_left(node))
        shown = self._devices.gpus(node.name)
        if not shown.all or node.node_class.uses_device_plugin:
            return free
        gpus, layouts = remaining_capacity(shown, self._devices.held(node.name))
        return replace(free, gpus=gpus, layouts=layouts)

    def _memory(self, node: Node, without: Container[str] = ()) -> Mapping[str, int]:
        """Say how much memory of shared GPUs nobody has declared."""
        if not node.node_class.budgets:
            return {}
        declared = self._occupancy.declared(node.name, without)
        return {resource: total - declared.get(resource, 0) for resource, total in node.node_class.budgets}

    def _recount(self, names: Iterable[str]) -> None:
        for name in names:
            node = self.nodes.get(name)
            if node is not None and (free := self._free(node)) != node.free:
                self._set(replace(node, free=free))

    def _renew(self, names: Iterable[str]) -> None:
        """Put nodes together again."""
        for name in names:
            if (read := self._read.get(name)) is not None:
                node = self.complete(read)
                self._set(replace(node, node_class=self.intern(node.node_class)))

    def _set(self, node: Node) -> None:
        known = self.nodes.get(node.name)
        self._node_groups.replace(known, node)
        self.nodes[node.name] = node
        if node.free.memory or node.name in self.overrun:
            over = any(mib < 0 for mib in node.free.memory.values())
            (self.overrun.add if over else self.overrun.discard)(node.name)  # for doctor, and its gauge
        self.changes.note(node.name)
