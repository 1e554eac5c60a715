# SPDX-License-Identifier: Apache-2.0
"""The part of State about DRA: slices, DeviceClasses, claims, templates and taint rules, each read once.

Filters and admission ask what nodes offer and which GPUs a pod claims; the allocator, when a pod with claims is
explained, reads the same records whole.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from app.dra.device_kinds import DeviceKinds, claim_warnings, published_shares
from app.knowledge.tables import Knowledge
from app.kube.claimed_devices import (
    ClaimedDevices,
    DeviceChoice,
    DeviceChoices,
    PublishedShares,
    choice_of,
    claimed_devices,
)
from app.kube.device_classes import DeviceClass, DeviceTaintRule
from app.kube.device_models import NVIDIA_DRIVER, DeviceModel
from app.kube.devices import ResourceSlice
from app.kube.pending_pods import PendingPod
from app.kube.pods import Pod
from app.kube.records import read_record
from app.kube.resource_claims import DeviceRequest, ResourceClaim, ResourceClaimTemplate
from app.nodes.model import Node
from app.placement.scheduler_demand import HeldUnits
from app.world.device_index import DeviceIndex, DeviceKindIndex
from app.world.dra_index import DRAIndex

NodesChanged = Callable[[Iterable[str]], None]
"""Called with the names of nodes."""


class DeviceState:
    """Slices, classes, claims and templates as last seen: `state.devices`.

    `put_…` methods read an object, `take_…` methods take it as read. `index` has what nodes offer, `kinds` the kinds of
    their devices, and `dra` what the allocator needs.
    """

    def __init__(
        self, knowledge: Knowledge, rebuild: NodesChanged = lambda _: None, update_free: NodesChanged = lambda _: None
    ) -> None:
        """Begin without devices. `rebuild` builds nodes anew of what was read, `update_free` counts what is free."""
        self.knowledge = knowledge
        self.dra = DRAIndex(knowledge.families)
        self.classes = self.dra.class_index
        self.index = DeviceIndex(self.dra, knowledge)
        self.kinds = DeviceKindIndex(self.index, self.dra, knowledge)
        self._rebuild, self._update_free = rebuild, update_free
        self.on_allocated: Callable[[str, HeldUnits], None] = lambda _namespace, _held: None
        """Called with each claim that gets devices: its namespace and what it holds."""

    def put_slice(self, document: Mapping[str, Any]) -> None:
        """Add or change a ResourceSlice. Raises MalformedPod, QuantityError."""
        self.take_slice(read_record(ResourceSlice, document))

    def take_slice(self, resource_slice: ResourceSlice) -> None:
        before = self.dra.pools.get(resource_slice.name)
        self.dra.put_slice(resource_slice)
        if not resource_slice.node and resource_slice.driver == NVIDIA_DRIVER:  # it may reach every node
            self._devices_changed()
        self._rebuild_devices({one.node for one in (before, resource_slice) if one is not None and one.node})

    def drop_slice(self, name: str) -> None:
        before = self.dra.pools.get(name)
        self.dra.drop_slice(name)
        self._rebuild_devices({before.node} if before is not None and before.node else set())

    def put_device_class(self, document: Mapping[str, Any]) -> None:
        """Add or change a DeviceClass, which affects every node with slices. Raises MalformedPod."""
        self.take_device_class(read_record(DeviceClass, document))

    def take_device_class(self, device_class: DeviceClass) -> None:
        if self.classes.put(device_class):
            self._classes_changed()

    def drop_device_class(self, name: str) -> None:
        if self.classes.drop(name):
            self._classes_changed()

    def serving_on(self, kinds: DeviceKinds | None) -> Iterable[DeviceClass]:
        """List the DeviceClasses that serve an extended resource and may take a device of a node with these kinds.

        Where no kind is known, as while the driver is still publishing the node's devices, all of them may.
        """
        serving = [device_class for device_class in self.classes.by_name.values() if device_class.extended_resource]
        if kinds is None or not kinds.kinds:
            return serving
        return [one for one in serving if kinds.select(DeviceChoice(one.name, 1), tolerate_all=True)]

    def _classes_changed(self) -> None:
        """Select devices anew on every node that has some."""
        self.kinds.start_anew()
        self._rebuild(self.dra.pools.nodes())

    def _rebuild_devices(self, names: set[str]) -> None:
        for name in names:
            self.index.drop(name)
            self.kinds.drop(name)
        self._rebuild(names)

    def put_claim(self, document: Mapping[str, Any]) -> None:
        """Add or change a ResourceClaim. Raises MalformedPod, QuantityError."""
        self.take_claim(read_record(ResourceClaim, document))

    def take_claim(self, claim: ResourceClaim) -> None:
        """Add or change a ResourceClaim as read; it affects the nodes of its devices."""
        before, had = self._nodes_of_claim(claim.key), self.dra.pools_of_claim(claim.key)
        self.dra.put_claim(claim)
        self._update_free(before | self._nodes_of_claim(claim.key))
        if claim.allocation is not None and not had and not claim.extended:
            products = Counter(self.dra.products_of(claim))
            self.on_allocated(claim.key.partition("/")[0], tuple(((name,), units) for name, units in products.items()))

    def drop_claim(self, key: str) -> None:
        """Remove a ResourceClaim, by namespace/name."""
        nodes = self._nodes_of_claim(key)
        self.dra.drop_claim(key)
        self._update_free(nodes)

    def _nodes_of_claim(self, key: str) -> set[str]:
        """Name the nodes of the devices that a claim has."""
        slices = (one for pool in self.dra.pools_of_claim(key) for one in self.dra.pools.slices_of(pool))
        return {one.node for one in slices if one.node}

    def put_claim_template(self, document: Mapping[str, Any]) -> None:
        """Add or change a ResourceClaimTemplate. Raises MalformedPod, QuantityError."""
        self.take_claim_template(read_record(ResourceClaimTemplate, document).claim)

    def take_claim_template(self, template: ResourceClaim) -> None:
        self.dra.put_template(template)

    def drop_claim_template(self, key: str) -> None:
        """Remove a ResourceClaimTemplate, by namespace/name."""
        self.dra.drop_template(key)

    def has_template(self, document: Mapping[str, Any]) -> bool:
        """Tell whether a ResourceClaimTemplate is there as it is written, with the DeviceClasses that it names."""
        return self.dra.has_template(read_record(ResourceClaimTemplate, document).claim)

    def put_taint_rule(self, document: Mapping[str, Any]) -> None:
        """Add or change a DeviceTaintRule. Raises MalformedPod."""
        self.take_taint_rule(read_record(DeviceTaintRule, document))

    def take_taint_rule(self, rule: DeviceTaintRule) -> None:
        before = self.dra.drop_taint_rule(rule.metadata.name)
        self.dra.put_taint_rule(rule)
        if before is None or before.spec != rule.spec:
            self._taints_changed(before, rule)

    def drop_taint_rule(self, name: str) -> None:
        self._taints_changed(self.dra.drop_taint_rule(name))

    def _taints_changed(self, *rules: DeviceTaintRule | None) -> None:
        """Sort the devices by kind anew that rules taint; most rules name a pool, which is that of one node."""
        pools = [rule.selector.get("pool") for rule in rules if rule is not None]
        if None in pools:
            self._devices_changed()
        else:
            self._rebuild_devices({one.node for one in self.dra.pools.slices() if one.pool in pools and one.node})

    def _devices_changed(self) -> None:
        """Sort the devices of every node by kind anew."""
        self.kinds.drop_all()
        self._rebuild(self.dra.pools.nodes())

    def devices_claimed(self, pod: PendingPod) -> int:
        """Count the GPUs that the claims of a pending pod ask for; a claim that is not known counts as one."""
        keys = ((f"{pod.namespace}/{claim}", f"{pod.namespace}/{template}") for claim, template in pod.claims)
        specs = [self.dra.claim_spec(claim) or self.dra.template_spec(template) for claim, template in keys]
        requests = [choices for spec in specs if spec is not None for choices in spec.requests]
        gpus = (choices for choices in requests if self.classes.may_give_gpus(choices[0].device_class))
        return specs.count(None) + sum(max(choice.count for choice in choices) for choices in gpus)

    def allocated_to(self, pod: Pod) -> int:
        """Count the GPUs of the claims that a pod names and that have devices, as other pods use them already."""
        claims = (self.dra.allocated_claim(f"{pod.namespace}/{name}") for _, name, _ in pod.claims if name)
        return sum(1 for claim in claims if claim is not None for _ in self.dra.products_of(claim))

    def may_claim_gpus(self, pod: PendingPod) -> bool:
        """Tell whether claims of a pod may be for GPUs; False where all are known and of other vendors' drivers."""
        keys = ((f"{pod.namespace}/{claim}", f"{pod.namespace}/{template}") for claim, template in pod.claims)
        specs = [self.dra.claim_spec(claim) or self.dra.template_spec(template) for claim, template in keys]
        classes = {
            choice.device_class for spec in specs if spec is not None for choices in spec.requests for choice in choices
        }
        return None in specs or any(map(self.classes.may_give_gpus, classes))

    def claim_warnings(self, requests: tuple[DeviceChoices, ...], tolerated_keys: Collection[str]) -> tuple[str, ...]:
        """Say what keeps device requests from every device of the cluster (app/dra/device_kinds.py)."""
        return claim_warnings(self.kinds.fleet(), requests, tolerated_keys)

    def shares(self) -> PublishedShares:
        """Tell how claims get shares of the cluster's GPUs."""
        return published_shares(self.kinds.fleet())

    def devices_held_on(self, node: Node) -> Mapping[str, int]:
        """Count the devices of a node that claims have, by namespace; a device with two shares counts twice."""
        claims = (claim for device in self.kinds.devices_of(node) for claim in self.dra.holders(device))
        return Counter(claim.partition("/")[0] for claim in claims)

    def claimed(self, pod: Pod) -> ClaimedDevices:
        classes = self.classes
        return claimed_devices(pod, self.dra.claim_spec, self.dra.template_spec, classes.family, classes.serving)

    def claimed_models(self, pod: Pod) -> Iterator[tuple[str, DeviceRequest, tuple[DeviceModel, ...]]]:
        """List each request of a pod's claims: the claim, the request, the devices that it has or may get today."""
        for _, claim, template in pod.claims:
            kind, key = ("ResourceClaim", claim) if claim else ("ResourceClaimTemplate", template)
            key = f"{pod.namespace}/{key}"
            spec = self.dra.claim_spec(key) if claim else self.dra.template_spec(key)
            has = self.dra.allocated_claim(key) if claim else None
            for request in (choice for choices in (spec.requests if spec else ()) for choice in choices):
                models = self.allocated_models(has) if has is not None else self._selectable(choice_of(request))
                yield f"{kind} {key}", request, tuple(dict.fromkeys(models))

    def allocated_models(self, claim: ResourceClaim) -> Iterator[DeviceModel]:
        """List the models of the devices that a claim has, as far as ResourceSlices show them."""
        ids = {result.device for result in claim.allocation.results} if claim.allocation is not None else set()
        slices = (one for pool in {device[:2] for device in ids} for one in self.dra.pools.slices_of(pool))
        devices = (device for one in slices for device in one.devices if device.id in ids)
        yield from (device.model for device in devices if device.model.is_gpu)

    def _selectable(self, choice: DeviceChoice) -> Iterator[DeviceModel]:
        for of_node in self.kinds.fleet():
            selected = (of_node.kinds[position] for position in of_node.select(choice, tolerate_all=True))
            yield from (kind.device.model for kind in selected if kind.device.model.is_gpu)
