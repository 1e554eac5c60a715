# SPDX-License-Identifier: Apache-2.0
"""The engine: it runs the filters on a Demand and a node, averages the scorers, and judges candidates of preemption.

Its functions are pure; the caches of verdicts are in `cluster/` (verdict_cache.py).
"""

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from app.nodes.model import ClaimableDevices, FreeResources, Node, NodeClass
from app.placement.filters import COUNTED_IN_TREE, FREE_FILTERS, class_filters_of
from app.placement.scorers import BY_CLASS, BY_FREE_CPU, PENALTIES, SCORERS, ScoreByCPU, Scorer
from app.policy.demand import Demand
from app.policy.schema_placement import DEFAULT_SCORES, ScorerName
from app.values.reasons import Reason

LESSER_SHARE = 0.5
"""The factor on a node's total for each penalty, and for a Warn policy that would refuse it. A guess: the node then
comes after equal nodes without penalty, and is still usable."""

WITHOUT_GPUS = ((ScorerName.Fragmentation, 1),)
"""What counts for a pod without GPUs: that it keeps off the GPUs that others need. All else of a node is
kube-scheduler's to score, so that nodes without GPUs are equal to us."""
_SCORERS = dict(SCORERS)
_BEYOND_IN_TREE = tuple(accepts for accepts in FREE_FILTERS if accepts not in COUNTED_IN_TREE)
"""The free filters that kube-scheduler has no counterpart of."""


def judge_class(demand: Demand, node_class: NodeClass) -> Reason | None:
    """Give the first reason why no node of this class can ever serve the demand; None if it can.

    Where it is known which devices its claims can take, these are judged (_judge_request).

    On a node with several kinds of DRA devices each kind must serve the demand, because kube-scheduler takes any device
    that is free. A claim can choose by its own selectors, so that for a pod without GPU resources one kind suffices.
    """
    if node_class.claimable and not demand.resources:
        by_request = (_judge_request(demand, alternatives) for alternatives in node_class.claimable)
        return next((refusal for refusal in by_request if refusal is not None), None)
    if not demand.resources:
        return _last_refusal(demand, node_class.by_device_variant())
    class_refusals = [_judge_variant(demand, variant) for variant in node_class.by_device_variant()]
    return next((refusal for refusal in class_refusals if refusal is not None), None)


def _last_refusal(demand: Demand, variants: tuple[NodeClass, ...]) -> Reason | None:
    """Give the reason that leaves none of the variants; None if all filters accept one of them."""
    for accepts in class_filters_of(demand):
        class_refusals = [accepts(demand, variant) for variant in variants]
        variants = tuple(variant for variant, refusal in zip(variants, class_refusals, strict=True) if refusal is None)
        if not variants:
            return class_refusals[0]
    return None


def _judge_request(demand: Demand, alternatives: tuple[ClaimableDevices, ...]) -> Reason | None:
    """Give the reason why every alternative of a device request gets an unsuitable device; None if one need not.

    That is so where fewer of the devices that it can take are suitable than it requests. Which of them are held is no
    reason, because kube-scheduler knows that better (docs/reference/dra.md#filters-and-scores).
    """
    class_refusals = [_judge_alternative(demand, devices) for devices in alternatives]
    return None if None in class_refusals else next(iter(class_refusals), None)


def _judge_alternative(demand: Demand, devices: ClaimableDevices) -> Reason | None:
    class_refusals = [(_judge_variant(demand, make), number) for make, number in devices.makes]
    suitable = sum(number for refusal, number in class_refusals if refusal is None)
    all_devices = sum(number for _, number in class_refusals)
    if suitable >= (all_devices if devices.count is None else min(devices.count, all_devices)):
        return None
    return next(refusal for refusal, _ in class_refusals if refusal is not None)


def _judge_variant(demand: Demand, node_class: NodeClass) -> Reason | None:
    for accepts in class_filters_of(demand):
        if (refusal := accepts(demand, node_class)) is not None:
            return refusal
    return None


