# SPDX-License-Identifier: Apache-2.0
"""State: the one mutable index of nodes and what holds their GPUs, folded in event by event.

Every change costs the same whatever the fleet's size. Readers on the event loop use it directly and never
await in between; nothing here locks, because nothing else runs meanwhile (DESIGN §2).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from app.admission.fleet import Fleet
from app.carving import left
from app.claims import Claim, Claimed, claimed_classes, read_claim, read_claim_template
from app.cluster.census import Census
from app.cluster.claimindex import ClaimIndex
from app.cluster.deviceindex import DeviceIndex
from app.cluster.groups import remove
from app.holdings import Holding, read_holding
from app.knowledge.families import Family
from app.knowledge.tables import Knowledge
from app.nodeclass import Free, Node, NodeClass
from app.nodes import read_node, with_devices
from app.pods import member
from app.slices import ResourceSlice, read_device_class, read_slice

CHANGES_KEPT = 20_000
"""Changed names remembered for readers that catch up; one that is further behind starts over. Four times the
largest fleet of the budgets (5,000 nodes)."""


class State:
    """Nodes, holdings, namespaces and runtime classes as last seen.

    `generation` counts changes of nodes; `changed_since` names them. `runtime_classes` is None until listed.
    """

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge
        self.nodes: dict[str, Node] = {}
        self._read: dict[str, Node] = {}
        self._devices = DeviceIndex(knowledge)
        self._device_classes: dict[str, str] = {}
        self.claims = ClaimIndex()
        self.claim_templates = ClaimIndex()
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.runtime_classes: dict[str, Mapping[str, str]] | None = None
        self._census = Census(knowledge)
        self.generation = 0
        self._changes: list[str] = []
        self._first_change = 0
        self._classes: dict[NodeClass, NodeClass] = {}
        self._holdings: dict[str, Holding] = {}
        self._by_node: dict[str, dict[str, Holding]] = {}
        self._fleet: Fleet | None = None

    def put_node(self, document: Mapping[str, Any]) -> None:
        """Take a node in, new or changed.

        Raises MalformedPod.
        """
        self.take_node(read_node(document, self.knowledge))

    def take_node(self, node: Node) -> None:
        """Take in a node as read; one that is the very same, a heartbeat, changes nothing."""
        if self._read.get(node.name) is not node:
            self._read[node.name] = node
            self._renew(node.name)

    def drop_node(self, name: str) -> None:
        """Forget a node."""
        self._read.pop(name, None)
        known = self.nodes.pop(name, None)
        if known is not None:
            self._census.replace(known, None)
            self._note(name)

    def put_pod(self, document: Mapping[str, Any]) -> None:
        """Take a pod in, new or changed; only what it holds of GPUs is kept.

        Raises MalformedPod, QuantityError.
        """
        holding = read_holding(document, self.knowledge)
        if holding is None:
            metadata = member(document, "metadata", dict, "") or {}
            self.drop_pod(member(metadata, "uid", str, "metadata.") or "")
        else:
            self.take_holding(holding)

    def take_holding(self, holding: Holding) -> None:
        """Take in what a pod holds."""
        if self._holdings.get(holding.uid) != holding:
            self.drop_pod(holding.uid)
            self._holdings[holding.uid] = holding
            self._by_node.setdefault(holding.node, {})[holding.uid] = holding
            self._recount(holding.node)

    def drop_pod(self, uid: str) -> None:
        """Forget a pod."""
        holding = self._holdings.pop(uid, None)
        if holding is not None:
            remove(self._by_node, holding.node, uid)
            self._recount(holding.node)

    def put_slice(self, document: Mapping[str, Any]) -> None:
        """Take a ResourceSlice in, new or changed.

        Raises MalformedPod.
        """
        self.take_slice(read_slice(document))

    def take_slice(self, found: ResourceSlice) -> None:
        """Take in a ResourceSlice as read."""
        for node in self._devices.put(found):
            self._renew(node)

    def drop_slice(self, name: str) -> None:
        """Forget a ResourceSlice."""
        for node in self._devices.drop(name):
            self._renew(node)

    def put_device_class(self, document: Mapping[str, Any]) -> None:
        """Take a DeviceClass in, new or changed; it touches every node that has slices.

        Raises MalformedPod.
        """
        self.take_device_class(*read_device_class(document))

    def take_device_class(self, name: str, resource: str | None) -> None:
        """Take in which extended resource a DeviceClass serves; None: none."""
        if self._device_classes.get(name) == resource:
            return
        self._device_classes.pop(name, None)
        if resource:
            self._device_classes[name] = resource
        for node in self._devices.nodes():
            self._renew(node)

    def drop_device_class(self, name: str) -> None:
        """Forget a DeviceClass."""
        self.take_device_class(name, None)

    def put_claim(self, document: Mapping[str, Any]) -> None:
        """Take a ResourceClaim in, new or changed.

        Raises MalformedPod.
        """
        self.take_claim(read_claim(document))

    def take_claim(self, claim: Claim) -> None:
        """Take in a ResourceClaim as read; it touches the node whose devices it was given or gives back."""
        self.claims.put(claim)
        for node in self._devices.give(claim.key, claim.devices):
            self._recount(node)

    def drop_claim(self, key: str) -> None:
        """Forget a ResourceClaim, by namespace/name."""
        self.claims.drop(key)
        for node in self._devices.give(key):
            self._recount(node)

    def put_claim_template(self, document: Mapping[str, Any]) -> None:
        """Take a ResourceClaimTemplate in, new or changed.

        Raises MalformedPod.
        """
        self.claim_templates.put(read_claim_template(document))

    def claimed(self, spec: Mapping[str, Any], namespace: str) -> Claimed:
        """Say which GPUs a pod claims through DRA (S13).

        Raises MalformedPod.
        """
        return claimed_classes(spec, namespace, self.claims.get, self.claim_templates.get, self.family_of_device_class)

    def family_of_device_class(self, name: str) -> Family | None:
        """Find the family of a DeviceClass: by its name, or by the extended resource that it serves."""
        families = self.knowledge.families
        return families.of_device_class(name) or families.of(self._device_classes.get(name, ""))

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

    def holding(self, uid: str) -> Holding | None:
        """Say what a pod holds; None if nothing that is known."""
        return self._holdings.get(uid)

    def holdings(self, node: str) -> tuple[Holding, ...]:
        """List what pods hold on a node."""
        return tuple(self._by_node.get(node, {}).values())

    def intern(self, node_class: NodeClass) -> NodeClass:
        """Give the one object that stands for all equal classes, so that verdicts can be kept by identity."""
        return self._classes.setdefault(node_class, node_class)

    def changed_since(self, generation: int) -> Iterable[str] | None:
        """Name the nodes changed after a generation (repeats possible); None if that is too long ago."""
        if generation < self._first_change:
            return None
        return self._changes[generation - self._first_change :]

    def fleet(self) -> Fleet:
        """Sum up what admission looks at: kinds of GPU nodes, and the runtime classes."""
        if self._fleet is None or self._census.changed:
            self._census.changed = False
            census = self._census
            self._fleet = Fleet(census.kin(), self.runtime_classes, census.provisioners(), census.free)
        return self._fleet

    def _free(self, node: Node) -> Free:
        used: dict[str, int] = {}
        for holding in self._by_node.get(node.name, {}).values():
            for resource, amount in holding.units:
                used[resource] = used.get(resource, 0) + amount
        units = {resource: amount - used.get(resource, 0) for resource, amount in node.node_class.offered}
        shown = self._devices.gpus(node.name)
        if not shown.all or node.node_class.plugged:
            return replace(node.free, units=units)
        gpus, layouts = left(shown, self._devices.held(node.name))
        return replace(node.free, units=units, gpus=gpus, layouts=layouts)

    def _recount(self, name: str) -> None:
        node = self.nodes.get(name)
        if node is not None:
            self._set(replace(node, free=self._free(node)))

    def _renew(self, name: str) -> None:
        """Put a node together again: as read, with the devices of its slices, less what pods and claims hold."""
        node = self._read.get(name)
        if node is None:
            return
        served = frozenset(self._device_classes.values())
        node = with_devices(node, self._devices.devices(name), served, self.knowledge)
        self._set(replace(node, node_class=self.intern(node.node_class), free=self._free(node)))

    def _set(self, node: Node) -> None:
        known = self.nodes.get(node.name)
        self._census.replace(known, node)
        self.nodes[node.name] = node
        self._note(node.name)

    def _note(self, name: str) -> None:
        self.generation += 1
        self._changes.append(name)
        if len(self._changes) > CHANGES_KEPT:
            kept = self._changes[CHANGES_KEPT // 2 :]
            self._first_change += len(self._changes) - len(kept)
            self._changes = kept
