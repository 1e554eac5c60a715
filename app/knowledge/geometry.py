# SPDX-License-Identifier: Apache-2.0
"""MIG geometry: which instances fit together on one GPU, and where; slots, never counts (PAINS P13).

A set fits iff every instance gets a legal start, memory intervals do not overlap, compute slices suffice, and no
profile exceeds its maximum (mig_profiles.yaml `rules`, from the MIG user guide and lgipp captures).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from app.knowledge.products import normal_form


@dataclass(frozen=True, slots=True)
class Slot:
    """Where instances of one profile may lie: legal starts and length in memory slices; `most`: instances a GPU."""

    profile: str
    compute: int
    starts: tuple[int, ...]
    length: int
    most: int


@dataclass(frozen=True)
class Geometry:
    """One product's slots, by profile as resource names write it; `inferred`: taken over from a sister product."""

    slots: Mapping[str, Slot]
    compute_total: int
    inferred: bool

    def places(self, profiles: Sequence[str]) -> tuple[int, ...] | None:
        """Find a start for each instance, in the order given; None if they do not fit on one GPU.

        Raises KeyError for a profile that the product does not have.
        """
        slots = [self.slots[profile] for profile in profiles]
        too_many = any(profiles.count(slot.profile) > slot.most for slot in slots)
        if too_many or sum(slot.compute for slot in slots) > self.compute_total:
            return None
        order = sorted(range(len(slots)), key=lambda index: -slots[index].length)  # large ones have the fewest places
        found = _place(tuple((slots[index].starts, slots[index].length) for index in order), 0)
        if found is None:
            return None
        by_position = dict(zip(order, found, strict=True))
        return tuple(by_position[index] for index in range(len(slots)))


@cache
def _place(slots: tuple[tuple[tuple[int, ...], int], ...], taken: int) -> tuple[int, ...] | None:
    """Try the starts of the first slot, then the others beside it; `taken` is a bit a memory slice."""
    if not slots:
        return ()
    (starts, length), *rest = slots
    for start in starts:
        interval = ((1 << length) - 1) << start
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


def _slot(row: Mapping[str, Any]) -> Slot | None:
    placements = row["placements"]
    if placements is None:
        return None
    return Slot(
        profile=row["profile"].replace("+", "."),
        compute=row["compute_slices"],
        starts=tuple(placements["starts"]),
        length=placements["size"],
        most=row["max_instances"],
    )
