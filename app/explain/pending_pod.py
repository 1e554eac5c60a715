# SPDX-License-Identifier: Apache-2.0
"""Why a pod is Pending, or where it would run: its needs with their evidence, the funnel, and what would help."""

from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any

from app.admission.review import Verdict
from app.explain.bound_pod import seat_of, unseated
from app.explain.counterfactual import NODES_AT_ONCE, Fix, FixSearch
from app.explain.dra import equivalent
from app.explain.funnel import Objection, Step, code_of, first_of, funnel, passing, words_of
from app.explain.pod_needs import needs
from app.explain.survey import (
    ClusterSnapshot,
    Groups,
    NodeJudge,
    ScheduledPod,
    company_of,
    plain,
    pose,
    without_promise,
)
from app.intree.checks import InTreeRefusal, unjudged_constraints
from app.kube.pods import read_pod
from app.nodes.model import Node
from app.placement.engine import breakdown, facts, judge_class, total
from app.placement.penalties import DOUBTS
from app.placement.ranking import order, wire_scores
from app.policy.demand import Demand
from app.values.reasons import Code, Reason

BEST_SHOWN = 10
"""Nodes shown with their score; the rest are counted."""


@dataclass(frozen=True, slots=True)
class Refused:
    """One reason, what to do about it, and on how many nodes it stands."""

    reason: str
    message: str
    nodes: int
    remedy: str


@dataclass(frozen=True, slots=True)
class AdmissionOutcome:
    """What admission did, or would do."""

    allowed: bool
    message: str
    warnings: tuple[str, ...]
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FittingNode:
    """A node that fits: what one unit of each resource is there, its score for the scheduler, and what made that."""

    node: str
    gives: Mapping[str, str]
    score: int
    total: float
    scores: Mapping[str, Mapping[str, float]]
    lowered_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """All that stands against one node; nothing where the pod fits."""

    node: str
    fits: bool
    reasons: tuple[str, ...]
    messages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything about one pod. `refused`: by the first reason of our filters; `in_tree`: by kube-scheduler's own.

    `primary`: what to look at first; None where the pod fits somewhere. `bound`: the node that it has already, and
    what would stand against it today; None where it has none. Its place counts as given back.
    `fixes`: the smallest first. `verdicts`: None unless asked. `unjudged`: what only kube-scheduler can tell.
    """

    pod: str
    policies: tuple[str, ...]
    asks: Mapping[str, int]
    needs: tuple[str, ...]
    origins: tuple[Mapping[str, str], ...]
    conflicts: tuple[str, ...]
    nodes: int
    fits: int
    primary: Refused | None
    refused: tuple[Refused, ...]
    in_tree: tuple[Refused, ...]
    funnel: tuple[Step, ...]
    fixes: tuple[Fix, ...]
    best: tuple[FittingNode, ...]
    claims: Mapping[str, Any]
    dra: Any
    unsourced: tuple[str, ...]
    unjudged: tuple[str, ...]
    admission: AdmissionOutcome
    verdicts: tuple[NodeVerdict, ...] | None = None
    bound: NodeVerdict | None = None


def explain(
    document: Mapping[str, Any], world: ClusterSnapshot, live: bool = False, by_node: bool = False, mend: bool = True
) -> Generator[None, None, Explanation]:
    """Explain one pod; rests (yields) every so often. `live`: it is in the cluster as it is, admitted or not.

    `mend`: look for fixes, which is most of the time where it fits nowhere.
    Raises MalformedPod, QuantityError.
    """
    uid = read_pod(document).uid  # whatever shape is wrong in it, what follows does not meet
    seat = seat_of(document) if live else None
    if seat is not None:
        document, world = unseated(document, world)
    world = without_promise(uid, world)
    base = plain(document, world)
    yield
    scheduled_pod = pose(document if live else base, world, admit=not live)
    company = company_of(scheduled_pod, world)
    judge = NodeJudge(scheduled_pod, world.used, company)
    yield
    groups: dict[tuple[Objection, ...], list[str]] = {}
    for index, (name, node) in enumerate(world.nodes.items()):
        groups.setdefault(judge.objections(node), []).append(name)
        if index % NODES_AT_ONCE == 0:
            yield
    fitting = [world.nodes[name] for name in groups.get((), ())]
    fixes = () if fitting or not mend else (yield from FixSearch(scheduled_pod, base, world, company).run(groups, live))
    best = yield from _best(scheduled_pod.demand, fitting)
    counts = {against: len(names) for against, names in groups.items()}
    refused, in_tree = _counted(counts, scheduled_pod)
    metadata = document.get("metadata") or {}
    return Explanation(
        pod=f"{metadata.get('namespace') or 'default'}/{metadata.get('name') or metadata.get('generateName') or ''}",
        policies=scheduled_pod.ruling.policies,
        asks=dict(scheduled_pod.demand.resources),
        needs=tuple(needs(scheduled_pod.demand)),
        origins=tuple({"field": field, "from": origin} for field, origin in scheduled_pod.ruling.origins),
        conflicts=tuple(each.message for each in scheduled_pod.ruling.conflicts),
        nodes=len(world.nodes),
        fits=len(fitting),
        primary=None if fitting else primary(groups, fixes),
        refused=refused,
        in_tree=in_tree,
        funnel=funnel(counts),
        fixes=fixes,
        best=best,
        claims={name: "all" if count is None else count for name, count in scheduled_pod.demand.claims},
        dra=equivalent(scheduled_pod.demand, world.setting.knowledge) if scheduled_pod.demand.resources else None,
        unsourced=_unsourced(world),
        unjudged=tuple(
            unjudged_constraints(
                bool(scheduled_pod.pod.claims or scheduled_pod.demand.claims),
                None if company else scheduled_pod.pod_among_others,
            )
        ),
        admission=said(scheduled_pod.verdict),
        verdicts=_verdicts(groups) if by_node else None,
        bound=None if seat is None else _seated(seat, groups),
    )


def primary(groups: Groups, fixes: tuple[Fix, ...]) -> Refused | None:
    """Say what to look at first: what nodes fall out by that would do another time, or else that are nearest.

    The nearest are those that the smallest fix mends, or where there is none, those that the least stands against; a
    node without GPUs is never among them where there are others.
    """
    another_time = {against: names for against, names in groups.items() if against and all(map(passing, against))}
    candidates = another_time or groups
    mended = (against for fix in fixes for against, names in candidates.items() if fix.node in names)
    nearest = next(mended, None) or min(candidates, key=_distance, default=None)
    if nearest is None:
        return None
    found = first_of(nearest)
    return _refused(found, sum(len(names) for against, names in groups.items() if first_of(against) == found))


def _distance(against: tuple[Objection, ...]) -> tuple[bool, int]:
    return NO_GPU in map(code_of, against), len(against)


NO_GPU = Code.ResourceNotOffered.name


def _counted(
    counts: Mapping[tuple[Objection, ...], int], scheduled_pod: ScheduledPod
) -> tuple[tuple[Refused, ...], tuple[Refused, ...]]:
    """Count the nodes by the first reason that our filters have, and by every one that kube-scheduler has."""
    ours: Counter[Objection] = Counter()
    theirs: Counter[Objection] = Counter()
    for against, count in counts.items():
        filters = [each for each in against if isinstance(each, Reason) and each not in scheduled_pod.verdict.reasons]
        for first in filters[:1]:
            ours[first] += count
        for each in dict.fromkeys(each for each in against if isinstance(each, InTreeRefusal)):
            theirs[each] += count
    return tuple(_refused(*each) for each in ours.most_common()), tuple(
        _refused(*each) for each in theirs.most_common()
    )


def _refused(found: Objection, count: int) -> Refused:
    return Refused(code_of(found), words_of(found), count, found.remedy)


def _verdicts(groups: Groups) -> tuple[NodeVerdict, ...]:
    """Say of every node what stands against it; those that the least stands against first."""
    return tuple(
        _verdict(name, against)
        for against, names in sorted(groups.items(), key=lambda each: len(each[0]))
        for name in names
    )


def _seated(seat: str, groups: Groups) -> NodeVerdict:
    """Say what stands against the node that a pod has; it may be gone, and the pod not yet."""
    against = next((against for against, names in groups.items() if seat in names), None)
    if against is None:
        return NodeVerdict(seat, fits=False, reasons=(Code.NodeNotKnown.name,), messages=(GONE,))
    return _verdict(seat, against)


GONE = "the node is not there any more"


def _verdict(name: str, against: tuple[Objection, ...]) -> NodeVerdict:
    return NodeVerdict(name, not against, tuple(map(code_of, against)), tuple(map(words_of, against)))


def said(verdict: Verdict) -> AdmissionOutcome:
    """Put what admission says in a few words."""
    message = "; ".join(f"{each.code.name}: {each.message}" for each in verdict.reasons)
    return AdmissionOutcome(verdict.allowed, message, verdict.warnings, verdict.record)


def _unsourced(world: ClusterSnapshot) -> tuple[str, ...]:
    """Name the fleet's products whose facts (memory, MIG, interconnect) no source confirms; GFD labels count first."""
    products = world.setting.knowledge.products.by_form
    rows = {products.get(product) for product in {node.node_class.product or "" for node in world.nodes.values()}}
    return tuple(sorted(row.label for row in rows if row is not None and row.unsourced))


