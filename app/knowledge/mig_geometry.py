# SPDX-License-Identifier: Apache-2.0
"""MIG geometry: which MIG instances fit together on one GPU, at which positions, and on the GPUs of a node.

A set of instances fits if and only if each gets a legal start, their memory intervals do not overlap, the compute
slices suffice, and no profile exceeds its maximum (mig_profiles.yaml `rules`, from the MIG user guide and the output of
`nvidia-smi mig -lgipp`). Counting slices is not enough, since their positions matter.

The search over the GPUs of a node is exact. A set that fits on a GPU also fits with one instance less. So if a solution
exists, there is one in which each GPU in turn gets a maximal filling, that is, one to which no requested instance can
be added. Only such fillings are tried, and combinations of remaining requests and GPUs that failed are remembered.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import mul
from typing import Any, NamedTuple

from app.knowledge.products import normal_form

LAYOUTS_KEPT = 1 << 12
"""Pairs of a GPU's state and requested profiles in each cache of placements; one takes about 300 bytes. A guess."""


@dataclass(frozen=True, slots=True)
class ProfileSlots:
    """The positions that instances of one profile may have: legal starts and length, in memory slices.

    `compute` is the number of compute slices of an instance, and `max_instances` the maximum of instances on one GPU.
    """

    profile: str
    compute: int
    starts: tuple[int, ...]
    length: int
    max_instances: int

    def interval(self, start: int) -> int:
        """Give the memory slices of an instance as a bit mask."""
        return ((1 << self.length) - 1) << start


class Instance(NamedTuple):
    """One MIG instance on a GPU: its profile as resource names write it, and its first memory slice."""

    profile: str
    start: int


@dataclass(frozen=True, eq=False)
class Geometry:
    """The legal positions on GPUs of one product, by profile as resource names write it.

    `inferred` says that the table takes them over from a similar product. Geometries are compared by identity, because
    they are part of cache keys and the tables are loaded once.
    """

    slots: Mapping[str, ProfileSlots]
    compute_total: int
    inferred: bool

    @cached_property
    def memory_total(self) -> int:
        """The number of memory slices of the GPU, that is, the highest end of any instance."""
        return max(slot.starts[-1] + slot.length for slot in self.slots.values())

    def find_starts(self, profiles: Sequence[str], taken: Iterable[Instance] = ()) -> tuple[int, ...] | None:
        """Find a start for an instance of each profile, in the order given, beside the instances in `taken`.

        The result is None if they do not fit. Raises KeyError for a profile that the product does not have.
        """
        slots = [self.slots[profile] for profile in profiles]
        occupancy = self.occupancy(taken)
        if any(profiles.count(slot.profile) > occupancy.remaining_instances(slot) for slot in slots):
            return None
        if sum(slot.compute for slot in slots) > occupancy.free_compute:
            return None
        order = sorted(range(len(slots)), key=lambda index: -slots[index].length)  # large ones have the fewest starts
        starts = _find_free_starts(tuple(slots[index] for index in order), occupancy.taken_memory)
        if starts is None:
            return None
        by_position = dict(zip(order, starts, strict=True))
        return tuple(by_position[index] for index in range(len(slots)))

    def occupancy(self, taken: Iterable[Instance] = ()) -> "SliceOccupancy":
        """Work out which slices of a GPU its existing instances take, and what they leave.

        Raises KeyError for a profile that the product does not have.
        """
        taken_memory, free_compute, counts = 0, self.compute_total, dict[str, int]()
        for profile, start in taken:
            slot = self.slots[profile]
            taken_memory |= slot.interval(start)
            free_compute -= slot.compute
            counts[profile] = counts.get(profile, 0) + 1
        return SliceOccupancy(taken_memory, free_compute, tuple(sorted(counts.items())))


class SliceOccupancy(NamedTuple):
    """What the existing MIG instances of one GPU take, and what they leave.

    `taken_memory` is a bit mask of the memory slices that instances take: bit n is set if slice n is taken. A position
    matters for memory slices and not for compute slices, so `free_compute` is only the number of compute slices that
    no instance takes. `counts` are pairs of profile and number of existing instances, sorted.
    """

    taken_memory: int
    free_compute: int
    counts: tuple[tuple[str, int], ...]

    def remaining_instances(self, slot: ProfileSlots) -> int:
        """Give how many more instances of a profile its maximum allows."""
        return slot.max_instances - dict(self.counts).get(slot.profile, 0)


@lru_cache(LAYOUTS_KEPT)
def _find_free_starts(slots: tuple[ProfileSlots, ...], taken: int) -> tuple[int, ...] | None:
    """Try each start of the first slot, and place the others beside it; `taken` is a bit mask of memory slices."""
    if not slots:
        return ()
    first, *rest = slots
    for start in first.starts:
        interval = first.interval(start)
        if not taken & interval:
            others = _find_free_starts(tuple(rest), taken | interval)
            if others is not None:
                return (start, *others)
    return None


def load_geometry(rows: Iterable[Mapping[str, Any]]) -> Mapping[str, Geometry]:
    """Index the `products` of mig_profiles.yaml by product in normal form, without those that have no placements."""
    return {normal_form(product): geometry for row in rows for product, geometry in _geometries(row)}


def _geometries(row: Mapping[str, Any]) -> Iterator[tuple[str, Geometry]]:
    slots = {slot.profile: slot for slot in map(_slot, row["profiles"]) if slot}
    if slots:
        geometry = Geometry(slots, row["compute_slices_total"], bool(row.get("placement_inferred")))
        yield from ((product, geometry) for product in row["gfd_products"])


def _slot(row: Mapping[str, Any]) -> ProfileSlots | None:
    placements = row["placements"]
    if placements is None:
        return None
    return ProfileSlots(
        profile=row["profile"].replace("+", "."),
        compute=row["compute_slices"],
        starts=tuple(placements["starts"]),
        length=placements["size"],
        max_instances=row["max_instances"],
    )


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
    shares = _InstanceSearch(gpus).shares(tuple(requested.count(profile) for profile in profiles))
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
        limits = []  # what the GPU could take of each profile, so that the cache has fewer keys
        for slot, count in zip(self.slots, requested, strict=True):
            by_compute = self.occupancy.free_compute // slot.compute if slot else 0
            limits.append(max(0, min(count, by_compute, self.occupancy.remaining_instances(slot))) if slot else 0)
        return _maximal_fillings(*state, self.slots, tuple(limits))


@lru_cache(LAYOUTS_KEPT)
def _maximal_fillings(
    taken_memory: int, free_compute: int, slots: tuple[ProfileSlots | None, ...], most: Counts
) -> tuple[Counts, ...]:
    fitting = set(_fitting_counts(frozenset((taken_memory,)), free_compute, slots, most))
    full = []
    for counts in fitting:
        one_more = ((*counts[:index], count + 1, *counts[index + 1 :]) for index, count in enumerate(counts))
        if fitting.isdisjoint(one_more):
            volume = sum(count * slot.length for count, slot in zip(counts, slots, strict=True) if slot)
            full.append((-volume, counts))
    return tuple(counts for _, counts in sorted(full))


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


class _InstanceSearch:
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
