# SPDX-License-Identifier: Apache-2.0
"""What one allocation consumes: counters that the devices of a pool share (KEP-4815, F135), and capacity of a device.

The rules are those of checkAvailableCounters in dynamic-resource-allocation/structured/internal/incubating
(allocator_incubating.go), which keeps them by the pool's name alone: pools of two drivers that have the same name and
both have counters are then taken for one. Here they are two (docs/reference/dra.md#differences).

Consumable capacity, which is how much of a device one allocation takes (KEP-5075), has the rules of
consumable_capacity.go there. They hold for devices that have only one allocation at a time as well: there a requested
amount is the least that the device has.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import ceil

from app.dra.cluster_devices import AllocatedDevices, Pool
from app.kube.device_models import NOTHING, CapacityPolicy
from app.kube.devices import Device

NO_POLICY = CapacityPolicy()


def consumption(device: Device, requested: Mapping[str, Fraction] | None) -> dict[str, Fraction]:
    """Return what one allocation consumes of each capacity of a device; it need not be there, nor be allowed."""
    wanted = requested or NOTHING
    return {name: _consumed(device, name, total, wanted.get(name)) for name, total in device.amounts.items()}


def _consumed(device: Device, name: str, total: Fraction, wanted: Fraction | None) -> Fraction:
    policy = device.amounts.policies.get(name, NO_POLICY)
    if wanted is None:
        return total if policy.default is None else policy.default
    if policy.valid_range.min is not None:
        return _rounded_up(wanted, policy.valid_range.min, policy.valid_range.step)
    return next((value for value in policy.valid_values if wanted <= value), wanted)


def _rounded_up(wanted: Fraction, minimum: Fraction, step: Fraction | None) -> Fraction:
    """Round up to the minimum and a multiple of the step, which are counted in whole units (Quantity.Value)."""
    if wanted < minimum:
        return minimum
    if not step:
        return wanted
    return Fraction(ceil(minimum) + ceil(step) * -(-(ceil(wanted) - ceil(minimum)) // ceil(step)))


def allowed(device: Device, name: str, amount: Fraction) -> bool:
    """Tell whether the policy of a capacity allows an amount."""
    policy = device.amounts.policies.get(name, NO_POLICY)
    if policy.default is not None and amount == policy.default:
        return True
    limits = policy.valid_range
    if limits != NO_POLICY.valid_range:
        over = limits.max is not None and amount > limits.max
        return not over and not (limits.step and (ceil(amount) - ceil(limits.min or 0)) % ceil(limits.step))
    return not policy.valid_values or amount in policy.valid_values


def lacking(
    device: Device,
    requested: Mapping[str, Fraction] | None,
    used: Mapping[str, Fraction] = NOTHING,
    taking: Mapping[str, Fraction] = NOTHING,
) -> str | None:
    """Name a capacity of which a device has not enough left, or that it does not have; None if all will do.

    `used` is what claims have of the device, and `taking` what the allocation under way has taken of it so far.
    """
    unknown = next((name for name in requested or () if name not in device.amounts), None)
    if unknown is not None:
        return unknown
    for name, amount in consumption(device, requested).items():
        left = device.amounts[name] - used.get(name, 0) - taking.get(name, 0)
        if not allowed(device, name, amount) or amount > left:
            return name
    return None


def share_of(device: Device, requested: Mapping[str, Fraction] | None) -> Mapping[str, Fraction] | None:
    """Return what one allocation consumes of a device that other claims can use beside it; None if it has it alone.

    It has a shared device alone if it leaves less of some capacity than any other allocation consumes.
    """
    if not device.allow_multiple_allocations:
        return None
    consumed = consumption(device, requested)
    alone = any(_too_little(device, name, total - consumed[name]) for name, total in device.amounts.items())
    return None if alone else consumed


def _too_little(device: Device, name: str, left: Fraction) -> bool:
    policy = device.amounts.policies.get(name, NO_POLICY)
    least = policy.valid_range.min if policy.valid_range.min is not None else next(iter(policy.valid_values), None)
    return left < least if least is not None else left <= 0 and policy.default != 0


def consumed_by_kind(device: Device) -> Mapping[str, Fraction]:
    """Sum up what a device consumes, by kind of counter."""
    return _by_kind(entry for use in device.counters for entry in use.amounts.items())


def _by_kind(amounts: Iterable[tuple[str, Fraction]]) -> Mapping[str, Fraction]:
    """Sum up amounts of all counters whose names differ in a number at their end, as those of memory slices do."""
    sums: dict[str, Fraction] = {}
    for counter, amount in amounts:
        kind = counter.rstrip("0123456789")
        sums[kind] = sums.get(kind, Fraction(0)) + amount
    return sums


class PoolCounters:
    """What is left of each counter of one pool. Devices that several claims share consume their counters once."""

    def __init__(self, pool: Pool, allocated: AllocatedDevices) -> None:
        self._left: dict[tuple[str, str], Fraction] = {
            (name, counter): amount
            for name, amounts in (pool.counter_sets or {}).items()
            for counter, amount in amounts.items()
        }
        for device in (*pool.devices, *pool.elsewhere):
            if device.counters and allocated.holders(device.id):
                self._add(device, -1)
        self._overdrawn = any(amount < 0 for amount in self._left.values())

    def left(self) -> Mapping[str, Fraction]:
        """Sum up what is left by kind of counter."""
        return _by_kind((counter, amount) for (_, counter), amount in self._left.items())

    def lacking(self, device: Device) -> tuple[str, str] | None:
        """Name a counter set and its counter of which not enough is left for a device; None if all will do.

        A counter that is overdrawn already stands against every device of the pool that consumes counters.
        """
        if self._overdrawn:
            return next(name for name, amount in self._left.items() if amount < 0)
        for use in device.counters:
            for counter, amount in use.amounts.items():
                if self._left[use.counter_set, counter] < amount:
                    return use.counter_set, counter
        return None

    def take(self, device: Device) -> None:
        """Take the counters that a device consumes."""
        self._add(device, -1)

    def give_back(self, device: Device) -> None:
        """Give back the counters that a device consumes."""
        self._add(device, 1)

    def _add(self, device: Device, sign: int) -> None:
        for use in device.counters:
            for counter, amount in use.amounts.items():
                if (use.counter_set, counter) in self._left:
                    self._left[use.counter_set, counter] += sign * amount
