# SPDX-License-Identifier: Apache-2.0
"""F: how much free GPU of a node the pods that are expected cannot use (F52, F61).

Weng et al., "Beware of Fragmentation", USENIX ATC '23, section 3.
"""

from bisect import bisect_right
from functools import lru_cache

from app.knowledge.mig_profiles import profile_of
from app.nodes.model import FreeResources
from app.placement.filters import allows
from app.placement.packing import WHOLE_MILLI
from app.policy.expected_demand import DemandClass, ExpectedDemand

MOST_UNITS = 256
"""Units of a node that are told apart: sixteen GPUs, each shared by sixteen; a node may claim a billion."""
STATES_KEPT = 1 << 15
"""Node states remembered, for each of three questions, at some 300 bytes; LRU."""
TABLES_KEPT = 256
"""Outlooks by product remembered; a fleet has a dozen products."""
ROWS_KEPT = 1 << 12
"""Of these, by the CPU that is left: an outlook has some dozens of different amounts."""

GPUs = tuple[int, ...]
"""Free milli per GPU, largest first."""
_Row = tuple[float, tuple[tuple[int, int, float], ...]]
"""Probability of the classes that cannot run for want of CPU, or product; (milli, GPUs, probability) of the others."""


def free_gpus(free: FreeResources) -> GPUs:
    """Give the free milli per GPU; where only counts are known, each free unit counts as a whole GPU."""
    if free.gpus is not None:
        return free.gpus
    idle = 0
    for name, units in free.units.items():  # asked of every node: half the time of sum() over a generator
        if units > 0 and not profile_of(name):
            idle += units
    return (WHOLE_MILLI,) * min(idle, MOST_UNITS)


@lru_cache(STATES_KEPT)
def placements(gpus: GPUs, count: int, share_milli: int) -> tuple[GPUs, ...]:
    """List what can be left of a node's GPUs once a pod is there, the fullest GPU that has room first."""
    if not count:
        return (gpus,)
    if not share_milli:
        idle = gpus.count(WHOLE_MILLI)
        return ((*gpus[count:], *(0,) * count),) if count <= idle else ()
    return tuple(
        tuple(sorted((*gpus[:place], size - share_milli, *gpus[place + 1 :]), reverse=True))
        for place, size in sorted(enumerate(gpus), key=lambda each: each[1])
        if size >= share_milli and (place == 0 or gpus[place - 1] != size)
    )


def stranded(outlook: ExpectedDemand, product: str | None, cpu_milli: int | None, gpus: GPUs) -> float:
    """Compute F: the expected free milli that the next pod cannot use. `cpu_milli`: None is as much as anybody asks."""
    steps = _steps(outlook)
    return _stranded(outlook, product, len(steps) if cpu_milli is None else bisect_right(steps, cpu_milli), gpus)


@lru_cache(STATES_KEPT)
def _stranded(outlook: ExpectedDemand, product: str | None, step: int, gpus: GPUs) -> float:
    free = sum(gpus)
    unable, able = _row(outlook, product, step)
    found = unable * free
    for milli, count, probability in able:
        usable = [size for size in gpus if size >= milli]
        found += probability * (free - sum(usable) if len(usable) >= count else free)
    return found


@lru_cache(TABLES_KEPT)
def _steps(outlook: ExpectedDemand) -> tuple[int, ...]:
    """Sort the amounts of CPU that are asked: between two of them a node serves the same classes."""
    return tuple(sorted({ask.cpu_milli for ask, _ in outlook.asks}))


@lru_cache(ROWS_KEPT)
def _row(outlook: ExpectedDemand, product: str | None, step: int) -> _Row:
    """Sum up the classes for a node whose CPU is enough for the first amounts, so many of them."""
    steps = _steps(outlook)
    most = steps[step - 1] if step else -1
    able: dict[tuple[int, int], float] = {}
    for ask, probability in _suited(outlook, product):
        if ask.cpu_milli <= most:
            key = (ask.share_milli or WHOLE_MILLI, ask.gpus)
            able[key] = able.get(key, 0.0) + probability
    unable = sum(probability for _, probability in outlook.asks) - sum(able.values())
    return max(0.0, unable), tuple((*key, probability) for key, probability in able.items())


@lru_cache(TABLES_KEPT)
def _suited(outlook: ExpectedDemand, product: str | None) -> tuple[tuple[DemandClass, float], ...]:
    """Give the classes that ask for GPUs and may run on a product."""
    return tuple(each for each in outlook.asks if each[0].gpus and suits(each[0], product))


def suits(ask: DemandClass, product: str | None) -> bool:
    """Tell whether a class may run on a product; on an unknown one where it asks for none."""
    return not ask.constrained or (product is not None and allows(ask, product))
