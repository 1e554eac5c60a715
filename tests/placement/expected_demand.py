# SPDX-License-Identifier: Apache-2.0
"""The expected demand by a list of classes, the free capacity of nodes, and what of it the next pod cannot use."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from app.nodes.model import Node
from app.placement.scheduler_demand import expected_from_weights
from app.placement.unusable_capacity import GPUs, cpu_steps, free_gpus, unusable_milli_at_step
from app.policy.demand import DemandClass, ExpectedDemand


def expected_from_classes(
    classes: Iterable[DemandClass], free: Mapping[str, int] | None = None
) -> ExpectedDemand | None:
    """Give the expected demand by a list of classes, in which each counts as often as it occurs."""
    weights: dict[DemandClass, float] = {}
    for demand_class in classes:
        weights[demand_class] = weights.get(demand_class, 0.0) + 1.0
    return expected_from_weights(weights, free or {})


def unusable_milli(expected_demand: ExpectedDemand, product: str | None, cpu_milli: int | None, gpus: GPUs) -> float:
    """Compute F: the expected free capacity, in thousandths of a GPU, that the next pod cannot use.

    `cpu_milli` is the free CPU of the node; None means that CPU is sufficient for each class.
    """
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
