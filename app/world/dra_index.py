# SPDX-License-Identifier: Apache-2.0
"""The objects of DRA as last seen, each read once. A part of State, from which explanations take copies.

`DeviceCounts` counts devices, what is allocated of them, and pools, by driver, with every change, for the metrics.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from msgspec import structs

from app.dra.cluster_devices import AllocatedDevices, ClusterDevices, PoolID, PoolIndex
from app.knowledge.gpu_resources import Families
from app.knowledge.products import normal_form
from app.kube.api_kinds import API_KINDS
from app.kube.device_classes import DeviceClass, DeviceClassIndex, DeviceTaintRule
from app.kube.devices import DeviceID, ResourceSlice
from app.kube.resource_claims import ClaimSpec, ResourceClaim

DRIVERS = ("gpu.nvidia.com", "compute-domain.nvidia.com", "gpu.amd.com", "gpu.intel.com", "other")
"""The values of the label `driver`: drivers of GPUs that publish ResourceSlices, and all others together."""
DEVICE_STATES = ("published", "tainted", "allocated")
POOL_STATES = ("complete", "incomplete")
Count = tuple[str, str]
"""A driver of DRIVERS, and a state."""


class DeviceCounts:
    """The number of devices by driver and DEVICE_STATES, and of pools by driver and POOL_STATES.

    `published` devices are of the newest generation of a pool; `tainted` are those of them that their driver taints
    with an effect that keeps claims away (taints of DeviceTaintRules are not counted). `allocated` counts the devices
    of each claim, so that a device of which two claims have shares counts twice.
    """

    def __init__(self) -> None:
        self.devices: Counter[Count] = Counter()
        self.pools: Counter[Count] = Counter()
        self._of_pool: dict[PoolID, tuple[dict[Count, int], dict[Count, int]]] = {}
        self._of_claim: dict[str, Counter[Count]] = {}

    def put_pool(self, pool: PoolID, slices: Iterable[ResourceSlice]) -> None:
        """Count a pool anew, from all slices that it has now; it is gone where there are none."""
        devices, states = self._of_pool.pop(pool, ({}, {}))
        self.devices.subtract(devices)
        self.pools.subtract(states)
        if present := list(slices):
            driver = label_of(pool[0])
            generation = max(one.generation for one in present)
            newest = [one for one in present if one.generation == generation]
            state = "complete" if len(newest) == newest[0].spec.pool.size else "incomplete"
            devices, states = self._of_pool[pool] = _count(driver, newest), {(driver, state): 1}
            self.devices.update(devices)
            self.pools.update(states)

    def put_claim(self, claim: ResourceClaim) -> None:
        """Count the devices of a claim anew."""
        self.drop_claim(claim.key)
        if claim.allocation is not None:
            allocated = Counter((label_of(result.device[0]), "allocated") for result in claim.allocation.results)
            self.devices += allocated
            self._of_claim[claim.key] = allocated

    def drop_claim(self, key: str) -> None:
        """Count the devices of a claim, by namespace/name, no more."""
        self.devices -= self._of_claim.pop(key, Counter())


def label_of(driver: str) -> str:
    """Return the value of the label `driver` for a driver."""
    return driver if driver in DRIVERS else "other"


def _count(driver: str, slices: Iterable[ResourceSlice]) -> dict[Count, int]:
    devices = [device for one in slices for device in one.devices]
    tainted = sum([one.tainted for one in devices if one.taints])
    return {(driver, "published"): len(devices), (driver, "tainted"): tainted}


SPECS_SHARED = 1_000
"""Distinct specs of claims that share one object; above it, sharing starts over. A guess, not measured."""


class DRAIndex:
    """Slices by pool, DeviceClasses, claims, templates, DeviceTaintRules, and what is allocated.

    Claims without GPUs are kept too: such a claim differs from one that was not seen yet, and a DeviceClass may be
    created, or begin to serve nvidia.com/gpu, after the claims that name it. `served_version` is the version of
    resource.k8s.io in which the API server serves these objects.
    """

    def __init__(self, families: Families) -> None:
        self.pools = PoolIndex()
        self.counts = DeviceCounts()
        self.class_index = DeviceClassIndex(families)
        self.served_version = API_KINDS["ResourceClaimTemplate"].versions[0]
        self._allocated = AllocatedDevices()
        self._specs: dict[ClaimSpec, ClaimSpec] = {}
        self._rules: dict[str, DeviceTaintRule] = {}
        self._claims: dict[str, ResourceClaim] = {}
        self._allocated_in: dict[str, dict[str, ResourceClaim]] = {}
        self._products: dict[PoolID, Mapping[str, str]] = {}
        self._templates: dict[str, ResourceClaim] = {}
        self.current = ClusterDevices(
            self.pools, self.class_index.by_name, (), self._allocated, self._claims, self._templates
        )
        """Everything as it stands; another object after a change of a DeviceTaintRule."""

    @property
    def classes(self) -> Mapping[str, DeviceClass]:
        """The DeviceClasses by name; a live view."""
        return self.class_index.by_name

    def taint_rules(self) -> tuple[DeviceTaintRule, ...]:
        return tuple(rule for _, rule in sorted(self._rules.items()))

    def put_slice(self, pool_slice: ResourceSlice) -> None:
        before = self.pools.get(pool_slice.name)
        self.pools.put(pool_slice)
        self._count(pool_slice)
        if before is not None and (before.driver, before.pool) != (pool_slice.driver, pool_slice.pool):
            self._count(before)

    def drop_slice(self, name: str) -> None:
        pool_slice = self.pools.get(name)
        if pool_slice is not None:
            self.pools.drop(name)
            self._count(pool_slice)

    def _count(self, pool_slice: ResourceSlice) -> None:
        """Count the pool of a slice anew."""
        pool = pool_slice.driver, pool_slice.pool
        self._products.pop(pool, None)
        self.counts.put_pool(pool, self.pools.slices_of(pool))

    def put_claim(self, claim: ResourceClaim) -> None:
        """Add or change a claim, with what is allocated to it."""
        claim = self._claims[claim.key] = self._shared(claim)
        self._allocated.put(claim)
        self.counts.put_claim(claim)
        self._put_allocated(claim.key, claim if claim.allocation is not None and not claim.extended else None)

    def _put_allocated(self, key: str, claim: ResourceClaim | None) -> None:
        """Set an allocated claim by its namespace, None for one that is gone."""
        namespace = key.partition("/")[0]
        claims = self._allocated_in.setdefault(namespace, {})
        claims.pop(key, None)
        if claim is not None:
            claims[key] = claim
        if not claims:
            del self._allocated_in[namespace]

    def drop_claim(self, key: str) -> None:
        """Remove a claim, by namespace/name."""
        self._claims.pop(key, None)
        self._allocated.drop(key)
        self.counts.drop_claim(key)
        self._put_allocated(key, None)

    def _shared(self, claim: ResourceClaim) -> ResourceClaim:
        """Let claims that ask the same share one object, so that a template's thousand claims cost a thousand keys."""
        if any(choice.requested is not None for choices in claim.spec.requests for choice in choices):
            return claim  # such a request has no hash
        if len(self._specs) >= SPECS_SHARED:
            self._specs.clear()
        shared = self._specs.setdefault(claim.spec, claim.spec)
        return claim if shared is claim.spec else structs.replace(claim, spec=shared)

    def claim_spec(self, key: str) -> ClaimSpec | None:
        """Return what a claim asks, by namespace/name; None if it is not known."""
        claim = self._claims.get(key)
        return claim.spec if claim is not None else None

    def template_spec(self, key: str) -> ClaimSpec | None:
        """Return what a template asks, by namespace/name; None if it is not known."""
        template = self._templates.get(key)
        return template.spec if template is not None else None

    def holders(self, device: DeviceID) -> tuple[str, ...]:
        """Name the claims that have a device, or a share of it, as namespace/name."""
        return self._allocated.holders(device)

    def pools_of_claim(self, key: str) -> set[PoolID]:
        """Name the pools of the devices that a claim has."""
        claim = self.allocated_claim(key)
        results = claim.allocation.results if claim is not None and claim.allocation is not None else ()
        return {result.device[:2] for result in results}

    def held_in(
        self, namespace: str, counts: Callable[[ResourceClaim], bool]
    ) -> tuple[tuple[tuple[str, ...], int], ...]:
        """Count the GPUs that the claims of a namespace have, by product in normal form; a share counts as one.

        Claims for extended resources do not count, as their pods hold the units, nor do devices with adminAccess, and
        those that no ResourceSlice shows. `counts` tells whether one of the other claims counts.
        """
        claims = [claim for claim in self._allocated_in.get(namespace, {}).values() if counts(claim)]
        held = Counter(product for claim in claims for product in self.products_of(claim))
        return tuple(((product,), units) for product, units in held.items())

    def allocated_claim(self, key: str) -> ResourceClaim | None:
        """Return a claim that has devices, by namespace/name; None for any other."""
        return self._allocated.claim(key)

    def products_of(self, claim: ResourceClaim) -> Iterator[str]:
        """Name the product, in normal form, of each GPU that a claim has."""
        results = claim.allocation.results if claim.allocation is not None else ()
        for driver, pool, name in (result.device for result in results if not result.admin_access):
            products = self._products.get((driver, pool))
            if products is None:
                devices = (device for one in self.pools.slices_of((driver, pool)) for device in one.devices)
                products = {
                    device.name: normal_form(device.model.label)
                    for device in devices
                    if device.model.is_gpu and device.model.label
                }
                self._products[driver, pool] = products
            if name in products:
                yield products[name]

    def put_template(self, template: ResourceClaim) -> None:
        self._templates[template.key] = self._shared(template)

    def drop_template(self, key: str) -> None:
        """Remove a template, by namespace/name."""
        self._templates.pop(key, None)

    def has_template(self, template: ResourceClaim) -> bool:
        """Tell whether a template is there with these requests, and the DeviceClasses that it names."""
        classes = {choice.device_class for choices in template.spec.requests for choice in choices}
        return self._templates.get(template.key) == template and classes <= self.classes.keys()

    def put_taint_rule(self, rule: DeviceTaintRule) -> None:
        self._rules[rule.metadata.name] = rule
        self.current = replace(self.current, taint_rules=self.taint_rules())

    def drop_taint_rule(self, name: str) -> DeviceTaintRule | None:
        """Remove a DeviceTaintRule, and return it; None if there was none."""
        dropped = self._rules.pop(name, None)
        self.current = replace(self.current, taint_rules=self.taint_rules())
        return dropped
