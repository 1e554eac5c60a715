# SPDX-License-Identifier: Apache-2.0
"""The engine: runs the filters in order, weighs the scorers, and turns totals into the scheduler's integers.

Pure: a Demand and nodes in, verdicts out. What is remembered between calls is the edge's (cluster/appraisal.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.nodes import Free, Node, NodeClass
from app.placement.filters import CLASS_FILTERS, COUNTED_IN_TREE, FREE_FILTERS
from app.placement.scores import DEFAULT_SCORES, SCORERS
from app.policy.demand import Demand
from app.reasons import Reason

HIGHEST = 10
"""MaxExtenderPriority (k8s.io/kube-scheduler extender/v1 types.go)."""
RUNNER_UP = 9
"""Highest score of a node that is not the winner: the wire keeps the engine's own choice (INTERFACES §5)."""
WARNED_SHARE = 0.5
"""A node that misses what a Warn policy asks keeps this share of its total: behind its equals, still usable (guess)."""

_SCORERS = dict(SCORERS)


def judge_class(demand: Demand, node_class: NodeClass) -> Reason | None:
    """Give the first reason why no node of this class can ever serve the demand; None if it could."""
    for accepts in CLASS_FILTERS:
        if (refusal := accepts(demand, node_class)) is not None:
            return refusal
    return None


def judge_free(demand: Demand, free: Free, recount: bool) -> Reason | None:
    """Give the first reason why the node cannot serve the demand now.

    `recount`: repeat also what kube-scheduler counted itself; its count is newer than ours.
    """
    for accepts in FREE_FILTERS:
        if not recount and accepts in COUNTED_IN_TREE:
            continue
        if (refusal := accepts(demand, free)) is not None:
            return refusal
    return None


def judge(demand: Demand, node: Node, recount: bool) -> Reason | None:
    """Give the first reason why a node cannot serve a demand; None if it can. A demand for no GPU fits anywhere."""
    if not demand.judged:
        return None
    return judge_class(demand, node.node_class) or judge_free(demand, node.free, recount)


def total(demand: Demand, node: Node) -> float:
    """Weigh the scorers: Σ weight x score ÷ Σ weight, in [0, 1]."""
    weights = demand.scores or DEFAULT_SCORES
    value = sum(weight * _SCORERS[name](demand, node) for name, weight in weights) / sum(
        weight for _, weight in weights
    )
    if demand.warned is not None and judge_class(demand.warned, node.node_class) is not None:
        return value * WARNED_SHARE
    return value


def breakdown(demand: Demand, node: Node) -> Mapping[str, tuple[float, int]]:
    """Show each scorer's (score, weight), for explain."""
    return {name.value: (_SCORERS[name](demand, node), weight) for name, weight in demand.scores or DEFAULT_SCORES}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node in the running: its total, and what breaks ties."""

    total: float
    tie: int
    name: str


def winner_of(candidates: Iterable[Candidate]) -> Candidate | None:
    """Find the first in order: highest total, then lowest CRC-32 of the name, then the name (INTERFACES §5)."""
    return min(candidates, key=lambda each: (-each.total, each.tie, each.name), default=None)


def wire_scores(totals: Sequence[float], winner: int, ranked: bool) -> list[int]:
    """Turn totals into integers 0..10, one per node, the winner 10.

    `winner`: its position. Ranked: every other floor(9 x min-max). Proportional: round(10 x min-max).
    """
    low, high = min(totals), max(totals)
    if high == low:
        return [HIGHEST if not ranked or index == winner else 0 for index in range(len(totals))]
    if not ranked:
        factor = HIGHEST / (high - low)
        return [int((each - low) * factor + 0.5) for each in totals]
    factor = RUNNER_UP / (high - low)
    scores = [int((each - low) * factor) for each in totals]
    scores[winner] = HIGHEST
    return scores
