# SPDX-License-Identifier: Apache-2.0
"""The fragmentation measure F, and waste: the free GPU capacity of a node that expected pods cannot use.

F counts what no expected pod's GPU need fits, and is from Weng et al., "Beware of Fragmentation", USENIX ATC '23,
section 3. Waste also counts what is free without enough CPU; the Fragmentation scorer takes it.
"""

from bisect import bisect_right
from functools import lru_cache, partial

from app.knowledge.mig_profiles import profile_of
from app.nodes.model import WHOLE_MILLI, FreeResources, Node
from app.placement.filters import allows_product
from app.policy.demand import DemandClass, ExpectedDemand

MOST_UNITS = 256
"""Free units of a node that count, enough for sixteen GPUs each shared by sixteen; a node may report a billion."""
STATES_KEPT = 1 << 15
"""Node states in each of the caches; one takes about 300 bytes."""
TABLES_KEPT = 256
"""Pairs of expected demand and product in the caches; a cluster has a dozen products."""
ROWS_KEPT = 1 << 12
"""Such pairs with an amount of free CPU in the cache; an expected demand has some dozens of different amounts."""

GPUs = tuple[int, ...]
"""The free capacity of each GPU of a node in thousandths, largest first."""
_Row = tuple[float, tuple[tuple[int, int, float], ...]]
"""The probability of the classes that lack CPU or product on a node, and (thousandths of each GPU, GPUs, probability)
of the other classes."""


def free_gpus(free: FreeResources) -> GPUs:
    """Give the free capacity of each GPU; where only counts are known, each free unit counts as a whole GPU."""
    if free.gpus is not None:
        return free.gpus
    idle = 0
    for name, units in free.units.items():  # runs for each node, in half the time of sum() over a generator
        if units > 0 and not profile_of(name):
            idle += units
    return (WHOLE_MILLI,) * min(idle, MOST_UNITS)


def whole_milli(node: Node) -> int:
    """Give the GPU capacity of a node in thousandths, free or not, as `free_gpus` counts it."""
    if node.free.gpus is not None:
        return WHOLE_MILLI * len(node.free.gpus)
    units = sum(units for name, units in node.node_class.offered if not profile_of(name))
    return WHOLE_MILLI * min(units, MOST_UNITS)


@lru_cache(STATES_KEPT)
def placements(gpus: GPUs, count: int, share_milli: int) -> tuple[GPUs, ...]:
    """List the possible free capacities of a node's GPUs with the pod, first that on the fullest GPU with room."""
    if not count:
        return (gpus,)
    if not share_milli:
        idle = gpus.count(WHOLE_MILLI)
        return ((*gpus[count:], *(0,) * count),) if count <= idle else ()
    return tuple(
        tuple(sorted((*gpus[:place], size - share_milli, *gpus[place + 1 :]), reverse=True))
        for place, size in sorted(enumerate(gpus), key=lambda position_and_size: position_and_size[1])
        if size >= share_milli and (place == 0 or gpus[place - 1] != size)
    )


@lru_cache(STATES_KEPT)
def unusable_milli_at_step(expected_demand: ExpectedDemand, product: str | None, gpus: GPUs, step: int) -> float:
    """Compute F: the expected free capacity, in thousandths of a GPU, that the next pod cannot use.

    The node's CPU suffices for the first `step` amounts of `cpu_steps`.
    """
    free = sum(gpus)
    unable, able = _class_sums(expected_demand, product, step)
    lost = unable * free
    for milli, count, probability in able:
        usable = [size for size in gpus if size >= milli]
        lost += probability * (free - sum(usable) if len(usable) >= count else free)
    return lost


@lru_cache(TABLES_KEPT)
def cpu_steps(expected_demand: ExpectedDemand) -> tuple[int, ...]:
    """Sort the amounts of CPU of the classes; a node serves the same classes with any free CPU between two of them."""
    return tuple(sorted({demand_class.cpu_milli for demand_class, _ in expected_demand.classes}))


