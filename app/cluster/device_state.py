# SPDX-License-Identifier: Apache-2.0
"""The part of State about DRA: slices, DeviceClasses, claims, templates and taint rules, read in two ways (F135, S13).

What nodes offer and which GPUs a pod claims is read of every object at once, since filters and admission need it. What
the allocator needs, when a pod with claims is explained, is in `dra`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from app.cluster.claim_index import ClaimIndex
from app.cluster.device_index import DeviceIndex
from app.cluster.device_kind_index import DeviceKindIndex
from app.cluster.dra_index import DRAIndex
from app.dra.claim_reading import read_class, read_resource_claim, read_resource_claim_template, read_taint_rule
from app.dra.claim_warnings import claim_warnings
from app.dra.claims import ResourceClaim
from app.dra.classes import DeviceClass as WholeClass
from app.dra.classes import DeviceTaintRule
from app.dra.device_kinds import DeviceKinds
from app.dra.devices import PoolSlice
from app.dra.slice_reading import read_pool_slice
from app.knowledge.tables import Knowledge
from app.kube.device_classes import DeviceClassIndex
from app.kube.pending_pods import PendingPod
from app.kube.pods import Pod
from app.kube.resource_claims import (
    Claim,
    ClaimedDevices,
    DeviceChoice,
    DeviceRequest,
    claimed_devices,
    read_claim,
    read_claim_template,
)
from app.kube.resource_slices import NVIDIA_DRIVER, DeviceClass, ResourceSlice, read_device_class, read_slice
from app.nodes.model import Node

SliceFacts = tuple[ResourceSlice, PoolSlice]
ClassFacts = tuple[DeviceClass, WholeClass]
ClaimFacts = tuple[Claim, ResourceClaim]
"""An object as filters and admission read it, and as the allocator does."""

NodesChanged = Callable[[Iterable[str]], None]
"""Called with the names of nodes."""


def read_slice_facts(document: Mapping[str, Any]) -> SliceFacts:
    """Read a ResourceSlice. Raises MalformedPod, QuantityError."""
    return read_slice(document), read_pool_slice(document)


def read_class_facts(document: Mapping[str, Any]) -> ClassFacts:
    """Read a DeviceClass. Raises MalformedPod."""
    return read_device_class(document), read_class(document)


def read_claim_facts(document: Mapping[str, Any]) -> ClaimFacts:
    """Read a ResourceClaim. Raises MalformedPod, QuantityError."""
    return read_claim(document), read_resource_claim(document)


def read_template_facts(document: Mapping[str, Any]) -> ClaimFacts:
    """Read a ResourceClaimTemplate. Raises MalformedPod, QuantityError."""
    return read_claim_template(document), read_resource_claim_template(document)


class DeviceState:
    """Slices, classes, claims and templates as last seen: `state.devices`.

    `put_…` methods read an object, `take_…` methods take it as read. `index` has what nodes offer, `kinds` the kinds of
    their devices, and `dra` what the allocator needs.
    """

    def __init__(self, knowledge: Knowledge, rebuild: NodesChanged, update_free: NodesChanged) -> None:
        """Begin without devices. `rebuild` builds nodes anew of what was read, `update_free` counts what is free."""
        self.index = DeviceIndex(knowledge)
        self.classes = DeviceClassIndex(knowledge.families)
        self.claims = ClaimIndex()
        self.claim_templates = ClaimIndex()
        self.dra = DRAIndex()
        self.kinds = DeviceKindIndex(self.index, self.dra, knowledge)
        self._rebuild, self._update_free = rebuild, update_free

    def put_slice(self, document: Mapping[str, Any]) -> None:
        """Add or change a ResourceSlice. Raises MalformedPod, QuantityError."""
        self.take_slice(read_slice_facts(document))

    def take_slice(self, facts: SliceFacts) -> None:
        """Add or change a ResourceSlice as read."""
        self.dra.put_slice(facts[1])
        if facts[0].node is None and facts[1].driver == NVIDIA_DRIVER:  # it may reach every node
            self._devices_changed()
        self._rebuild_devices(self.index.put(facts[0]))

    def drop_slice(self, name: str) -> None:
        """Remove a ResourceSlice."""
        self.dra.drop_slice(name)
        self._rebuild_devices(self.index.drop(name))

    def put_device_class(self, document: Mapping[str, Any]) -> None:
        """Add or change a DeviceClass, which affects every node with slices. Raises MalformedPod."""
        self.take_device_class(read_class_facts(document))

    def take_device_class(self, facts: ClassFacts) -> None:
        """Add or change a DeviceClass as read."""
        changed = self.dra.classes.get(facts[1].name) != facts[1]
        self.dra.put_class(facts[1])
        if self.classes.put(facts[0]) or changed:
            self._classes_changed()

    def drop_device_class(self, name: str) -> None:
        """Remove a DeviceClass."""
        self.dra.drop_class(name)
        if self.classes.drop(name):
            self._classes_changed()

    def serving_on(self, kinds: DeviceKinds | None) -> Iterable[DeviceClass]:
        """List the DeviceClasses that serve an extended resource and may take a device of a node with these kinds.

        Where no kind is known, as while the driver is still publishing the node's devices, all of them may.
        """
        serving = [device_class for device_class in self.classes.all() if device_class.resource]
        if kinds is None or not kinds.kinds:
            return serving
        return [one for one in serving if kinds.select(DeviceChoice(one.name, 1), tolerate_all=True)]

    def _classes_changed(self) -> None:
        """Select devices anew on every node that has some."""
        self.kinds.start_anew()
        self._rebuild(self.index.nodes())

    def _rebuild_devices(self, names: set[str]) -> None:
        """Rebuild nodes whose devices have changed."""
        for name in names:
            self.kinds.drop(name)
        self._rebuild(names)

    def put_claim(self, document: Mapping[str, Any]) -> None:
        """Add or change a ResourceClaim. Raises MalformedPod, QuantityError."""
        self.take_claim(read_claim_facts(document))

    def take_claim(self, facts: ClaimFacts) -> None:
        """Add or change a ResourceClaim as read; it affects the nodes of its devices."""
        claim = facts[0]
        before = self._nodes_of_claim(claim.key)
        self.dra.put_claim(facts[1])
        self.claims.put(claim)
        nodes = before | self._nodes_of_claim(claim.key)
        self._update_free(nodes | self.index.allocate(claim.key, claim.devices))

    def drop_claim(self, key: str) -> None:
        """Remove a ResourceClaim, by namespace/name."""
        nodes = self._nodes_of_claim(key)
        self.dra.drop_claim(key)
        self.claims.drop(key)
        self._update_free(nodes | self.index.allocate(key))

    def _nodes_of_claim(self, key: str) -> set[str]:
        """Name the nodes of the devices that a claim has."""
        slices = (one for pool in self.dra.pools_of_claim(key) for one in self.dra.pools.slices_of(pool))
        return {one.nodes.name for one in slices if one.nodes is not None and one.nodes.name}

    def put_claim_template(self, document: Mapping[str, Any]) -> None:
        """Add or change a ResourceClaimTemplate. Raises MalformedPod, QuantityError."""
        self.take_claim_template(read_template_facts(document))

    def take_claim_template(self, facts: ClaimFacts) -> None:
        """Add or change a ResourceClaimTemplate as read."""
        self.dra.put_template(facts[1])
        self.claim_templates.put(facts[0])

    def drop_claim_template(self, key: str) -> None:
        """Remove a ResourceClaimTemplate, by namespace/name."""
        self.dra.drop_template(key)
        self.claim_templates.drop(key)

    def has_template(self, document: Mapping[str, Any]) -> bool:
        """Tell whether a ResourceClaimTemplate is there as it is written, with the DeviceClasses that it names."""
        return self.dra.has_template(read_resource_claim_template(document))

    def put_taint_rule(self, document: Mapping[str, Any]) -> None:
        """Add or change a DeviceTaintRule. Raises MalformedPod."""
        self.take_taint_rule(read_taint_rule(document))

    def take_taint_rule(self, rule: DeviceTaintRule) -> None:
        """Add or change a DeviceTaintRule as read."""
        before = self.dra.drop_taint_rule(rule.name)
        self.dra.put_taint_rule(rule)
        if before != rule:
            self._taints_changed(before, rule)

    def drop_taint_rule(self, name: str) -> None:
        """Remove a DeviceTaintRule."""
        self._taints_changed(self.dra.drop_taint_rule(name))

    def _taints_changed(self, *rules: DeviceTaintRule | None) -> None:
        """Sort the devices by kind anew that rules taint; most rules name a pool, which is that of one node."""
        pools = [rule.pool for rule in rules if rule is not None]
        if None in pools:
            self._devices_changed()
        else:
            self._rebuild_devices({node for pool in pools if pool for node in self.index.nodes_of_pool(pool)})

    def _devices_changed(self) -> None:
        """Sort the devices of every node by kind anew."""
        self.kinds.drop_all()
        self._rebuild(self.index.nodes())

    def may_claim_gpus(self, pod: PendingPod) -> bool:
        """Tell whether claims of a pod may be for GPUs; False where all are known and of other vendors' drivers."""
        keys = ((f"{pod.namespace}/{claim}", f"{pod.namespace}/{template}") for claim, template in pod.claims)
        all_requests = [self.claims.get(claim) or self.claim_templates.get(template) for claim, template in keys]
        classes = {
            choice.device_class for requests in all_requests for request in requests or () for choice in request.choices
        }
        return None in all_requests or any(map(self.classes.may_give_gpus, classes))

    def claim_warnings(self, requests: tuple[DeviceRequest, ...], tolerated_keys: Collection[str]) -> tuple[str, ...]:
        """Say what keeps device requests from every device of the cluster (app/dra/claim_warnings.py)."""
        return claim_warnings(self.kinds.fleet(), requests, tolerated_keys)

    def devices_held_on(self, node: Node) -> Mapping[str, int]:
        """Count the devices of a node that claims have, by namespace; a device with two shares counts twice."""
        claims = (claim for device in self.kinds.devices_of(node) for claim in self.dra.holders(device))
        return Counter(claim.partition("/")[0] for claim in claims)

    def claimed(self, pod: Pod) -> ClaimedDevices:
        """Return the GPUs that a pod claims through DRA (S13)."""
        classes = self.classes
        return claimed_devices(pod, self.claims.get, self.claim_templates.get, classes.family, classes.serving)
