# SPDX-License-Identifier: Apache-2.0
"""A slow and obvious allocator: it lists every way to serve the claims, in order, and takes the first that is right."""

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, product

from app.dra.allocator import GrantedDevice
from app.dra.cluster_devices import ClusterDevices
from app.dra.selectors import Selection
from app.kube.devices import Device
from app.kube.resource_claims import DeviceRequest, ResourceClaim
from app.nodes.model import Node

Picked = tuple[ResourceClaim, DeviceRequest, Device]


def slow_allocate(claims: Sequence[ResourceClaim], node: Node, facts: ClusterDevices) -> list[GrantedDevice] | None:
    """Return the first right way to serve the claims on a node; None if there is none."""
    devices = [device for pool in facts.pools.pools(node) for device in pool.devices]
    choices = [list(ways(claim, request, devices, facts)) for claim in claims for request in claim.spec.requests]
    for way in product(*choices):
        picked = [entry for part in way for entry in part]
        if right(picked, facts):
            return [GrantedDevice(claim.key, request.name, device) for claim, request, device in picked]
    return None


def ways(
    claim: ResourceClaim, alternatives: Sequence[DeviceRequest], devices: Sequence[Device], facts: ClusterDevices
) -> Iterator[list[Picked]]:
    """List the sets of devices that one request could get, each alternative's after the other's.

    All devices are those with enough capacity left of what allocations share.
    """
    for request in alternatives:
        suited = [device for device in devices if suits(request, device)]
        if request.mode == "All":
            suited = [device for device in suited if within_capacity([(claim, request, device)], facts)]
        count = len(suited) if request.mode == "All" else request.count
        if count:
            yield from ([(claim, request, device) for device in chosen] for chosen in combinations(suited, count))


def suits(request: DeviceRequest, device: Device) -> bool:
    selected = Selection().test_all(request.selectors, device)
    wanted = request.capacity or {}
    return selected and all(amount <= device.amounts.get(name, -1) for name, amount in wanted.items())


def right(picked: Sequence[Picked], facts: ClusterDevices) -> bool:
    return (
        all(untainted(request, device) for _, request, device in picked)
        and not_taken_twice(picked, facts)
        and within_capacity(picked, facts)
        and within_counters(picked, facts)
        and all(constrained(claim, picked) for claim in {claim.key: claim for claim, _, _ in picked}.values())
    )


def untainted(request: DeviceRequest, device: Device) -> bool:
    tolerated = {toleration.key for toleration in request.tolerations}
    return all(taint.effect == "None" or taint.key in tolerated for taint in device.taints)


def not_taken_twice(picked: Sequence[Picked], facts: ClusterDevices) -> bool:
    single = Counter(device.id for _, _, device in picked if not device.allow_multiple_allocations)
    free = not {device.id for _, _, device in picked} & facts.allocated.alone.keys()
    return free and all(count == 1 for count in single.values())


def within_capacity(picked: Sequence[Picked], facts: ClusterDevices) -> bool:
    """Without policies an allocation consumes what it requests, or all of a capacity that it does not name."""
    used: dict[tuple[Device, str], Fraction] = {}
    for _, request, device in picked:
        for name, total in device.amounts.items():
            amount = (request.capacity or {}).get(name, total)
            used[device, name] = used.get((device, name), Fraction(0)) + amount
    return all(
        amount + facts.allocated.used(device.id).get(name, 0) <= device.amounts[name]
        for (device, name), amount in used.items()
    )


def within_counters(picked: Sequence[Picked], facts: ClusterDevices) -> bool:
    """Every device that is allocated, or is now, consumes its counters once."""
    consumers = {device for _, _, device in picked}
    if not any(device.counters for device in consumers):
        return True
    left: dict[tuple[str, str, str], Fraction] = {}
    for one in facts.pools.slices():
        consumers.update(device for device in one.devices if facts.allocated.holders(device.id))
        for counters in one.spec.shared_counters or ():
            left.update({(one.pool, counters.name, name): amount for name, amount in counters.amounts.items()})
    for device in consumers:
        for use in device.counters:
            for counter, amount in use.amounts.items():
                left[device.pool, use.counter_set, counter] -= amount
    return all(amount >= 0 for amount in left.values())


def constrained(claim: ResourceClaim, picked: Sequence[Picked]) -> bool:
    for constraint in claim.spec.constraints:
        values = [
            device.attributes.get(constraint.attribute)
            for owner, request, device in picked
            if owner is claim and constraint.covers(request)
        ]
        if None in values or (len(set(values)) != len(values) if constraint.distinct else len(set(values)) > 1):
            return False
    return True