@lru_cache(ROWS_KEPT)
def _class_sums(expected_demand: ExpectedDemand, product: str | None, step: int) -> _Row:
    """Sum up the classes for a node whose CPU suffices for the first `step` amounts of CPU."""
    steps = cpu_steps(expected_demand)
    most = steps[step - 1] if step else -1
    able: dict[tuple[int, int], float] = {}
    for demand_class, probability in _classes_on_product(expected_demand, product):
        if demand_class.cpu_milli <= most:
            key = (demand_class.share_milli or WHOLE_MILLI, demand_class.gpus)
            able[key] = able.get(key, 0.0) + probability
    unable = sum(probability for _, probability in expected_demand.classes) - sum(able.values())
    return max(0.0, unable), tuple((*key, probability) for key, probability in able.items())


@lru_cache(TABLES_KEPT)
def _classes_on_product(expected_demand: ExpectedDemand, product: str | None) -> tuple[tuple[DemandClass, float], ...]:
    """Give the classes that request GPUs and can run on a product, with their probabilities."""
    return tuple(
        (demand_class, probability)
        for demand_class, probability in expected_demand.classes
        if demand_class.gpus  # only a class without constraints can run on an unknown product
        if not demand_class.constrained or (product is not None and allows_product(demand_class, product))
    )


CPU_FILL = 0.85
"""The share of the mean CPU for a GPU that a free GPU needs, since the pods on a full cluster need less than the mean.
Tuned on four seeds of the published traces: with values from 0.7 to 1 the allocated GPUs are within 0.3 percentage
points, and with 1 nodes of eight idle GPUs are broken into early."""
UNUSED_CPU = 0.1
"""The weight of CPU beyond the need of the free GPUs, in the GPUs that it could serve, so that pods with much CPU go
where it is plentiful. With values from 0 to 0.2 the allocated GPUs are within 0.2 percentage points."""
EXPECTED_DEMANDS_KEPT = 16
"""Expected demands in a cache: few exist at a time, and a number of pods that goes up and down needs them again."""


class WasteByCPU:
    """The waste of a node with given free GPUs, in thousandths of a GPU, by its free CPU.

    It is F, and the free GPU capacity for which there is not enough CPU. CPU beyond that need reduces the waste a
    little (UNUSED_CPU). A GPU without CPU counts as a lost GPU; with half or double that the allocated GPUs are within
    0.1 percentage points. Pods without GPUs are no part of F, since they waste none on any node.
    """

    __slots__ = ("_cpu_need", "_free", "_steps", "_unusable", "_unusable_by_step")

    def __init__(self, expected_demand: ExpectedDemand, product: str | None, gpus: GPUs) -> None:
        gpu_demand = classes_with_gpus(expected_demand)
        self._cpu_need = cpu_per_gpu(gpu_demand)
        self._free = sum(gpus)
        self._steps = cpu_steps(gpu_demand)
        self._unusable = partial(unusable_milli_at_step, gpu_demand, product, gpus)
        self._unusable_by_step: dict[int, float] = {}

    def wasted_milli(self, cpu_milli: int | None) -> float:
        """Compute the waste; `cpu_milli` is the free CPU in thousandths of a core, None if it is not known."""
        step = len(self._steps) if cpu_milli is None else bisect_right(self._steps, cpu_milli)
        wasted = self._unusable_by_step.get(step)
        if wasted is None:
            wasted = self._unusable_by_step[step] = self._unusable(step)
        if cpu_milli is None or not self._cpu_need:
            return wasted
        unfed = self._free - cpu_milli / self._cpu_need
        return wasted + (unfed if unfed > 0 else -UNUSED_CPU * unfed)


@lru_cache(EXPECTED_DEMANDS_KEPT)
def classes_with_gpus(expected_demand: ExpectedDemand) -> ExpectedDemand:
    """Give the expected demand of only the classes with GPUs."""
    classes = [
        (demand_class, probability) for demand_class, probability in expected_demand.classes if demand_class.gpus
    ]
    total = sum(probability for _, probability in classes)
    return ExpectedDemand(
        tuple((demand_class, probability / total) for demand_class, probability in classes), expected_demand.free
    )


@lru_cache(EXPECTED_DEMANDS_KEPT)
def cpu_per_gpu(expected_demand: ExpectedDemand) -> float:
    """Give the milli-CPU that a thousandth of a free GPU needs; 0 if no class requests CPU beside GPUs."""
    with_gpus = [item for item in expected_demand.classes if item[0].gpus]
    gpu = sum(probability * demand_class.milli for demand_class, probability in with_gpus)
    cpu = sum(probability * demand_class.cpu_milli for demand_class, probability in with_gpus)
    return CPU_FILL * cpu / gpu if gpu else 0.0
