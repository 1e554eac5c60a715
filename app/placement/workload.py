# SPDX-License-Identifier: Apache-2.0
"""The workload seen: a histogram of demand classes, bounded and decayed, learnt arrival by arrival (F52)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from app.policy.demand import Demand
from app.policy.outlook import Ask, Outlook

CLASSES_KEPT = 512
"""Classes remembered; those of the published traces have 49 to 330."""
HALF_LIFE = 5_000.0
"""Arrivals after which one counts half as much as a new one: a day or so of a large cluster (a guess)."""
COVERED = 0.95
"""Share of the arrivals whose classes an outlook holds, most popular first (the paper's; the rest is noise)."""
_GROWTH = 2.0 ** (1.0 / HALF_LIFE)
_HIGHEST = 1e100
"""Weights grow instead of the old ones shrinking; beyond this all are scaled back."""


@dataclass(frozen=True, slots=True)
class Workload:
    """How often each class was asked; a value: to learn is to make another. `weight`: what the next arrival counts."""

    weights: Mapping[Ask, float] = field(default_factory=dict)
    weight: float = 1.0

    def seen(self, ask: Ask) -> "Workload":
        """Take an arrival in; the rarest class goes where there are too many."""
        weights = {**self.weights, ask: self.weights.get(ask, 0.0) + self.weight}
        if len(weights) > CLASSES_KEPT:
            del weights[min((each for each in weights if each != ask), key=weights.__getitem__)]
        weight = self.weight * _GROWTH
        if weight > _HIGHEST:
            weights, weight = {each: value / weight for each, value in weights.items()}, 1.0
        return Workload(weights, weight)

    def outlook(self) -> Outlook | None:
        """Expect more of the same: the most popular classes, until they cover enough; None before any was seen."""
        return outlook_of(self.weights)


def counted(asks: Iterable[Ask]) -> Outlook | None:
    """Expect what a list of classes holds, each as often as it is there."""
    weights: dict[Ask, float] = {}
    for ask in asks:
        weights[ask] = weights.get(ask, 0.0) + 1.0
    return outlook_of(weights)


def outlook_of(weights: Mapping[Ask, float]) -> Outlook | None:
    """Make the outlook of a histogram."""
    total = sum(weights.values())
    kept: list[tuple[Ask, float]] = []
    covered = 0.0
    for ask, weight in sorted(weights.items(), key=lambda each: -each[1]):
        if covered >= COVERED * total:
            break
        kept.append((ask, weight))
        covered += weight
    return Outlook(tuple((ask, weight / covered) for ask, weight in kept)) if kept else None


def ask_of(demand: Demand) -> Ask:
    """Give the class of a demand."""
    gpus = sum(amount for _, amount in demand.resources)
    return Ask(demand.cpu_milli, gpus, demand.share_milli, demand.products, demand.denied_products)
