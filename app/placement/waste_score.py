# SPDX-License-Identifier: Apache-2.0
"""Waste: the free GPU of a node that pods to come will not use, for want of a fitting GPU or for want of CPU (F52)."""

from functools import lru_cache

from app.placement.stranded import GPUs, stranded
from app.policy.expected_demand import ExpectedDemand

FILLED = 0.85
"""How much of the CPU that pods ask beside a GPU a GPU must have left to count as fed: a full cluster's mix is never
the average. Tuned on four seeds of the published traces: 0.7 to 1 are within 0.3 points, at 1 nodes of eight idle GPUs
are broken into early."""
UNUSED_CPU = 0.1
"""What CPU beyond the need of the free GPUs counts, by the GPU it could feed: pods that want CPU go where it is
plenty. 0 to 0.2 are alike within 0.2 points."""
OUTLOOKS_KEPT = 16


def waste(outlook: ExpectedDemand, product: str | None, cpu_milli: int | None, gpus: GPUs) -> float:
    """Compute, in milli: F, and the free GPU that the CPU cannot feed, and a little for CPU that has no GPU left.

    A GPU without CPU counts as a lost GPU; half or double that is alike within 0.1 points. Pods without GPU strand
    nothing, whichever node they use, and are no part of F. `cpu_milli`: None where nobody counts it.
    """
    asked = with_gpus(outlook)
    found = stranded(asked, product, cpu_milli, gpus)
    hunger = cpu_per_gpu(asked)
    if cpu_milli is None or not hunger:
        return found
    unfed = sum(gpus) - cpu_milli / hunger
    return found + (unfed if unfed > 0 else -UNUSED_CPU * unfed)


@lru_cache(OUTLOOKS_KEPT)
def with_gpus(outlook: ExpectedDemand) -> ExpectedDemand:
    """Leave the pods without GPU out."""
    asks = [(ask, probability) for ask, probability in outlook.asks if ask.gpus]
    everything = sum(probability for _, probability in asks)
    return ExpectedDemand(tuple((ask, probability / everything) for ask, probability in asks), outlook.free)


@lru_cache(OUTLOOKS_KEPT)
def cpu_per_gpu(outlook: ExpectedDemand) -> float:
    """Say how many milli-CPU one GPU milli wants; 0 where nobody asks for CPU beside GPUs."""
    gpu = sum(probability * ask.milli for ask, probability in outlook.asks if ask.gpus)
    cpu = sum(probability * ask.cpu_milli for ask, probability in outlook.asks if ask.gpus)
    return FILLED * cpu / gpu if gpu else 0.0