def class_refusals(demand: Demand, node_class: NodeClass) -> tuple[Reason, ...]:
    """Give all reasons why no node of this class can serve the demand, of which judge_class gives the first."""
    if judge_class(demand, node_class) is None:
        return ()
    claimable = [make for request in node_class.claimable for devices in request for make, _ in devices.makes]
    variants = claimable if claimable and not demand.resources else node_class.by_device_variant()
    reasons = (accepts(demand, variant) for variant in variants for accepts in class_filters_of(demand))
    return tuple(dict.fromkeys(refusal for refusal in reasons if refusal is not None))


def judge_free(demand: Demand, free: FreeResources, recount: bool) -> Reason | None:
    """Give the first reason why the node cannot serve the demand now.

    With `recount` the filters that repeat kube-scheduler's own counts run too; behind a live scheduler they are left
    out, since its counts are newer than ours.
    """
    for accepts in FREE_FILTERS if recount else _BEYOND_IN_TREE:
        if (refusal := accepts(demand, free)) is not None:
            return refusal
    return None


def class_for_demand(demand: Demand, node: Node) -> NodeClass:
    """Give the node's class, with the labels on which the demand has requirements, and the devices it can claim."""
    node_class = node.node_class
    if demand.device_requests and node.devices is not None:
        claimable = node.devices.claimable(node_class, demand.device_requests)
        node_class = replace(node_class, claimable=claimable) if claimable else node_class
    if not demand.node_selector:
        return node_class
    pairs = ((key, node.labels.get(key)) for key in demand.label_keys)
    return replace(node_class, labels=tuple((key, value) for key, value in pairs if value is not None))


def class_key(node: Node, label_keys: tuple[str, ...]) -> Hashable:
    """Return a key of a node's class, its devices and these labels; State interns classes and keeps each alive."""
    serial = node.devices.serial if node.devices is not None else 0
    if not (label_keys or serial):
        return id(node.node_class)
    return (id(node.node_class), serial, *map(node.labels.get, label_keys))


def as_claimed(demand: Demand, node: Node) -> Node:
    """Give the node with the facts of the device that a claim gets now, for scores: the first free one that it selects.

    A pod that requests GPUs by resource too, or whose device is not known, is scored by the node as it is.
    """
    if not demand.device_requests or demand.resources or node.devices is None:
        return node
    make = node.devices.next_make(node.node_class, demand.device_requests, node.free.kinds)
    return node if make is None else replace(node, node_class=make, devices=None)


def judge_counts(demand: Demand, free: FreeResources) -> Reason | None:
    """Run only the filters that repeat kube-scheduler's own counts."""
    for accepts in COUNTED_IN_TREE:
        if (refusal := accepts(demand, free)) is not None:
            return refusal
    return None


def judge(demand: Demand, node: Node, recount: bool) -> Reason | None:
    """Give the first reason why a node cannot serve a demand; None if it can, as always for a demand without GPUs."""
    if not demand.requests_gpus:
        return None
    return judge_class(demand, class_for_demand(demand, node)) or judge_free(demand, node.free, recount)


def total(demand: Demand, node: Node) -> float:
    """Compute the total of a node: Σ weight x score ÷ Σ weight, in [0, 1], times LESSER_SHARE for each penalty."""
    return total_by_cpu(demand, scoring_plan(demand), class_share(demand, node), node)(node.free_cpu_milli)


@dataclass(frozen=True, slots=True)
class ScoringPlan:
    """The scorers that depend on more than the node's class, with their weights, and the sum of all weights.

    `by_cpu` are those among them that depend on the node's free CPU.
    """

    scorers: tuple[tuple[Scorer, int], ...]
    by_cpu: tuple[tuple[Callable[[Demand, Node], ScoreByCPU], int], ...]
    weights: int


