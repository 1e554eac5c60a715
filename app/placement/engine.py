# SPDX-License-Identifier: Apache-2.0
"""The engine: runs the filters in order, and weighs the scorers.

Pure: a Demand and nodes in, verdicts out. What is remembered between calls is the edge's (cluster/appraisal.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.nodes.model import FreeResources, Node, NodeClass
from app.placement.filters import CLASS_FILTERS, COUNTED_IN_TREE, FREE_FILTERS
from app.placement.penalties import DOUBTS
from app.placement.scorers import BY_CLASS, SCORERS, Scorer
from app.policy.demand import Demand
from app.policy.schema_placement import DEFAULT_SCORES
from app.values.reasons import Reason

LESSER_SHARE = 0.5
"""A node that a Warn policy would refuse, or that is in doubt, keeps this share of its total for each such thing:
behind its equals, still usable (a guess)."""

_SCORERS = dict(SCORERS)
_BEYOND_IN_TREE = tuple(each for each in FREE_FILTERS if each not in COUNTED_IN_TREE)


def judge_class(demand: Demand, node_class: NodeClass) -> Reason | None:
    """Give the first reason why no node of this class can ever serve the demand; None if it could.

    Of a node with several makes of GPU each must do: kube-scheduler takes whichever is free. A claim can choose by its
    own selectors, so that for one that names no resource a single make will do.
    """
    refusals = [_judge_make(demand, make) for make in node_class.by_make()]
    if not demand.resources and None in refusals:
        return None
    return next((refusal for refusal in refusals if refusal is not None), None)


def _judge_make(demand: Demand, node_class: NodeClass) -> Reason | None:
    for accepts in CLASS_FILTERS:
        if (refusal := accepts(demand, node_class)) is not None:
            return refusal
    return None


def refusals(demand: Demand, node_class: NodeClass) -> tuple[Reason, ...]:
    """Give every reason why no node of this class can serve the demand, where judge_class gives the first."""
    if judge_class(demand, node_class) is None:
        return ()
    found = (accepts(demand, make) for make in node_class.by_make() for accepts in CLASS_FILTERS)
    return tuple(dict.fromkeys(each for each in found if each is not None))


def judge_free(demand: Demand, free: FreeResources, recount: bool) -> Reason | None:
    """Give the first reason why the node cannot serve the demand now.

    `recount`: repeat also what kube-scheduler counted itself; its count is newer than ours.
    """
    for accepts in FREE_FILTERS if recount else _BEYOND_IN_TREE:
        if (refusal := accepts(demand, free)) is not None:
            return refusal
    return None


def facts(demand: Demand, node: Node) -> NodeClass:
    """Give the node's class, with the labels that the demand asks about, if it asks about any."""
    if not demand.node_selector:
        return node.node_class
    asked = ((key, node.labels.get(key)) for key in demand.label_keys)
    return replace(node.node_class, labels=tuple((key, value) for key, value in asked if value is not None))


def count_again(demand: Demand, free: FreeResources) -> Reason | None:
    """Repeat kube-scheduler's own counts alone."""
    for accepts in COUNTED_IN_TREE:
        if (refusal := accepts(demand, free)) is not None:
            return refusal
    return None


def judge(demand: Demand, node: Node, recount: bool) -> Reason | None:
    """Give the first reason why a node cannot serve a demand; None if it can. A demand for no GPU fits anywhere."""
    if not demand.judged:
        return None
    return judge_class(demand, facts(demand, node)) or judge_free(demand, node.free, recount)


def total(demand: Demand, node: Node) -> float:
    """Weigh the scorers: Σ weight x score ÷ Σ weight, in [0, 1], less for a node that a Warn policy would refuse."""
    return combine(demand, plan(demand), class_share(demand, node), node)


@dataclass(frozen=True, slots=True)
class ScoringPlan:
    """The scorers that look at more than the class, with their weights, and the sum of all weights."""

    scorers: tuple[tuple[Scorer, int], ...]
    weights: int


def plan(demand: Demand) -> ScoringPlan:
    """Say what is to be asked of each node; the same for all of them."""
    chosen = demand.scores or DEFAULT_SCORES
    own = tuple((_SCORERS[name], weight) for name, weight in chosen if name not in BY_CLASS)
    return ScoringPlan(own, sum(weight for _, weight in chosen))


def class_share(demand: Demand, node: Node) -> tuple[float, float]:
    """Give what is the same for all nodes of a class: Σ weight x score of its scorers, and the factor on the total."""
    share = 0.0
    for name, weight in demand.scores or DEFAULT_SCORES:
        if name in BY_CLASS:
            share += weight * _SCORERS[name](demand, node)
    missed = demand.warned is not None and judge_class(demand.warned, facts(demand.warned, node)) is not None
    return share, LESSER_SHARE ** (missed + sum(1 for doubt in DOUBTS if doubt(demand, node.node_class)))


def combine(demand: Demand, asked: ScoringPlan, shared: tuple[float, float], node: Node) -> float:
    """Add the node's own scores to its class's share, and divide by all weights."""
    value, factor = shared
    for scorer, weight in asked.scorers:
        value += weight * scorer(demand, node)
    return factor * value / asked.weights


def breakdown(demand: Demand, node: Node) -> Mapping[str, tuple[float, int]]:
    """Show each scorer's (score, weight), for explain."""
    return {name.value: (_SCORERS[name](demand, node), weight) for name, weight in demand.scores or DEFAULT_SCORES}
