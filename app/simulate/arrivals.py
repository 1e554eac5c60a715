# SPDX-License-Identifier: Apache-2.0
"""The order in which the pods of a workload arrive, as in the published experiment."""

from collections.abc import Sequence
from random import Random

from app.simulate.trace import Task

INFLATED_PERCENT = 130
"""Pods arrive until they have requested this share of all GPUs ("tune" of the published experiment)."""
EARLY_SHARE = 3, 4
"""In a workload that shifts half-way, three quarters of the pods that ask less than one GPU in all come in the first
half, and one quarter of the others."""


def draw_arrivals(tasks: Sequence[Task], capacity_milli: int, seed: int) -> tuple[int, ...]:
    """Return the indexes of tasks in their order of arrival: a shuffle, then more drawn with replacement.

    Drawing ends before the task whose milli *per GPU* would exceed the target, so that one with eight GPUs may
    overshoot by seven. A workload that requests more from the start loses random tasks. Random numbers are Python's
    `random.Random(seed)`; the published seeds are Go's and give other orders.
    """
    rng = Random(seed)
    order = list(range(len(tasks)))
    rng.shuffle(order)
    target = capacity_milli * INFLATED_PERCENT // 100
    requested = sum(task.milli for task in tasks)
    if requested > target:
        while requested > target:
            requested -= tasks[order.pop(rng.randrange(len(order)))].milli
        return tuple(order)
    while True:
        drawn = rng.randrange(len(tasks))
        if requested + tasks[drawn].gpu_milli > target:
            return tuple(order)
        requested += tasks[drawn].milli
        order.append(drawn)


def shift_arrivals(order: Sequence[int], tasks: Sequence[Task], seed: int) -> tuple[int, ...]:
    """Return the same arrivals as a workload that shifts half-way: shares of GPUs and CPU pods first, whole GPUs later.

    Each half is shuffled again.
    """
    rng = Random(f"{seed} shifted")
    mixed = list(order)
    rng.shuffle(mixed)
    small = [index for index in mixed if tasks[index].milli < 1000]
    large = [index for index in mixed if tasks[index].milli >= 1000]
    part, whole = EARLY_SHARE
    early_small, early_large = len(small) * part // whole, len(large) * (whole - part) // whole
    early = small[:early_small] + large[:early_large]
    late = small[early_small:] + large[early_large:]
    rng.shuffle(early)
    rng.shuffle(late)
    return (*early, *late)
