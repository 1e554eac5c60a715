# SPDX-License-Identifier: Apache-2.0
"""The observed workload: a bounded histogram of demand classes with exponential decay (F52)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from app.nodes.model import Node
from app.placement.unusable_capacity import free_gpus
from app.policy.demand import Demand
from app.policy.expected_demand import DemandClass, ExpectedDemand

CLASSES_KEPT = 512
"""Classes in the histogram; the published traces have 49 to 330."""
HALF_LIFE = 1_400.0
"""Arrivals after which an arrival counts half as much as a new one. On a workload that changes half-way, 700 and 1,400
are alike, and no decay costs up to 0.3 percentage points of allocated GPUs."""
_GROWTH = 2.0 ** (1.0 / HALF_LIFE)
_HIGHEST = 1e100
"""The weight of new arrivals grows instead of the old weights shrinking; beyond this value all are scaled back."""


@dataclass(frozen=True, slots=True)
class Workload:
    """An immutable histogram of demand classes; `weight` is the weight of the next arrival."""

    weights: Mapping[DemandClass, float] = field(default_factory=dict)
    weight: float = 1.0

    def seen(self, demand_class: DemandClass) -> "Workload":
        """Give the histogram with one more arrival; if there are too many classes, the rarest other one is dropped."""
        weights = {**self.weights, demand_class: self.weights.get(demand_class, 0.0) + self.weight}
        if len(weights) > CLASSES_KEPT:
            del weights[min((other for other in weights if other != demand_class), key=weights.__getitem__)]
        weight = self.weight * _GROWTH
        if weight > _HIGHEST:
            weights, weight = {other: value / weight for other, value in weights.items()}, 1.0
        return Workload(weights, weight)

    def expected_demand(self, free: Mapping[str, int]) -> ExpectedDemand | None:
        """Give the expected demand by this histogram, None if it is empty.

        `free` is the free GPU capacity in thousandths, by product.
        """
        return expected_from_weights(self.weights, free)


def expected_from_classes(
    classes: Iterable[DemandClass], free: Mapping[str, int] | None = None
) -> ExpectedDemand | None:
    """Give the expected demand by a list of classes, in which each counts as often as it occurs."""
    weights: dict[DemandClass, float] = {}
    for demand_class in classes:
        weights[demand_class] = weights.get(demand_class, 0.0) + 1.0
    return expected_from_weights(weights, free or {})


def expected_from_weights(weights: Mapping[DemandClass, float], free: Mapping[str, int]) -> ExpectedDemand | None:
    """Give the expected demand by the weights of classes; None without classes."""
    total = sum(weights.values())
    classes = tuple(
        (demand_class, weight / total) for demand_class, weight in sorted(weights.items(), key=lambda item: -item[1])
    )
    return ExpectedDemand(classes, tuple(sorted(free.items()))) if classes else None


def free_by_product(nodes: Iterable[Node]) -> Mapping[str, int]:
    """Sum up the free GPU capacity in thousandths by product, including products of which nothing is free."""
    free: dict[str, int] = {}
    for node in nodes:
        if (product := node.node_class.product) is not None:
            free[product] = free.get(product, 0) + sum(free_gpus(node.free))
    return free


def demand_class(demand: Demand) -> DemandClass:
    """Give the demand class of a demand."""
    gpus = sum(amount for _, amount in demand.resources)
    return DemandClass(demand.cpu_milli, gpus, demand.share_milli, demand.products, demand.denied_products)
