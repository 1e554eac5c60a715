# SPDX-License-Identifier: Apache-2.0
"""Where MIG slices fit on the GPUs of a node, and how much headroom they take.

Headroom is what future MIG slices could still take, where slices are created on demand. The measure is the
number of memory slices that instances of a profile could still take, as the mean over the profiles of the product. It
does not depend on the expected demand, since weights learnt from the workload gained nothing in the churn benchmark
(`make bench-mig`, tests/results/mig-churn.md).
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, reduce
from itertools import combinations
from operator import or_

from app.knowledge.mig_geometry import (
    LAYOUTS_KEPT,
    Geometry,
    GPULayout,
    Instance,
    InstancePlacement,
    ProfileSlots,
    place_instances,
)
from app.knowledge.mig_profiles import profile_of
from app.nodes.model import FreeResources
from app.policy.demand import Demand

CHANCE_ENDED = 0.08
"""The probability that an existing instance has ended when a future one needs its place. It is from a prototype of the
churn benchmark (40 other seeds): values from 0.005 to 0.12 are equal within the error; 0 costs 0.2 percentage points of
accepted slices."""

EXACT_DIGITS = 12
"""Decimal digits to which a loss is rounded, so that mirrored places have equal losses."""


@lru_cache(LAYOUTS_KEPT)
def distinct_profiles(geometry: Geometry) -> tuple[ProfileSlots, ...]:
    """List the profiles of a product that differ in size or positions; one with a media engine counts as its equal."""
    profiles: dict[tuple[int, int, tuple[int, ...]], ProfileSlots] = {}
    for slot in sorted(geometry.slots.values(), key=lambda slot: -slot.max_instances):
        profiles.setdefault((slot.compute, slot.length, slot.starts), slot)
    return tuple(profiles.values())


def usable_memory(slot: ProfileSlots, taken_memory: int, free_compute: int) -> int:
    """Count the memory slices that instances of only this profile could take.

    `taken_memory` is a bit mask of the memory slices that are taken, and `free_compute` the number of free compute
    slices. Taking each interval as early as possible gives the largest number, because all have one length.
    """
    count = end = 0
    for start in slot.starts:
        if start >= end and not taken_memory & slot.interval(start):
            count, end = count + 1, start + slot.length
    return slot.length * min(count, max(0, free_compute) // slot.compute)


@lru_cache(LAYOUTS_KEPT)
def _usable_by_all_profiles(geometry: Geometry, memory: int, compute: int) -> int:
    """Sum up the usable memory slices over the distinct profiles."""
    return sum(usable_memory(slot, memory, compute) for slot in distinct_profiles(geometry))


def headroom(geometry: Geometry, taken: Iterable[Instance] = ()) -> float:
    """Give the share of a GPU that future instances can use, in [0, 1], which is 1 for an empty GPU.

    It is the mean over the distinct profiles, as an expected value: each existing instance has ended with the
    probability CHANCE_ENDED. Raises KeyError for a profile that the product does not have.
    """
    return _headroom(geometry, tuple(sorted(taken)))


@lru_cache(LAYOUTS_KEPT)
def _headroom(geometry: Geometry, taken: tuple[Instance, ...]) -> float:
    slots = [(geometry.slots[profile], start) for profile, start in taken]
    parts = [(slot.interval(start), slot.compute) for slot, start in slots]
    expected = 0.0
    for staying in range(len(parts) + 1):
        chance = (1.0 - CHANCE_ENDED) ** staying * CHANCE_ENDED ** (len(parts) - staying)
        for remaining in combinations(parts, staying):
            memory = reduce(or_, (bits for bits, _ in remaining), 0)
            compute = geometry.compute_total - sum(slices for _, slices in remaining)
            expected += chance * _usable_by_all_profiles(geometry, memory, compute)
    return expected / _usable_by_all_profiles(geometry, 0, geometry.compute_total)


@lru_cache(LAYOUTS_KEPT)
def placement_losses(geometry: Geometry, taken: tuple[Instance, ...], profile: str) -> tuple[tuple[float, int], ...]:
    """List (loss of headroom, start) for each legal start of an instance; empty for an unknown profile."""
    slot = geometry.slots.get(profile)
    occupancy = geometry.occupancy(taken)
    if slot is None or occupancy.free_compute < slot.compute or occupancy.remaining_instances(slot) < 1:
        return ()
    before = headroom(geometry, taken)
    free = [start for start in slot.starts if not occupancy.taken_memory & slot.interval(start)]
    after = (headroom(geometry, (*taken, Instance(profile, start))) for start in free)
    return tuple(
        (round(before - afterwards, EXACT_DIGITS), start) for afterwards, start in zip(after, free, strict=True)
    )


def first_fit(layouts: Sequence[GPULayout], profiles: Sequence[str]) -> Sequence[InstancePlacement] | None:
    """Predict where kube-scheduler puts instances on a node; None if they do not fit.

    It puts each instance at the first free place, in order. Its allocator takes the first suitable device in the order
    of the ResourceSlices, without preferences (k8s.io/dynamic-resource-allocation, allocateOne). NVIDIA's driver lists
    devices by GPU, then by name, which has profile and start (generateSplitResourceSlices). If it listed the GPUs in
    another order, 0.1 to 1.4 of the 1 to 9 percentage points of accepted slices that the choice of the node gains would
    be lost (a prototype, 20 seeds). If an instance does not fit at the first free places, the allocator tries other
    ones.
    """
    current = list(layouts)
    chosen = []
    for profile in profiles:
        position = next(_free_places(current, profile), None)
        if position is None:
            return place_instances(layouts, profiles)
        chosen.append(position)
        layout, instance = current[position.gpu], Instance(profile, position.start)
        current[position.gpu] = GPULayout(layout.gpu, layout.geometry, tuple(sorted((*layout.taken, instance))))
    return chosen


def _free_places(layouts: Sequence[GPULayout], profile: str) -> Iterator[InstancePlacement]:
    for index, layout in enumerate(layouts):
        for _, start in placement_losses(layout.geometry, layout.taken, profile):
            yield InstancePlacement(index, start)


def headroom_loss(layouts: Sequence[GPULayout], profiles: Sequence[str]) -> float | None:
    """Give the headroom that instances take from a node's GPUs where kube-scheduler puts them; None if they do not fit.

    It is in GPUs, and at most the number of instances.
    """
    positions = first_fit(layouts, profiles)
    if positions is None:
        return None
    added: dict[int, list[Instance]] = {}
    for profile, position in zip(profiles, positions, strict=True):
        added.setdefault(position.gpu, []).append(Instance(profile, position.start))
    return sum(_lost(layouts[index], instances) for index, instances in sorted(added.items()))


def _lost(layout: GPULayout, added: list[Instance]) -> float:
    return headroom(layout.geometry, layout.taken) - headroom(layout.geometry, (*layout.taken, *added))


def requested_slices(demand: Demand, free: FreeResources) -> list[tuple[str, int]]:
    """List the requested slices that are created on demand, as (resource, amount)."""
    return [(name, amount) for name, amount in demand.resources if profile_of(name) and name in free.uncounted]


def exceeds_all_gpus(slices: list[tuple[str, int]], layouts: tuple[GPULayout, ...]) -> bool:
    """Tell whether the slices are more than the compute slices of all GPUs together, of which each takes at least one.

    It bounds the length of the list that `profiles_of` makes, since a demand may request a billion slices.
    """
    return sum(amount for _, amount in slices) > sum(layout.geometry.compute_total for layout in layouts)


def profiles_of(slices: list[tuple[str, int]]) -> list[str]:
    """List the profile of each slice."""
    return [profile_of(name) or "" for name, amount in slices for _ in range(amount)]
