# SPDX-License-Identifier: Apache-2.0
"""The cluster as the allocator sees it: slices, classes, taint rules, claims, and what is allocated.

The pools that can be reached from one node are in the order in which kube-scheduler tries them. The rules are those of
GatherPools and buildPool in dynamic-resource-allocation/structured/internal/incubating
(pools_incubating.go, v1.36): pools by driver and name, slices by name, devices as published, and pools with devices
that wait for their driver last. Kubernetes before 1.34 had counters and devices in one slice, which is read as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeVar

from app.kube.device_classes import DeviceClass, DeviceTaintRule
from app.kube.device_models import NOTHING
from app.kube.devices import Device, DeviceID, ResourceSlice
from app.kube.resource_claims import ResourceClaim
from app.nodes.model import Node

Key = TypeVar("Key")
Entry = TypeVar("Entry")
PoolID = tuple[str, str]
"""The driver and the name of a pool."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool as one node sees it.

    `devices` can be reached from the node, as far as the slices tell; `elsewhere` cannot, but consume the same
    counters. `incomplete` says that slices of the newest generation are missing, since the driver is publishing them.
    `invalid` says what is wrong with the pool. No devices are allocated from either.
    """

    id: PoolID
    devices: tuple[Device, ...] = ()
    elsewhere: tuple[Device, ...] = ()
    counter_sets: Mapping[str, Mapping[str, Fraction]] | None = None
    incomplete: bool = False
    invalid: str = ""


class PoolIndex:
    """All ResourceSlices: by name, by pool, and by the node that they name, to find the pools of a node at once.

    The inner maps are replaced and never changed, so that a copy is shallow and costs little.
    """

    def __init__(self, slices: Iterable[ResourceSlice] = ()) -> None:
        self.by_name: dict[str, ResourceSlice] = {}
        self._by_pool: dict[PoolID, Mapping[str, ResourceSlice]] = {}
        self._by_node: dict[str, Mapping[str, PoolID]] = {}
        for pool_slice in slices:
            self.put(pool_slice)

    def put(self, pool_slice: ResourceSlice) -> None:
        """Add or change a slice."""
        self.drop(pool_slice.name)
        pool, node = (pool_slice.driver, pool_slice.pool), _node_of(pool_slice)
        self.by_name[pool_slice.name] = pool_slice
        self._by_pool[pool] = {**self._by_pool.get(pool, {}), pool_slice.name: pool_slice}
        self._by_node[node] = {**self._by_node.get(node, {}), pool_slice.name: pool}

    def drop(self, name: str) -> None:
        """Remove a slice."""
        pool_slice = self.by_name.pop(name, None)
        if pool_slice is not None:
            _drop(self._by_pool, (pool_slice.driver, pool_slice.pool), name)
            _drop(self._by_node, _node_of(pool_slice), name)

    def __len__(self) -> int:
        return len(self.by_name)

    def copy(self) -> "PoolIndex":
        """Return a copy, for work during which slices may change."""
        twin = PoolIndex()
        twin.by_name, twin._by_pool, twin._by_node = dict(self.by_name), dict(self._by_pool), dict(self._by_node)
        return twin

    def slices(self) -> Iterable[ResourceSlice]:
        """List all slices."""
        return self.by_name.values()

    def get(self, name: str) -> ResourceSlice | None:
        """Return a slice by name; None if there is none."""
        return self.by_name.get(name)

    def slices_on(self, node: str) -> Iterable[ResourceSlice]:
        """List the slices that name a node."""
        return [self.by_name[name] for name in self._by_node.get(node, ())] if node else ()

    def nodes(self) -> tuple[str, ...]:
        """Return the names of the nodes that slices name."""
        return tuple(name for name in self._by_node if name != SHARED)

    def slices_of(self, pool: PoolID) -> Iterable[ResourceSlice]:
        """List the slices of a pool, of all generations."""
        return self._by_pool.get(pool, {}).values()

    def pools(self, node: Node) -> tuple[Pool, ...]:
        """Return the pools of a node in the order in which kube-scheduler tries them."""
        names = {pool for place in (node.name, SHARED) for pool in self._by_node.get(place, {}).values()}
        gathered = (_gather(name, tuple(self._by_pool[name].values()), node) for name in sorted(names))
        pools = [pool for pool in gathered if pool is not None]
        return tuple(sorted(pools, key=lambda pool: any(device.binding_conditions for device in pool.devices)))


SHARED = ""
"""Under this name, which no node has, are the slices that do not name one node."""


def _node_of(pool_slice: ResourceSlice) -> str:
    return pool_slice.node or SHARED


def _drop(groups: dict[Key, Mapping[str, Entry]], group: Key, name: str) -> None:
    """Drop an entry of a group, and with its last entry the group."""
    rest = {key: entry for key, entry in groups[group].items() if key != name}
    if rest:
        groups[group] = rest
    else:
        del groups[group]


def _gather(pool: PoolID, slices: Sequence[ResourceSlice], node: Node) -> Pool | None:
    """Build a pool of the slices that concern a node; None if none does, or if a newer generation has none."""
    relevant = [one for one in slices if one.spec.shared_counters or _reaches(one, node)]
    if not relevant:
        return None
    generation = max(one.generation for one in relevant)
    relevant = [one for one in relevant if one.generation == generation]
    size = relevant[0].spec.pool.size
    if len(relevant) == size:
        return _build(pool, relevant, (), node)
    if any(one.generation > generation for one in slices):
        return None
    current = [one for one in slices if one.generation == generation]
    if len(current) != size:
        return Pool(pool, incomplete=True)
    return _build(pool, relevant, [one for one in current if one not in relevant], node)


def _reaches(pool_slice: ResourceSlice, node: Node) -> bool:
    spec = pool_slice.spec
    return spec.selects(node) or (
        spec.per_device_node_selection and any(one.selects(node) for one in spec.devices or ())
    )


def _build(pool: PoolID, slices: Sequence[ResourceSlice], others: Sequence[ResourceSlice], node: Node) -> Pool:
    ordered = sorted(slices, key=lambda one: one.name)
    reached = [device for one in ordered if _reaches(one, node) for device in one.devices]
    elsewhere = [device for one in ordered if not _reaches(one, node) for device in one.devices]
    elsewhere += [device for one in others for device in one.devices]
    counter_sets: dict[str, Mapping[str, Fraction]] = {}
    for counter_set in (entry for one in ordered for entry in one.spec.shared_counters or ()):
        if counter_set.name in counter_sets:
            return Pool(pool, invalid=f"it has two counter sets {counter_set.name}")
        counter_sets[counter_set.name] = counter_set.amounts
    problem = _problem(reached, elsewhere, counter_sets)
    return Pool(pool, invalid=problem) if problem else Pool(pool, tuple(reached), tuple(elsewhere), counter_sets)


def _problem(
    reached: Sequence[Device], elsewhere: Sequence[Device], counter_sets: Mapping[str, Mapping[str, Fraction]]
) -> str:
    """Say what makes a pool invalid: two devices of one name, or a counter that is not there; "" if nothing does."""
    names: set[str] = set()
    for device in reached:
        if device.name in names:
            return f"it has two devices {device.name}"
        names.add(device.name)
    for device in (*reached, *elsewhere):
        for use in device.counters:
            amounts = counter_sets.get(use.counter_set)
            if amounts is None or any(counter not in amounts for counter in use.amounts):
                return f"device {device.name} consumes counters of {use.counter_set} that are not there"
    return ""


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

    def copied(self) -> "ClusterDevices":
        """Copy everything; the copy is shallow, because what is in it is replaced and never changed."""
        return ClusterDevices(
            self.pools.copy(),
            dict(self.classes),
            self.taint_rules,
            self.allocated.copy(),
            dict(self.claims),
            dict(self.templates),
        )


def holder_names(cluster: ClusterDevices, device: Device) -> tuple[str, ...]:
    """Name the pods that have a device, by namespace/name; a claim that no pod uses, or that is deleted, by its own.

    A claim that is being deleted keeps its devices while pods stand in its reservedFor, also those that are gone.
    """
    names: list[str] = []
    for key in cluster.allocated.holders(device.id):
        claim = cluster.allocated.claim(key)
        namespace = key.partition("/")[0]
        pods = [f"{kind} {namespace}/{name}" for kind, name in (claim.reserved_for if claim else ())]
        deleted = claim is not None and claim.deleted
        names += [f"claim {key}, which is being deleted"] if deleted else pods or [f"claim {key}"]
    return tuple(names)
