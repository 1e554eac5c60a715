# SPDX-License-Identifier: Apache-2.0
"""MIG geometry: which MIG instances fit together on one GPU, and at which positions.

A set of instances fits if and only if each gets a legal start, their memory intervals do not overlap, the compute
slices suffice, and no profile exceeds its maximum (mig_profiles.yaml `rules`, from the MIG user guide and the output of
`nvidia-smi mig -lgipp`). Counting slices is not enough, since their positions matter.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from app.knowledge.products import normal_form

STATES_KEPT = 1 << 12
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


@lru_cache(STATES_KEPT)
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
