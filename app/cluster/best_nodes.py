# SPDX-License-Identifier: Apache-2.0
"""Where pods would go in a fleet that stands still: the best node for a demand, a pod's own place given back first."""

from collections import Counter
from dataclasses import replace
from heapq import nsmallest

from app.cluster.state import State
from app.cluster.verdict_cache import VerdictCache
from app.kube.gpu_usage import GPUUsage
from app.nodes.model import Node
from app.placement.engine import judge, total
from app.placement.ranking import ranking_key
from app.policy.demand import Demand

ANYWHERE = "any node"
"""Where a pod goes that asks for no GPU: it is not judged."""

_Best = tuple[tuple[float, tuple[int, str]], str]
"""The sort key of the best node, and its name."""


class BestNodes:
    """The best nodes of a fleet, remembered by demand. The state must not change meanwhile.

    Taints, node affinity, CPU and memory are kube-scheduler's to judge, and GPUs that a pod's claims hold stay held.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._appraisals = VerdictCache(state, recount=True)
        self._best: dict[Demand, tuple[_Best, ...]] = {}
        self._why: dict[Demand, str] = {}

    def best(self, demand: Demand, uid: str) -> str | None:
        """Name the best node for a demand, for the pod with this UID; None: none fits."""
        if not demand.requests_gpus:
            return ANYWHERE
        if demand not in self._best:
            self._best[demand] = self._find(demand)
        holding = self._state.holding(uid)
        others = [each for each in self._best[demand] if holding is None or each[1] != holding.node]
        own = self._own(demand, holding) if holding else None
        return min([*others[:1], *([own] if own else [])], default=(None, None))[1]

    def why(self, demand: Demand) -> str:
        """Say what most nodes lack for a demand."""
        if demand not in self._why:
            appraised = self._appraisals.of(demand)
            counts = Counter([*appraised.failed.values(), *appraised.unresolvable.values()])
            parts = [f"{message} ({count} nodes)" for message, count in counts.most_common(2)]
            self._why[demand] = "no node: " + ("; ".join(parts) or "the fleet has none")
        return self._why[demand]

    def _find(self, demand: Demand) -> tuple[_Best, ...]:
        """Find the two best nodes: for a pod that is on the best one, that one weighs otherwise."""
        appraised = self._appraisals.of(demand)
        names = list(appraised.feasible)
        return tuple(nsmallest(2, map(_sort_key, appraised.totals(names), names)))

    def _own(self, demand: Demand, holding: GPUUsage) -> _Best | None:
        """Weigh a pod's own node with what it holds given back; None where it does not fit there."""
        node = self._state.without(holding.node, {holding.uid})
        left = node and _given_back(node, holding)
        if left is None or judge(demand, left, True) is not None:
            return None
        return _sort_key(total(demand, left), left.name)


def _sort_key(value: float, name: str) -> _Best:
    return ranking_key(value, name), name


def _given_back(node: Node, holding: GPUUsage) -> Node:
    units = dict(node.free.units)
    for resource, amount in holding.units:
        if resource in units:
            units[resource] += amount
    return replace(node, free=replace(node.free, units=units))
