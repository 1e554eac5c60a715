# SPDX-License-Identifier: Apache-2.0
"""Expected demand and free capacity summed up from plain lists, for tests and benches."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping

from app.nodes.model import Node
from app.placement.scheduler_demand import expected_from_weights
from app.placement.unusable_capacity import GPUs, cpu_steps, free_gpus, unusable_milli_at_step
from app.policy.demand import DemandClass, ExpectedDemand


def expected_from_classes(
    classes: Iterable[DemandClass], free: Mapping[str, int] | None = None
) -> ExpectedDemand | None:
    """Give the expected demand by a list of classes, in which each counts as often as it occurs."""
    return expected_from_weights({one: float(number) for one, number in Counter(classes).items()}, free or {})


def unusable_milli(expected_demand: ExpectedDemand, product: str | None, cpu_milli: int | None, gpus: GPUs) -> float:
    """Compute F by the free CPU of the node; None means that CPU is sufficient for each class."""
    steps = cpu_steps(expected_demand)
    step = len(steps) if cpu_milli is None else bisect_right(steps, cpu_milli)
    return unusable_milli_at_step(expected_demand, product, gpus, step)


def free_by_product(nodes: Iterable[Node]) -> Mapping[str, int]:
    """Sum up the free GPU capacity in thousandths by product, including products of which nothing is free."""
    free: dict[str, int] = {}
    for node in nodes:
        if (product := node.node_class.product) is not None:
            free[product] = free.get(product, 0) + sum(free_gpus(node.free))
    return free
