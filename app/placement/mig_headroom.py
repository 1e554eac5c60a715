# SPDX-License-Identifier: Apache-2.0
"""Room for MIG slices to come: what placing an instance spoils on a GPU that is carved on demand (F61).

One measure for all: the memory slices that instances of a profile could still take, averaged over the profiles of the
product. It needs no histogram: weights learnt from the mix gained nothing in the churn benchmark (`make bench-mig`,
tests/results/mig-churn.md), and cost nothing to leave out.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, reduce
from itertools import combinations
from operator import or_

from app.knowledge.geometry import STATES_KEPT, Geometry, Instance, ProfileSlots
from app.knowledge.mig_placements import GPULayout, InstancePlacement, places

ENDED = 0.08
"""Chance that an instance has ended by the time its place is wanted. From a prototype of the churn benchmark (40 seeds,
other ones than its own): any of 0.005 to 0.12 does as well within the error; 0 costs 0.2 points of accepted slices."""

EXACT_DIGITS = 12
"""Digits of a loss that are no rounding error: mirrored places cost the same."""


@lru_cache(STATES_KEPT)
def shapes(geometry: Geometry) -> tuple[ProfileSlots, ...]:
    """List a product's profiles that differ in where they may lie: one with a media engine counts as its sister."""
    found: dict[tuple[int, int, tuple[int, ...]], ProfileSlots] = {}
    for slot in sorted(geometry.slots.values(), key=lambda each: -each.most):
        found.setdefault((slot.compute, slot.length, slot.starts), slot)
    return tuple(found.values())


def usable(slot: ProfileSlots, memory: int, compute: int) -> int:
    """Count the memory slices that instances of a profile by themselves could take.

    `memory`: a bit a memory slice that is taken; `compute`: compute slices that are free. Intervals of one length that
    are taken as early as they may be are as many as can be.
    """
    count = end = 0
    for start in slot.starts:
        if start >= end and not memory & slot.interval(start):
            count, end = count + 1, start + slot.length
    return slot.length * min(count, max(0, compute) // slot.compute)


@lru_cache(STATES_KEPT)
def _usable_by_any(geometry: Geometry, memory: int, compute: int) -> int:
    """Sum up over the shapes."""
    return sum(usable(slot, memory, compute) for slot in shapes(geometry))


def prospect(geometry: Geometry, taken: Iterable[Instance] = ()) -> float:
    """Give the share of a GPU that instances to come can use, in [0, 1]: 1 for an empty one, never more with less free.

    The mean over the product's profiles, each by its size, expected over who has ended by then: each instance that lies
    there has with chance ENDED. Raises KeyError for a profile that the product does not have.
    """
    return _prospect(geometry, tuple(sorted(taken)))


@lru_cache(STATES_KEPT)
def _prospect(geometry: Geometry, taken: tuple[Instance, ...]) -> float:
    slots = [(geometry.slots[profile], start) for profile, start in taken]
    parts = [(slot.interval(start), slot.compute) for slot, start in slots]
    expected = 0.0
    for staying in range(len(parts) + 1):
        chance = (1.0 - ENDED) ** staying * ENDED ** (len(parts) - staying)
        for left in combinations(parts, staying):
            memory = reduce(or_, (bits for bits, _ in left), 0)
            compute = geometry.compute_total - sum(each for _, each in left)
            expected += chance * _usable_by_any(geometry, memory, compute)
    return expected / _usable_by_any(geometry, 0, geometry.compute_total)


@lru_cache(STATES_KEPT)
def openings(geometry: Geometry, taken: tuple[Instance, ...], profile: str) -> tuple[tuple[float, int], ...]:
    """List (loss of prospect, start) of every legal place of an instance, by start; none for an unknown profile."""
    slot = geometry.slots.get(profile)
    room = geometry.room(taken)
    if slot is None or room.compute < slot.compute or room.left(slot) < 1:
        return ()
    before = prospect(geometry, taken)
    free = [start for start in slot.starts if not room.memory & slot.interval(start)]
    after = (prospect(geometry, (*taken, Instance(profile, start))) for start in free)
    return tuple((round(before - each, EXACT_DIGITS), start) for each, start in zip(after, free, strict=True))


def least_spoiling(layouts: Sequence[GPULayout], profile: str) -> InstancePlacement | None:
    """Find the place of an instance that spoils least; of equals the highest start, then the first GPU. None: no place.

    The low starts stay for large instances, most of which may start nowhere else.
    """
    found = [
        (loss, -start, index)
        for index, layout in enumerate(layouts)
        for loss, start in openings(layout.geometry, layout.taken, profile)
    ]
    _, start, index = min(found, default=(0.0, 0, 0))
    return InstancePlacement(index, -start) if found else None


def first_fit(layouts: Sequence[GPULayout], wanted: Sequence[str]) -> Sequence[InstancePlacement] | None:
    """Say where kube-scheduler will put instances on a node: each at the first place that is free, in order.

    Its allocator takes the first device that will do, in the order listed, and nobody can tell it another one
    (k8s.io/dynamic-resource-allocation, allocateOne). NVIDIA's driver lists by GPU, then by name: profile and start
    (generateSplitResourceSlices). Were the GPUs listed in another order, 0.1 to 1.4 points of the 1 to 9 that choosing
    the node gains would be lost (a prototype, 20 seeds). Where one is left over it tries others; None if nothing helps.
    """
    now = list(layouts)
    found = []
    for profile in wanted:
        place = next(_free_places(now, profile), None)
        if place is None:
            return places(layouts, wanted)
        found.append(place)
        now[place.gpu] = _with(now[place.gpu], Instance(profile, place.start))
    return found


def _free_places(layouts: Sequence[GPULayout], profile: str) -> Iterator[InstancePlacement]:
    for index, layout in enumerate(layouts):
        for _, start in openings(layout.geometry, layout.taken, profile):
            yield InstancePlacement(index, start)


def _with(layout: GPULayout, instance: Instance) -> GPULayout:
    return GPULayout(layout.gpu, layout.geometry, tuple(sorted((*layout.taken, instance))))


def spoilt(layouts: Sequence[GPULayout], wanted: Sequence[str]) -> float | None:
    """Give the prospect that a node's GPUs lose by what is wanted, where kube-scheduler will put it; None: no place.

    In GPUs: at most as many as instances are wanted.
    """
    found = first_fit(layouts, wanted)
    if found is None:
        return None
    added: dict[int, list[Instance]] = {}
    for profile, place in zip(wanted, found, strict=True):
        added.setdefault(place.gpu, []).append(Instance(profile, place.start))
    return sum(_lost(layouts[index], each) for index, each in sorted(added.items()))


def _lost(layout: GPULayout, added: list[Instance]) -> float:
    return prospect(layout.geometry, layout.taken) - prospect(layout.geometry, (*layout.taken, *added))
