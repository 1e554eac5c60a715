# SPDX-License-Identifier: Apache-2.0
"""The counters that the devices of a pool share, while devices of it are being allocated.

The rules are those of checkAvailableCounters in dynamic-resource-allocation/structured/internal/incubating
(allocator_incubating.go), which keeps them by the pool's name alone: pools of two drivers that have the same name and
both have counters are then taken for one. Here they are two (docs/reference/dra.md#differences).
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from app.dra.allocated import AllocatedDevices
from app.dra.pools import Pool
from app.kube.devices import Device


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
