# SPDX-License-Identifier: Apache-2.0
"""Waste: the free GPU capacity of a node that expected pods cannot use, for lack of a fitting GPU or of CPU."""

from bisect import bisect_right
from functools import lru_cache, partial

from app.placement.unusable_capacity import GPUs, cpu_steps, unusable_milli_at_step
from app.policy.expected_demand import ExpectedDemand

CPU_FILL = 0.85
"""The share of the mean CPU for a GPU that a free GPU needs, since the pods on a full cluster need less than the mean.
Tuned on four seeds of the published traces: with values from 0.7 to 1 the allocated GPUs are within 0.3 percentage
points, and with 1 nodes of eight idle GPUs are broken into early."""
UNUSED_CPU = 0.1
"""The weight of CPU beyond the need of the free GPUs, in the GPUs that it could serve, so that pods with much CPU go
where it is plentiful. With values from 0 to 0.2 the allocated GPUs are within 0.2 percentage points."""
EXPECTED_DEMANDS_KEPT = 16
"""Expected demands in the cache; few exist at a time."""


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