def _best(demand: Demand, fitting: list[Node]) -> Generator[None, None, tuple[FittingNode, ...]]:
    if not fitting:
        return ()
    totals: list[float] = []
    best: list[int] = []
    for start in range(0, len(fitting), NODES_AT_ONCE):
        totals.extend(total(demand, node) for node in fitting[start : start + NODES_AT_ONCE])
        places = range(start, len(totals))
        best = nsmallest(BEST_SHOWN, [*best, *places], key=lambda place: order(totals[place], fitting[place].name))
        yield
    scores = wire_scores([node.name for node in fitting], totals, demand.ranked)
    return tuple(_seat(demand, fitting[place], totals[place], scores[place]) for place in best)


def _seat(demand: Demand, node: Node, value: float, score: int) -> FittingNode:
    """Break a total down: each scorer's part of it as score x weight, and what lowered it (F56)."""
    parts = breakdown(demand, node)
    return FittingNode(
        node=node.name,
        gives={resource: node.node_class.unit(resource).value for resource, _ in demand.resources},
        score=score,
        total=round(value, 3),
        scores={name: {"score": round(found, 3), "weight": weight} for name, (found, weight) in parts.items()},
        lowered_by=tuple(doubts(demand, node)),
    )


def doubts(demand: Demand, node: Node) -> list[str]:
    """Name what halves a node's total, in words."""
    missed = demand.warned is not None and judge_class(demand.warned, facts(demand.warned, node))
    warned = [f"a policy that warns: {missed.message}"] if missed else []
    return [*warned, *(doubt.__name__.replace("_", " ") for doubt in DOUBTS if doubt(demand, node.node_class))]
