# SPDX-License-Identifier: Apache-2.0
"""MIG geometry: which instances fit together on one GPU, and where; slots, never counts (P13).

A set fits iff every instance gets a legal start, memory intervals do not overlap, compute slices suffice, and no
profile exceeds its maximum (mig_profiles.yaml `rules`, from the MIG user guide and lgipp captures).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from app.knowledge.products import normal_form

STATES_KEPT = 1 << 12
"""GPU states and wishes whose placement is remembered; one is some 300 bytes. Guess, measured nowhere."""


@dataclass(frozen=True, slots=True)
class ProfileSlots:
    """Where instances of one profile may lie: legal starts and length in memory slices; `most`: instances a GPU."""

    profile: str
    compute: int
    starts: tuple[int, ...]
    length: int
    most: int

    def interval(self, start: int) -> int:
        """Give the memory slices of an instance, a bit each."""
        return ((1 << self.length) - 1) << start


class Instance(NamedTuple):
    """One MIG instance on a GPU: its profile as resource names write it, and its first memory slice."""

    profile: str
    start: int


@dataclass(frozen=True, eq=False)
class Geometry:
    """One product's slots, by profile as resource names write it; `inferred`: taken over from a sister product.

    Compared by identity: tables are loaded once, and what is remembered of them goes by it.
    """

    slots: Mapping[str, ProfileSlots]
    compute_total: int
    inferred: bool

    @cached_property
    def memory_total(self) -> int:
        """Count the memory slices of the GPU: as far as any instance reaches."""
        return max(slot.starts[-1] + slot.length for slot in self.slots.values())

    def places(self, profiles: Sequence[str], taken: Iterable[Instance] = ()) -> tuple[int, ...] | None:
        """Find a start for each instance, in the order given, beside those that lie there; None if they do not fit.

        Raises KeyError for a profile that the product does not have.
        """
        slots = [self.slots[profile] for profile in profiles]
        room = self.room(taken)
        if any(profiles.count(slot.profile) > room.left(slot) for slot in slots):
            return None
        if sum(slot.compute for slot in slots) > room.compute:
            return None
        order = sorted(range(len(slots)), key=lambda index: -slots[index].length)  # large ones have the fewest places
        found = _place(tuple(slots[index] for index in order), room.memory)
        if found is None:
            return None
        by_position = dict(zip(order, found, strict=True))
        return tuple(by_position[index] for index in range(len(slots)))

    def room(self, taken: Iterable[Instance] = ()) -> "FreeSlices":
        """Say what the instances on a GPU leave of it.

        Raises KeyError for a profile that the product does not have.
        """
        memory, compute, counts = 0, self.compute_total, dict[str, int]()
        for profile, start in taken:
            slot = self.slots[profile]
            memory |= slot.interval(start)
            compute -= slot.compute
            counts[profile] = counts.get(profile, 0) + 1
        return FreeSlices(memory, compute, tuple(sorted(counts.items())))


class FreeSlices(NamedTuple):
    """What is left of a GPU. `memory`: a bit a memory slice that is taken; `compute`: compute slices that are free.

    `counts`: (profile, instances that lie there), sorted.
    """

    memory: int
    compute: int
    counts: tuple[tuple[str, int], ...]

    def left(self, slot: ProfileSlots) -> int:
        """Say how many more instances of a profile its maximum allows."""
        return slot.most - dict(self.counts).get(slot.profile, 0)


@lru_cache(STATES_KEPT)
def _place(slots: tuple[ProfileSlots, ...], taken: int) -> tuple[int, ...] | None:
    """Try the starts of the first slot, then the others beside it; `taken` is a bit a memory slice."""
    if not slots:
        return ()
    first, *rest = slots
    for start in first.starts:
        interval = first.interval(start)
        if not taken & interval:
            others = _place(tuple(rest), taken | interval)
            if others is not None:
                return (start, *others)
    return None


def load_geometry(rows: Iterable[Mapping[str, Any]]) -> Mapping[str, Geometry]:
    """Index the `products` of mig_profiles.yaml by product in normal form; products without placements are left out."""
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
        most=row["max_instances"],
    )
