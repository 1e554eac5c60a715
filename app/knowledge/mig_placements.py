# SPDX-License-Identifier: Apache-2.0
"""MIG layouts of a node: whether instances fit on its GPUs beside what lies there, and where (F60, P13).

Exact. A set that fits on a GPU still fits with an instance less, so that some solution gives every GPU in turn as
much as it takes of what is wanted: only such fillings are tried, and what one GPU after another leaves is remembered.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from typing import NamedTuple

from app.knowledge.geometry import STATES_KEPT, FreeSlices, Geometry, Instance, ProfileSlots

Counts = tuple[int, ...]
"""Instances by profile, in the order of the wish."""


@dataclass(frozen=True, slots=True)
class GPULayout:
    """One GPU that is carved on demand: its name among the node's, its product's geometry, and what lies there."""

    gpu: str
    geometry: Geometry
    taken: tuple[Instance, ...] = ()


class InstancePlacement(NamedTuple):
    """Where an instance may lie: on which of the GPUs given, by index, and its first memory slice."""

    gpu: int
    start: int


def places(layouts: Sequence[GPULayout], wanted: Sequence[str]) -> tuple[InstancePlacement, ...] | None:
    """Find GPU and start for each instance, in the order given; None if they do not all fit.

    Fuller GPUs are filled first, so that empty ones stay whole. A profile that a product does not have lies on none
    of its GPUs. Raises KeyError where an instance that lies there is of such a profile.
    """
    profiles = tuple(sorted(set(wanted)))
    rooms = [layout.geometry.room(layout.taken) for layout in layouts]
    order = sorted(range(len(layouts)), key=lambda index: (rooms[index].compute, rooms[index]))
    gpus = tuple(_GPU(layouts[index].geometry, rooms[index], _slots(layouts[index], profiles)) for index in order)
    shares = _Search(gpus).shares(tuple(wanted.count(profile) for profile in profiles))
    if shares is None:
        return None
    found: dict[str, list[InstancePlacement]] = {profile: [] for profile in profiles}
    for index, share in zip(order, shares, strict=True):
        chosen = [profile for profile, count in zip(profiles, share, strict=True) for _ in range(count)]
        starts = layouts[index].geometry.places(chosen, layouts[index].taken) or ()
        for profile, start in zip(chosen, starts, strict=True):
            found[profile].append(InstancePlacement(index, start))
    return tuple(found[profile].pop(0) for profile in wanted)


def _slots(layout: GPULayout, profiles: Sequence[str]) -> tuple[ProfileSlots | None, ...]:
    return tuple(layout.geometry.slots.get(profile) for profile in profiles)


class _GPU(NamedTuple):
    """What is left of one GPU, and the slots of the profiles wanted, None where its product has none."""

    geometry: Geometry
    room: FreeSlices
    slots: tuple[ProfileSlots | None, ...]

    def fillings(self, wanted: Counts) -> tuple[Counts, ...]:
        """List all that fits of what is wanted and to which nothing of it can be added, largest first."""
        return _fillings(self.room.memory, self.room.compute, *_limits(self, wanted))


def _limits(gpu: _GPU, wanted: Counts) -> tuple[tuple[ProfileSlots | None, ...], Counts]:
    """Cap what is wanted at what the GPU could take of each profile by itself: fewer wishes to remember."""
    most = []
    for slot, count in zip(gpu.slots, wanted, strict=True):
        by_compute = gpu.room.compute // slot.compute if slot else 0
        most.append(max(0, min(count, by_compute, gpu.room.left(slot))) if slot else 0)
    return gpu.slots, tuple(most)


@lru_cache(STATES_KEPT)
def _fillings(memory: int, compute: int, slots: tuple[ProfileSlots | None, ...], most: Counts) -> tuple[Counts, ...]:
    fitting = set(_fitting(frozenset((memory,)), compute, slots, most))
    full = [each for each in fitting if not any(more in fitting for more in _one_more(each))]
    return tuple(sorted(full, key=lambda each: (-_volume(each, slots), each)))


def _fitting(
    memories: frozenset[int], compute: int, slots: tuple[ProfileSlots | None, ...], most: Counts
) -> Iterator[Counts]:
    """Enumerate the counts that fit. `memories`: all ways to have the memory slices taken so far."""
    if not slots:
        yield ()
        return
    slot = slots[0]
    for count in range(most[0] + 1):
        for others in _fitting(memories, compute, slots[1:], most[1:]):
            yield (count, *others)
        if slot is None or compute < slot.compute:
            return
        compute -= slot.compute
        memories = frozenset(
            taken | slot.interval(start)
            for taken in memories
            for start in slot.starts
            if not taken & slot.interval(start)
        )
        if not memories:
            return


def _one_more(counts: Counts) -> Iterator[Counts]:
    return ((*counts[:index], count + 1, *counts[index + 1 :]) for index, count in enumerate(counts))


def _volume(counts: Counts, slots: tuple[ProfileSlots | None, ...]) -> int:
    return sum(count * slot.length for count, slot in zip(counts, slots, strict=True) if slot)


class _Search:
    """One question: what is wanted is shared out over the GPUs in their order; dead ends are remembered."""

    def __init__(self, gpus: tuple[_GPU, ...]) -> None:
        self._gpus = gpus
        self._dead: set[tuple[int, Counts]] = set()
        self._alone = _sums_from(
            tuple(
                (*_alone(gpu), gpu.room.compute, gpu.geometry.memory_total - gpu.room.memory.bit_count())
                for gpu in gpus
            )
        )
        self._sizes = tuple(zip(*map(_least, *(gpu.slots for gpu in gpus)), strict=True)) if gpus else ()

    def shares(self, wanted: Counts, first: int = 0) -> tuple[Counts, ...] | None:
        """Say what each GPU from `first` on takes; None if they cannot take all."""
        if not any(wanted):
            return (wanted,) * (len(self._gpus) - first)
        if self._hopeless(wanted, first) or (first, wanted) in self._dead:
            return None
        for filling in self._gpus[first].fillings(wanted):
            rest = tuple(count - share for count, share in zip(wanted, filling, strict=True))
            if (others := self.shares(rest, first + 1)) is not None:
                return (filling, *others)
        self._dead.add((first, wanted))
        return None

    def _hopeless(self, wanted: Counts, first: int) -> bool:
        """Tell by counting: one profile by itself, all compute or all memory slices are more than is left."""
        if first == len(self._gpus):
            return True
        sums = (sum(map(mul, wanted, sizes)) for sizes in self._sizes)
        return any(count > most for count, most in zip((*wanted, *sums), self._alone[first], strict=True))


def _least(*slots: ProfileSlots | None) -> tuple[int, int]:
    """Give the least (compute slices, memory slices) that a profile takes on any GPU."""
    found = [slot for slot in slots if slot]
    return min((slot.compute for slot in found), default=0), min((slot.length for slot in found), default=0)


def _alone(gpu: _GPU) -> Counts:
    """Say how many of each profile the GPU takes if it takes nothing else."""
    return tuple(
        max(found[0] for found in _fillings(gpu.room.memory, gpu.room.compute, (slot,), (gpu.room.left(slot),)))
        if slot and gpu.room.left(slot) > 0
        else 0
        for slot in gpu.slots
    )


def _sums_from(rows: Sequence[Counts]) -> tuple[Counts, ...]:
    """Sum up columns from each row to the last; one more, of zeros, stands at the end."""
    sums = [(0,) * (len(rows[0]) if rows else 0)]
    for row in reversed(rows):
        sums.append(tuple(map(sum, zip(row, sums[-1], strict=True))))
    return tuple(reversed(sums))
