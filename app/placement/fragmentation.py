# SPDX-License-Identifier: Apache-2.0
"""The fragmentation gradient: how much free GPU a placement strands for the pods that are expected (F52, F61).

F(node) is the expected free GPU, in milli, that the next pod cannot use: Weng et al., "Beware of Fragmentation",
USENIX ATC '23, section 3. The score is of F before less F after.
"""

from bisect import bisect_right
from functools import lru_cache
from math import exp

from app.knowledge.mig import profile_of
from app.nodeclass import Free, Node
from app.placement.filters import allows
from app.policy.demand import Demand
from app.policy.outlook import Outlook

WHOLE_MILLI = 1000
LEVELS = 100
"""Steps of the score, as in the paper's plugin: nodes within one step are equals, so that the order of names fills
them one after another; the exact value opens a new node too soon (94.2 % allocated instead of 95.2)."""
SQUASH_MILLI = 1000.0
"""A change of F by one GPU is one unit of the sigmoid (the paper's plugin)."""
NEUTRAL = 0.5
"""Where nothing is expected, or slices are asked: of those counts say nothing."""
MOST_UNITS = 256
"""Units of a node that are told apart: sixteen GPUs, each shared by sixteen; a node may claim a billion."""
STATES_KEPT = 1 << 15
"""Node states remembered, for each of three questions, at some 300 bytes; LRU."""
TABLES_KEPT = 256
"""Outlooks by product remembered; a fleet has a dozen products."""

GPUs = tuple[int, ...]
"""Free milli per GPU, largest first."""
_Row = tuple[float, tuple[tuple[int, int, float], ...]]
"""Probability of the classes that cannot run for want of CPU, or product; (milli, GPUs, probability) of the others."""


def fragmentation(demand: Demand, node: Node) -> float:
    """Prefer the node where the pod strands the least free GPU, or uses what is stranded already."""
    if demand.outlook is None:
        return NEUTRAL
    return _score(demand, demand.outlook, node.node_class.product, node.free.cpu_milli, free_gpus(node.free))


@lru_cache(STATES_KEPT)
def _score(demand: Demand, outlook: Outlook, product: str | None, cpu: int | None, gpus: GPUs) -> float:
    if any(profile_of(name) for name, _ in demand.resources):
        return NEUTRAL
    ways = placements(gpus, sum(amount for _, amount in demand.resources), demand.share_milli)
    if not ways:
        return 0.0
    left = None if cpu is None else cpu - demand.cpu_milli
    gain = stranded(outlook, product, cpu, gpus) - min(stranded(outlook, product, left, each) for each in ways)
    return int(LEVELS / (1.0 + exp(-gain / SQUASH_MILLI))) / LEVELS


def free_gpus(free: Free) -> GPUs:
    """Give the free milli per GPU; where only counts are known, each free unit counts as a whole GPU."""
    if free.gpus is not None:
        return free.gpus
    units = sum(max(0, units) for name, units in free.units.items() if not profile_of(name))
    return (WHOLE_MILLI,) * min(units, MOST_UNITS)


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


def stranded(outlook: Outlook, product: str | None, cpu_milli: int | None, gpus: GPUs) -> float:
    """Compute F: the expected free milli that the next pod cannot use. `cpu_milli`: None is as much as anybody asks."""
    steps = _table(outlook, product)[0]
    return _stranded(outlook, product, len(steps) if cpu_milli is None else bisect_right(steps, cpu_milli), gpus)


@lru_cache(STATES_KEPT)
def _stranded(outlook: Outlook, product: str | None, step: int, gpus: GPUs) -> float:
    free = sum(gpus)
    unable, able = _table(outlook, product)[1][step]
    found = unable * free
    for milli, count, probability in able:
        usable = [size for size in gpus if size >= milli]
        found += probability * (free - sum(usable) if len(usable) >= count else free)
    return found


@lru_cache(TABLES_KEPT)
def _table(outlook: Outlook, product: str | None) -> tuple[tuple[int, ...], tuple[_Row, ...]]:
    """Sort the classes by the CPU that they ask: the amounts, and a row for each number of amounts that there is."""
    steps = tuple(sorted({ask.cpu_milli for ask, _ in outlook.asks}))
    return steps, tuple(_row(outlook, product, frozenset(steps[:count])) for count in range(len(steps) + 1))


def _row(outlook: Outlook, product: str | None, served: frozenset[int]) -> _Row:
    unable = 0.0
    able: dict[tuple[int, int], float] = {}
    for ask, probability in outlook.asks:
        constrained = bool(ask.products or ask.denied_products)
        runs = ask.cpu_milli in served and (not constrained or (product is not None and allows(ask, product)))
        if not ask.gpus or not runs:
            unable += probability
            continue
        key = (ask.share_milli or WHOLE_MILLI, ask.gpus)
        able[key] = able.get(key, 0.0) + probability
    return unable, tuple((*key, probability) for key, probability in able.items())
