# SPDX-License-Identifier: Apache-2.0
"""The cluster as the allocator sees it: slices, classes, taint rules, claims, and what is allocated."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from app.dra.pools import PoolIndex
from app.kube.device_classes import DeviceClass, DeviceTaintRule
from app.kube.devices import NOTHING, DeviceID
from app.kube.resource_claims import ResourceClaim


class AllocatedDevices:
    """The devices that claims have for themselves, and the shares that they have of others, each by the claims' keys.

    Devices that are allocated with adminAccess do not count, as others can still have them.
    """

    def __init__(self, claims: Iterable[ResourceClaim] = ()) -> None:
        self.alone: dict[DeviceID, str] = {}
        self._shares: dict[DeviceID, Mapping[str, tuple[Mapping[str, Fraction], ...]]] = {}
        self._claims: dict[str, ResourceClaim] = {}
        for claim in claims:
            self.put(claim)

    def put(self, claim: ResourceClaim) -> None:
        """Add or change a claim."""
        self.drop(claim.key)
        if claim.allocation is None:
            return
        self._claims[claim.key] = claim
        for result in claim.allocation.results:
            if result.admin_access:
                continue
            if result.consumed is None:
                self.alone[result.device] = claim.key
            else:
                shares = self._shares.get(result.device, {})
                self._shares[result.device] = {**shares, claim.key: (*shares.get(claim.key, ()), result.consumed)}

    def drop(self, key: str) -> None:
        """Remove a claim, by namespace/name."""
        claim = self._claims.pop(key, None)
        if claim is None or claim.allocation is None:
            return
        for device in {result.device for result in claim.allocation.results}:
            if self.alone.get(device) == key:
                del self.alone[device]
            shares = {other: share for other, share in self._shares.pop(device, {}).items() if other != key}
            if shares:
                self._shares[device] = shares

    def copy(self) -> "AllocatedDevices":
        """Return a copy, for work during which claims may change; it costs little, as inner maps are only replaced."""
        twin = AllocatedDevices()
        twin.alone, twin._shares, twin._claims = dict(self.alone), dict(self._shares), dict(self._claims)
        return twin

    def without(self, keys: Iterable[str]) -> "AllocatedDevices":
        """Return what would be allocated without some claims."""
        twin = self.copy()
        for key in keys:
            twin.drop(key)
        return twin

    def claim(self, key: str) -> ResourceClaim | None:
        """Return an allocated claim by namespace/name; None if it has no devices."""
        return self._claims.get(key)

    def holders(self, device: DeviceID) -> tuple[str, ...]:
        """Name the claims that have a device, or a share of it."""
        alone = self.alone.get(device)
        return (alone,) if alone is not None else tuple(self._shares.get(device, ()))

    def shared(self, device: DeviceID) -> bool:
        """Tell whether claims have shares of a device."""
        return device in self._shares

    def used(self, device: DeviceID) -> Mapping[str, Fraction]:
        """Return what all shares of a device together consume of its capacities."""
        shares = self._shares.get(device)
        if not shares:
            return NOTHING
        total: dict[str, Fraction] = {}
        for consumed in (consumed for of_claim in shares.values() for consumed in of_claim):
            for name, amount in consumed.items():
                total[name] = total.get(name, Fraction(0)) + amount
        return total


@dataclass(frozen=True, slots=True)
class ClusterDevices:
    """All facts about devices: slices by pool, DeviceClasses by name, DeviceTaintRules, and what claims have.

    `claims` and `templates` are by namespace/name.
    """

    pools: PoolIndex = field(default_factory=PoolIndex)
    classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    taint_rules: tuple[DeviceTaintRule, ...] = ()
    allocated: AllocatedDevices = field(default_factory=AllocatedDevices)
    claims: Mapping[str, ResourceClaim] = field(default_factory=dict)
    templates: Mapping[str, ResourceClaim] = field(default_factory=dict)
