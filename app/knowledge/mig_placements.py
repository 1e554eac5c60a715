# SPDX-License-Identifier: Apache-2.0
"""Placement of MIG instances on a node: whether they fit beside existing ones, and where.

The search is exact. A set that fits on a GPU also fits with one instance less. So if a solution exists, there is one in
which each GPU in turn gets a maximal filling, that is, one to which no requested instance can be added. Only such
fillings are tried, and combinations of remaining requests and GPUs that failed are remembered.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from typing import NamedTuple

from app.knowledge.geometry import STATES_KEPT, Geometry, Instance, ProfileSlots, SliceOccupancy

Counts = tuple[int, ...]
"""Numbers of instances, one for each requested profile, in a fixed order of the profiles."""


@dataclass(frozen=True, slots=True)
class GPULayout:
    """One GPU on which MIG instances are created on demand: its name, its geometry, and its existing instances."""

    gpu: str
    geometry: Geometry
    taken: tuple[Instance, ...] = ()


class InstancePlacement(NamedTuple):
    """A position for an instance: the index of the GPU in the given sequence, and the first memory slice."""

    gpu: int
    start: int


def place_instances(layouts: Sequence[GPULayout], requested: Sequence[str]) -> tuple[InstancePlacement, ...] | None:
    """Find GPU and start for an instance of each requested profile, in the order given; None if they do not all fit.

    Fuller GPUs are filled first, so that empty GPUs stay whole. A profile that a product does not have does not fit on
    its GPUs. Raises KeyError if an existing instance has such a profile.
    """
    profiles = tuple(sorted(set(requested)))
    occupied = [layout.geometry.occupancy(layout.taken) for layout in layouts]
    order = sorted(range(len(layouts)), key=lambda index: (occupied[index].free_compute, occupied[index]))
    gpus = tuple(_GPU(layouts[index].geometry, occupied[index], _slots(layouts[index], profiles)) for index in order)
    shares = _Search(gpus).shares(tuple(requested.count(profile) for profile in profiles))
    if shares is None:
        return None
    placements: dict[str, list[InstancePlacement]] = {profile: [] for profile in profiles}
    for index, share in zip(order, shares, strict=True):
        chosen = [profile for profile, count in zip(profiles, share, strict=True) for _ in range(count)]
        starts = layouts[index].geometry.find_starts(chosen, layouts[index].taken) or ()
        for profile, start in zip(chosen, starts, strict=True):
            placements[profile].append(InstancePlacement(index, start))
    return tuple(placements[profile].pop(0) for profile in requested)


def _slots(layout: GPULayout, profiles: Sequence[str]) -> tuple[ProfileSlots | None, ...]:
    return tuple(layout.geometry.slots.get(profile) for profile in profiles)


class _GPU(NamedTuple):
    """One GPU: its slice occupancy, and the slots of the requested profiles, None where its product lacks a profile."""

    geometry: Geometry
    occupancy: SliceOccupancy
    slots: tuple[ProfileSlots | None, ...]

    def fillings(self, requested: Counts) -> tuple[Counts, ...]:
        """List the fillings with requested instances to which none of these can be added, largest first."""
        state = self.occupancy.taken_memory, self.occupancy.free_compute
        return _maximal_fillings(*state, *_limit_counts(self, requested))


def _limit_counts(gpu: _GPU, requested: Counts) -> tuple[tuple[ProfileSlots | None, ...], Counts]:
    """Limit the requested numbers to what the GPU could take of each profile, so that the cache has fewer keys."""
    limits = []
    for slot, count in zip(gpu.slots, requested, strict=True):
        by_compute = gpu.occupancy.free_compute // slot.compute if slot else 0
        limits.append(max(0, min(count, by_compute, gpu.occupancy.remaining_instances(slot))) if slot else 0)
    return gpu.slots, tuple(limits)


@lru_cache(STATES_KEPT)
def _maximal_fillings(
    taken_memory: int, free_compute: int, slots: tuple[ProfileSlots | None, ...], most: Counts
) -> tuple[Counts, ...]:
    fitting = set(_fitting_counts(frozenset((taken_memory,)), free_compute, slots, most))
    full = [counts for counts in fitting if not any(more in fitting for more in _one_more(counts))]
    return tuple(sorted(full, key=lambda counts: (-_volume(counts, slots), counts)))


def _fitting_counts(
    masks: frozenset[int], free_compute: int, slots: tuple[ProfileSlots | None, ...], most: Counts
) -> Iterator[Counts]:
    """Enumerate the counts that fit.

    `masks` has the bit mask of taken memory slices for each way to place the instances so far.
    """
    if not slots:
        yield ()
        return
    slot = slots[0]
    for count in range(most[0] + 1):
        for others in _fitting_counts(masks, free_compute, slots[1:], most[1:]):
            yield (count, *others)
        if slot is None or free_compute < slot.compute:
            return
        free_compute -= slot.compute
        masks = frozenset(
            taken | slot.interval(start) for taken in masks for start in slot.starts if not taken & slot.interval(start)
        )
        if not masks:
            return


def _one_more(counts: Counts) -> Iterator[Counts]:
    return ((*counts[:index], count + 1, *counts[index + 1 :]) for index, count in enumerate(counts))


def _volume(counts: Counts, slots: tuple[ProfileSlots | None, ...]) -> int:
    return sum(count * slot.length for count, slot in zip(counts, slots, strict=True) if slot)


class _Search:
    """One search: it distributes the requested instances over the GPUs in their order, and remembers dead ends."""

    def __init__(self, gpus: tuple[_GPU, ...]) -> None:
        self._gpus = gpus
        self._dead_ends: set[tuple[int, Counts]] = set()
        self._limits_from = _sums_from(
            tuple(
                (
                    *_capacity_alone(gpu),
                    gpu.occupancy.free_compute,
                    gpu.geometry.memory_total - gpu.occupancy.taken_memory.bit_count(),
                )
                for gpu in gpus
            )
        )
        self._sizes = tuple(zip(*map(_smallest_size, *(gpu.slots for gpu in gpus)), strict=True)) if gpus else ()

    def shares(self, requested: Counts, first: int = 0) -> tuple[Counts, ...] | None:
        """Give the instances that each GPU from index `first` on takes; None if they cannot take all."""
        if not any(requested):
            return (requested,) * (len(self._gpus) - first)
        if self._exceeds_limits(requested, first) or (first, requested) in self._dead_ends:
            return None
        for filling in self._gpus[first].fillings(requested):
            rest = tuple(count - share for count, share in zip(requested, filling, strict=True))
            if (others := self.shares(rest, first + 1)) is not None:
                return (filling, *others)
        self._dead_ends.add((first, requested))
        return None

    def _exceeds_limits(self, requested: Counts, first: int) -> bool:
        """Tell whether a profile, the compute slices or the memory slices exceed what the GPUs from `first` on have."""
        if first == len(self._gpus):
            return True
        sums = (sum(map(mul, requested, sizes)) for sizes in self._sizes)
        return any(count > limit for count, limit in zip((*requested, *sums), self._limits_from[first], strict=True))


def _smallest_size(*slots: ProfileSlots | None) -> tuple[int, int]:
    """Give the least compute slices and the least memory slices that a profile takes on any of the GPUs."""
    available = [slot for slot in slots if slot]
    return min((slot.compute for slot in available), default=0), min((slot.length for slot in available), default=0)


def _capacity_alone(gpu: _GPU) -> Counts:
    """Give the number of instances of each profile that the GPU takes if it takes no other profile."""
    return tuple(
        _most_instances(gpu.occupancy, slot) if slot and gpu.occupancy.remaining_instances(slot) > 0 else 0
        for slot in gpu.slots
    )


def _most_instances(occupancy: SliceOccupancy, slot: ProfileSlots) -> int:
    most = (occupancy.remaining_instances(slot),)
    fillings = _maximal_fillings(occupancy.taken_memory, occupancy.free_compute, (slot,), most)
    return max(counts[0] for counts in fillings)


def _sums_from(rows: Sequence[Counts]) -> tuple[Counts, ...]:
    """Give for each row the sums of the columns from that row to the last; a row of zeros is added at the end."""
    sums = [(0,) * (len(rows[0]) if rows else 0)]
    for row in reversed(rows):
        sums.append(tuple(map(sum, zip(row, sums[-1], strict=True))))
    return tuple(reversed(sums))
