# SPDX-License-Identifier: Apache-2.0
"""Arrivals: in which order a workload's pods come, as the published experiment draws them."""

from collections.abc import Sequence
from random import Random

from app.simulate.trace import Task

INFLATED_PERCENT = 130
"""Pods arrive until they have asked for this share of all GPUs ("tune" of the published experiment)."""
EARLY_SHARE = 3, 4
"""Of a workload that shifts half-way: three of four small pods come in its first half, and one of four others."""


def draw(tasks: Sequence[Task], capacity_milli: int, seed: int) -> tuple[int, ...]:
    """Give the tasks in the order of arrival, by their positions: a shuffle, then more drawn with replacement.

    The draw whose milli *per GPU* would cross the target is the end and does not come, so that one of eight GPUs may
    overshoot by seven. A workload that asks for more from the start loses random tasks. Random numbers are Python's
    `random.Random(seed)`; the published seeds are Go's, and give other orders.
    """
    rng = Random(seed)
    order = list(range(len(tasks)))
    rng.shuffle(order)
    target = capacity_milli * INFLATED_PERCENT // 100
    asked = sum(task.milli for task in tasks)
    if asked > target:
        while asked > target:
            asked -= tasks[order.pop(rng.randrange(len(order)))].milli
        return tuple(order)
    while True:
        drawn = rng.randrange(len(tasks))
        if asked + tasks[drawn].gpu_milli > target:
            return tuple(order)
        asked += tasks[drawn].milli
        order.append(drawn)


def shifted(order: Sequence[int], tasks: Sequence[Task], seed: int) -> tuple[int, ...]:
    """Give the same arrivals as a workload that shifts half-way: shares of GPUs and CPU pods first, whole GPUs later.

    Either half is shuffled anew.
    """
    rng = Random(f"{seed} shifted")
    mixed = list(order)
    rng.shuffle(mixed)
    small = [each for each in mixed if tasks[each].milli < 1000]
    large = [each for each in mixed if tasks[each].milli >= 1000]
    part, whole = EARLY_SHARE
    early_small, early_large = len(small) * part // whole, len(large) * (whole - part) // whole
    early = small[:early_small] + large[:early_large]
    late = small[early_small:] + large[early_large:]
    rng.shuffle(early)
    rng.shuffle(late)
    return (*early, *late)
