# SPDX-License-Identifier: Apache-2.0
"""What the allocator of DRA needs, as last seen. A part of State, from which explanations take copies."""

from collections.abc import Mapping

from app.cluster.device_counts import DeviceCounts
from app.dra.allocated import AllocatedDevices
from app.dra.claims import ResourceClaim
from app.dra.classes import DeviceClass, DeviceTaintRule
from app.dra.cluster_devices import ClusterDevices
from app.dra.devices import DeviceID, PoolSlice
from app.dra.pools import PoolID, PoolIndex


class DRAIndex:
    """Slices by pool, DeviceClasses, claims, templates, DeviceTaintRules, and what is allocated."""

    def __init__(self) -> None:
        self.pools = PoolIndex()
        self.counts = DeviceCounts()
        self._allocated = AllocatedDevices()
        self._classes: dict[str, DeviceClass] = {}
        self._rules: dict[str, DeviceTaintRule] = {}
        self._claims: dict[str, ResourceClaim] = {}
        self._templates: dict[str, ResourceClaim] = {}

    def copy(self) -> ClusterDevices:
        """Copy everything; the copy is shallow, because what is in it is replaced and never changed."""
        return ClusterDevices(
            self.pools.copy(),
            dict(self._classes),
            self.taint_rules(),
            self._allocated.copy(),
            dict(self._claims),
            dict(self._templates),
        )

    @property
    def classes(self) -> Mapping[str, DeviceClass]:
        """The DeviceClasses by name; a live view."""
        return self._classes

    def taint_rules(self) -> tuple[DeviceTaintRule, ...]:
        """List the DeviceTaintRules by name."""
        return tuple(rule for _, rule in sorted(self._rules.items()))

    def put_slice(self, pool_slice: PoolSlice) -> None:
        """Add or change a ResourceSlice."""
        self.drop_slice(pool_slice.name)
        self.pools.put(pool_slice)
        self._count(pool_slice)

    def drop_slice(self, name: str) -> None:
        """Remove a ResourceSlice."""
        pool_slice = self.pools.get(name)
        if pool_slice is not None:
            self.pools.drop(name)
            self._count(pool_slice)

    def _count(self, pool_slice: PoolSlice) -> None:
        """Count the pool of a slice anew."""
        pool = pool_slice.driver, pool_slice.pool
        self.counts.put_pool(pool, self.pools.slices_of(pool))

    def put_class(self, device_class: DeviceClass) -> None:
        """Add or change a DeviceClass."""
        self._classes[device_class.name] = device_class

    def drop_class(self, name: str) -> None:
        """Remove a DeviceClass."""
        self._classes.pop(name, None)

    def put_claim(self, claim: ResourceClaim) -> None:
        """Add or change a claim, with what is allocated to it."""
        self._claims[claim.key] = claim
        self._allocated.put(claim)
        self.counts.put_claim(claim)

    def drop_claim(self, key: str) -> None:
        """Remove a claim, by namespace/name."""
        self._claims.pop(key, None)
        self._allocated.drop(key)
        self.counts.drop_claim(key)

    def holders(self, device: DeviceID) -> tuple[str, ...]:
        """Name the claims that have a device, or a share of it, as namespace/name."""
        return self._allocated.holders(device)

    def pools_of_claim(self, key: str) -> set[PoolID]:
        """Name the pools of the devices that a claim has."""
        claim = self._allocated.claim(key)
        results = claim.allocation.results if claim is not None and claim.allocation is not None else ()
        return {result.device[:2] for result in results}

    def put_template(self, template: ResourceClaim) -> None:
        """Add or change a template."""
        self._templates[template.key] = template

    def drop_template(self, key: str) -> None:
        """Remove a template, by namespace/name."""
        self._templates.pop(key, None)

    def has_template(self, template: ResourceClaim) -> bool:
        """Tell whether a template is there with these requests, and the DeviceClasses that it names."""
        classes = {choice.device_class for choices in template.spec.requests for choice in choices}
        return self._templates.get(template.key) == template and classes <= self._classes.keys()

    def put_taint_rule(self, rule: DeviceTaintRule) -> None:
        """Add or change a DeviceTaintRule."""
        self._rules[rule.name] = rule

    def drop_taint_rule(self, name: str) -> DeviceTaintRule | None:
        """Remove a DeviceTaintRule, and return it; None if there was none."""
        return self._rules.pop(name, None)