def scoring_plan(demand: Demand) -> ScoringPlan:
    """Give the scorers that run on each node; they are the same for all nodes."""
    chosen = _scores(demand)
    own = tuple((_SCORERS[name], weight) for name, weight in chosen if name not in BY_CLASS and name not in BY_FREE_CPU)
    by_cpu = tuple((BY_FREE_CPU[name], weight) for name, weight in chosen if name in BY_FREE_CPU)
    return ScoringPlan(own, by_cpu, sum(weight for _, weight in chosen))


def class_share(demand: Demand, node: Node) -> tuple[float, float]:
    """Give the part of the total that is the same for all nodes of a class.

    It is Σ weight x score of the scorers that depend on the class only, and the factor on the total. On a node with
    devices of several kinds both are those of the device that a claim gets now; one that is unsuitable is a penalty. A
    pod without GPUs has no penalties, because nothing of the node's GPUs concerns it.
    """
    if not demand.requests_gpus:
        return 0.0, 1.0
    share, scored = 0.0, as_claimed(demand, node)
    for name, weight in _scores(demand):
        if name in BY_CLASS:
            share += weight * _SCORERS[name](demand, scored)
    unsuitable = scored is not node and _judge_variant(demand, scored.node_class) is not None
    missed = demand.warned is not None and judge_class(demand.warned, class_for_demand(demand.warned, node)) is not None
    penalties = sum(penalty(demand, scored.node_class) for penalty in PENALTIES)
    return share, LESSER_SHARE ** (unsuitable + missed + penalties)


def total_by_cpu(demand: Demand, scoring: ScoringPlan, shared: tuple[float, float], node: Node) -> ScoreByCPU:
    """Give the total of nodes that differ from a node at most in their free CPU and in facts that no scorer reads.

    The node's own scores are added to the share of its class, and the sum is divided by that of all weights.
    """
    value, factor = shared
    node = as_claimed(demand, node)
    for scorer, weight in scoring.scorers:
        value += weight * scorer(demand, node)
    by_cpu = [(score_by_cpu(demand, node), weight) for score_by_cpu, weight in scoring.by_cpu]

    def total_at(cpu: int | None) -> float:
        whole = value
        for score, weight in by_cpu:
            whole += weight * score(cpu)
        return factor * whole / scoring.weights

    return total_at


def breakdown(demand: Demand, node: Node) -> Mapping[str, tuple[float, int]]:
    """Give the score and the weight of each scorer, by name, for explain."""
    scored = as_claimed(demand, node)
    return {name.value: (_SCORERS[name](demand, scored), weight) for name, weight in _scores(demand)}


def _scores(demand: Demand) -> tuple[tuple[ScorerName, int], ...]:
    """Give the scorers of a demand, with their weights."""
    return (demand.scores or DEFAULT_SCORES) if demand.requests_gpus else WITHOUT_GPUS


Victims = TypeVar("Victims")


Without = Callable[[str, Collection[str]], Node | None]
"""A function that gives a node, by name, as it would be without the pods of these UIDs; None for an unknown node."""


def helpful_candidates(
    demand: Demand, candidates: Mapping[str, Victims], uids: Mapping[str, Collection[str]], without: Without
) -> dict[str, Victims]:
    """Keep the candidate nodes on which evicting the given victims lets the pod run, each with its victims as given.

    kube-scheduler never asks filter about preemption: a pod that filter refuses everywhere evicted ten pods on five
    nodes (docs/reference/control-plane.md#preemption-of-the-scheduler). Dropping such nodes keeps running pods alive.

    `uids` are the UIDs of the victims on each candidate. Candidates without victims and unknown nodes are dropped,
    since it is not known that they would help.
    """
    return {
        name: victims
        for name, victims in candidates.items()
        if uids[name] and (node := without(name, uids[name])) is not None and eviction_helps(demand, node)
    }


def eviction_helps(demand: Demand, node: Node) -> bool:
    """Tell whether the pod fits on a node without the victims, except for what kube-scheduler counts itself."""
    return judge(demand, node, recount=False) is None
