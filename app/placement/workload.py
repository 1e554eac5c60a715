# SPDX-License-Identifier: Apache-2.0
"""The workload seen: a histogram of demand classes, bounded and decayed, learnt arrival by arrival (F52)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from app.nodes.model import Node
from app.placement.stranded import free_gpus
from app.policy.demand import Demand
from app.policy.expected_demand import DemandClass, ExpectedDemand

CLASSES_KEPT = 512
"""Classes remembered; those of the published traces have 49 to 330."""
HALF_LIFE = 1_400.0
"""Arrivals after which one counts half as much as a new one. Of a workload that shifts half-way, 700 and 1,400 give out
as much, and to forget nothing costs up to 0.3 points."""
_GROWTH = 2.0 ** (1.0 / HALF_LIFE)
_HIGHEST = 1e100
"""Weights grow instead of the old ones shrinking; beyond this all are scaled back."""


@dataclass(frozen=True, slots=True)
class Workload:
    """How often each class was asked; a value: to learn is to make another. `weight`: what the next arrival counts."""

    weights: Mapping[DemandClass, float] = field(default_factory=dict)
    weight: float = 1.0

    def seen(self, ask: DemandClass) -> "Workload":
        """Take an arrival in; the rarest class goes where there are too many."""
        weights = {**self.weights, ask: self.weights.get(ask, 0.0) + self.weight}
        if len(weights) > CLASSES_KEPT:
            del weights[min((each for each in weights if each != ask), key=weights.__getitem__)]
        weight = self.weight * _GROWTH
        if weight > _HIGHEST:
            weights, weight = {each: value / weight for each, value in weights.items()}, 1.0
        return Workload(weights, weight)

    def outlook(self, free: Mapping[str, int]) -> ExpectedDemand | None:
        """Expect more of the same; None before any was seen. `free`: GPU milli by product."""
        return outlook_of(self.weights, free)


def counted(asks: Iterable[DemandClass], free: Mapping[str, int] | None = None) -> ExpectedDemand | None:
    """Expect what a list of classes holds, each as often as it is there."""
    weights: dict[DemandClass, float] = {}
    for ask in asks:
        weights[ask] = weights.get(ask, 0.0) + 1.0
    return outlook_of(weights, free or {})


def outlook_of(weights: Mapping[DemandClass, float], free: Mapping[str, int]) -> ExpectedDemand | None:
    """Make the outlook of a histogram."""
    total = sum(weights.values())
    asks = tuple((ask, weight / total) for ask, weight in sorted(weights.items(), key=lambda each: -each[1]))
    return ExpectedDemand(asks, tuple(sorted(free.items()))) if asks else None


def free_by_product(nodes: Iterable[Node]) -> Mapping[str, int]:
    """Sum up the free GPU milli by product; of products that are used up too."""
    found: dict[str, int] = {}
    for node in nodes:
        if (product := node.node_class.product) is not None:
            found[product] = found.get(product, 0) + sum(free_gpus(node.free))
    return found


def ask_of(demand: Demand) -> DemandClass:
    """Give the class of a demand."""
    gpus = sum(amount for _, amount in demand.resources)
    return DemandClass(demand.cpu_milli, gpus, demand.share_milli, demand.products, demand.denied_products)
