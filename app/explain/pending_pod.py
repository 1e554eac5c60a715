# SPDX-License-Identifier: Apache-2.0
"""Why a pod is Pending, or where it would run: its needs with their evidence, the funnel, and fixes.

`explain` has three phases: `_read` the pod and what it holds now; `_judged` every node by its objections, with a search
for the smallest fixes where none is left; and the `_answer`.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import starmap
from typing import Any

from app.admission.review import ReviewResult, mutate_reviewed, present_record
from app.admission.reviewed_pod import ReviewedPod
from app.dra.pod_claims import released
from app.explain.claim_changes import CLAIM_KINDS, claim_fixes
from app.explain.claim_funnel import RequestFunnel, claims_in_words, funnels, is_of_claims, with_claim_errors
from app.explain.container_requests import asked_by, needs
from app.explain.counterfactual import NODES_JUDGED_AT_ONCE, Fix, FixSearch
from app.explain.edits import KINDS
from app.explain.explanation import (
    AdmissionOutcome,
    Explanation,
    FittingNode,
    GangVerdict,
    NodeVerdict,
    Refused,
    dra_equivalent,
)
from app.explain.funnel import Objection, first_objection, funnel, is_transient, objection_name, objection_text
from app.explain.gang_placement import gang_verdict
from app.explain.numa import claim_notes, topology_notes
from app.explain.pending_cause import OFFER_NONE, PodAmounts, causes, refused_by
from app.explain.placed_by import (
    answer_of_scheduler,
    as_unbound,
    asks_for_none,
    claims_to_come,
    creation_notes,
    ending_of,
    group_to_come,
    labels_of_no_node,
    node_of_bound_pod,
    not_looked_at,
    what_it_got,
    who_decides,
    who_is_in_the_way,
)
from app.explain.pod_start import required_cuda, start_problems, unhealthy_devices, what_ends_it
from app.explain.survey import (
    Groups,
    NodeJudge,
    ScheduledPod,
    existing_pod_constraints,
    review_as_is,
    scheduled_pod_of,
    with_api_defaults,
    without_our_affinity,
    without_promise,
)
from app.intree.checks import InTreeRefusal, unjudged_constraints
from app.intree.inter_pod_constraints import InterPodConstraints
from app.knowledge.cuda_compatibility import CUDANeed
from app.knowledge.image_code import ImageBuild
from app.knowledge.products import Products
from app.kube.finished_pods import Ending
from app.kube.gangs import Gang
from app.kube.pod_limits import check_constraints
from app.kube.pod_object import pod_object
from app.kube.pods import PREFIX
from app.nodes.model import Node, NodeClass
from app.placement.class_filters import lacks_code, lacks_code_words
from app.placement.engine import breakdown, class_for_demand, judge_class, total
from app.placement.ranking import demand_scores, ranking_key
from app.placement.scheduler_demand import place_is_promised
from app.placement.scorers import PENALTIES
from app.policy.demand import Demand
from app.policy.needs import NEEDS
from app.values.reasons import Code, Reason
from app.values.versions import show_driver
from app.world.scheduling_groups import gang_of_pod
from app.world.world import World

CUDA = PREFIX + "cuda"
"""The annotation for the least CUDA version."""
BEST_SHOWN = 10
"""Nodes that are shown with their score; the others are only counted."""
VERDICTS_AT_ONCE = 512
"""Verdicts listed between two rests of the event loop; one takes some 0.5 µs."""


@dataclass(frozen=True, slots=True)
class _ReadPod:
    """A pod as a new one, with the snapshot without what it holds, and what was read of it as it is.

    `base` is the Pod as its user wrote it. `node` is the one that it runs on, None where it has none or has ended.
    """

    review: ReviewedPod
    base: Mapping[str, Any]
    snapshot: World
    live: bool
    node: str | None
    ending: Ending | None
    not_started: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _JudgedNodes:
    """The nodes by their objections to a pod, and where none is without, fixes and the kinds of changes tried."""

    scheduled_pod: ScheduledPod
    constraints: InterPodConstraints | None
    groups: Groups
    fitting: list[Node]
    fixes: tuple[Fix, ...] = ()
    tried: tuple[str, ...] = ()


def explain(
    document: Mapping[str, Any],
    snapshot: World,
    live: bool = False,
    by_node: bool = False,
    find_fixes: bool = True,
    events: Sequence[Mapping[str, Any]] | None = None,
    workload: Gang | None = None,
) -> Generator[None, None, Explanation]:
    """Explain one pod; yields often, so that a service can do other work in between.

    `live` is true where the pod is in the cluster as it is, admitted or not. `by_node` adds every node's verdict.
    `find_fixes` searches for fixes, which takes most of the time where the pod fits nowhere. `events` are those about
    the pod, None where they were not read. `workload` are the pods of the workload that was asked about, the bound ones
    as a number.

    Raises MalformedPod, QuantityError.
    """
    pod = _read(document, snapshot, live, events)
    yield
    nodes = yield from _judged(pod, find_fixes)
    answer = yield from _answer(pod, nodes, by_node, events or ())
    snapshot = replace(snapshot, judges_creation=not live)
    replicas = (yield from gang_verdict(workload, snapshot, live)) if workload else None
    if replicas is None:
        return answer
    same = answer.gang.sentence if answer.gang and answer.gang.gang == replicas.gang else None
    return replace(
        answer, replicas=replicas, notes=(replicas.of_replicas, *(note for note in answer.notes if note != same))
    )


def _read(
    document: Mapping[str, Any], snapshot: World, live: bool, events: Sequence[Mapping[str, Any]] | None
) -> _ReadPod:
    """Read a pod; one that has a node or has ended gives back what it holds."""
    review = review_as_is(document, snapshot)  # refuses a malformed pod, so that the code below need not check
    check_constraints(len(review.document["spec"].get("nodeSelector") or ()), "spec.nodeSelector")
    ending = ending_of(document, snapshot) if live else None
    node = node_of_bound_pod(document) if live else None
    not_started = start_problems(review, events, snapshot) if live else ()
    if node is not None or ending is not None:
        document, snapshot = as_unbound(_with_found_need(document), snapshot)
        review = review_as_is(document, snapshot)
        review = replace(review, pod=replace(review.pod, node_name=None))
        snapshot = replace(snapshot, devices=released(review.pod, document, snapshot.devices))
    snapshot = without_promise(review.pod.uid, snapshot)
    base = without_our_affinity(review)
    if not live:
        snapshot = replace(snapshot, judges_creation=True)
        new = with_api_defaults(base, review.pod.namespace, snapshot)
        review = replace(review, document=base) if new is base else review_as_is(new, snapshot)
    return _ReadPod(review, base, snapshot, live, node, ending, not_started)


def _with_found_need(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a pod with the annotation for the CUDA version that its start error names, if it states none itself."""
    metadata, cuda = document.get("metadata") or {}, required_cuda(pod_object(document))
    annotations = metadata.get("annotations") or {}
    if not cuda or CUDA in annotations:
        return document
    return {**document, "metadata": {**metadata, "annotations": {**annotations, CUDA: cuda}}}


def _judged(pod: _ReadPod, find_fixes: bool) -> Generator[None, None, _JudgedNodes]:
    """Collect every objection to each node, and search for fixes where none is without."""
    snapshot, result = pod.snapshot, mutate_reviewed(pod.review)
    yield
    scheduled_pod = scheduled_pod_of(pod.review, result, snapshot, admit=not pod.live)
    constraints = existing_pod_constraints(scheduled_pod, snapshot)
    yield
    groups = yield from _by_objections(snapshot.nodes, NodeJudge(scheduled_pod, snapshot.used, constraints))
    groups = with_claim_errors(groups)
    fitting = [snapshot.nodes[name] for name in groups.get((), ())]
    judged = _JudgedNodes(scheduled_pod, constraints, groups, fitting)
    return (yield from _with_fixes(pod, judged)) if find_fixes and not fitting else judged


def _answer(
    pod: _ReadPod, nodes: _JudgedNodes, by_node: bool, events: Sequence[Mapping[str, Any]]
) -> Generator[None, None, Explanation]:
    scheduled_pod, groups, fitting, snapshot = nodes.scheduled_pod, nodes.groups, nodes.fitting, pod.snapshot
    demand = scheduled_pod.demand
    devices = yield from _device_funnels(scheduled_pod, groups, snapshot)
    promised = place_is_promised(scheduled_pod.pod, demand)
    best = yield from _best(demand, fitting, promised, snapshot.knowledge.products)
    gang = None if pod.node or pod.ending else (yield from _gang(pod))
    counts = {objections: len(names) for objections, names in groups.items()}
    refused, in_tree = _count_reasons(counts, scheduled_pod)
    requests = dict(scheduled_pod.pod_constraints.requests)
    amounts = PodAmounts(requests, dict(demand.resources), snapshot.used)
    primary, *also = (not fitting and causes(groups, nodes.fixes, snapshot.nodes, amounts)) or (None,)
    declared = pod_object(pod.review.document)
    admission = admission_outcome(scheduled_pod.review_result)
    recorded = tuple(map(str, present_record(pod.review).get("actions", ())))
    return Explanation(
        pod=f"{declared.namespace}/{declared.metadata.name or declared.metadata.generate_name}",
        policies=scheduled_pod.ruling.policies,
        asks=dict(demand.resources),
        needs=(*needs(demand, scheduled_pod.pod, snapshot.knowledge.families), *_not_known(demand, snapshot)),
        origins=tuple({"field": field, "from": origin} for field, origin in scheduled_pod.ruling.origins),
        conflicts=tuple(conflict.message for conflict in scheduled_pod.ruling.conflicts),
        nodes=len(snapshot.nodes),
        fits=len(fitting),
        primary=primary,
        also=tuple(also),
        refused=refused,
        in_tree=in_tree,
        funnel=funnel(counts),
        fixes=nodes.fixes,
        tried=tuple(dict.fromkeys(nodes.tried)),
        best=best,
        claims={name: "all" if count is None else count for name, count in demand.claims},
        claimed=claims_in_words(scheduled_pod.claims.pod_claims.claims if scheduled_pod.claims else (), demand.claims),
        dra=_equivalent_claim(demand, snapshot),
        unsourced=_unsourced(snapshot),
        unjudged=_unjudged(scheduled_pod, nodes.constraints),
        admission=replace(admission, actions=recorded) if pod.live else admission,
        verdicts=(yield from _verdicts(groups)) if by_node else None,
        bound=None if pod.node is None else _bound_verdict(pod.node, groups),
        ending=pod.ending,
        unhealthy=() if pod.node is None else unhealthy_devices(declared),
        not_started=pod.not_started,
        live=pod.live,
        phase=declared.status.phase,
        devices=devices,
        gang=gang,
        notes=(*([gang.sentence] if gang else ()), *_notes(pod, nodes, events, bool(refused))),
        asked_by=asked_by(scheduled_pod.pod, dict(demand.resources)),
    )


def _gang(pod: _ReadPod) -> Generator[None, None, GangVerdict | None]:
    """Place all waiting pods of the pod's gang in turn; None for a pod without one."""
    gang = gang_of_pod(pod.snapshot.state, pod.review.pod, pod.review.document)
    if gang is None:
        return None
    if pod.snapshot.pod_group is not None:
        gang = replace(gang, group=pod.snapshot.pod_group)
    return (yield from gang_verdict(gang, pod.snapshot, pod.live))


def _notes(pod: _ReadPod, nodes: _JudgedNodes, events: Sequence[Mapping[str, Any]], refused: bool) -> Iterator[str]:
    """Say what no reason of a node says: of the claims, of the scheduler and its Events, of the node that the pod has.

    `refused` tells whether a filter of gpu-usher refuses a node.
    """
    scheduled_pod, snapshot, fitting = nodes.scheduled_pod, pod.snapshot, nodes.fitting
    yield from creation_notes(scheduled_pod, snapshot)
    yield from scheduled_pod.claims.pod_claims.notes if scheduled_pod.claims else ()
    if pod.ending is not None and pod.ending.refused and any(node.name == pod.ending.node for node in fitting):
        yield (  # no score shows that
            f"{pod.ending.node} fits, but its kubelet has just refused this pod; fix that before you create it again"
        )
    if not (pod.node or pod.ending):
        yield from group_to_come(pod.review.pod, pod.review.document, snapshot)
    if pod.live and not (pod.node or pod.ending):
        yield from claims_to_come(scheduled_pod.pod, scheduled_pod.document, snapshot.devices)
        yield from not_looked_at(scheduled_pod.document, events, snapshot.knowledge.evidence.schedulers_without_gpus)
        yield from answer_of_scheduler(scheduled_pod.document) if fitting else ()
    if (cuda := required_cuda(pod_object(pod.review.document))) and pod.node:
        yield f'judged with the annotation {CUDA}: "{cuda}", which the start error names: set it on the pod'
    if not (fitting or pod.node or pod.ending):
        yield from who_is_in_the_way(scheduled_pod, snapshot, pod.live)
        yield from labels_of_no_node(scheduled_pod, snapshot)
    node = snapshot.nodes.get(pod.node or "")
    for condition in node.conditions if node is not None else ():
        yield f"its node reports {condition.words} ({condition.explained}); {condition.remedy}"
    if pod.node is None:
        yield from claim_notes(scheduled_pod.claims, fitting)
        whole = snapshot.knowledge.families.mig_gpu
        yield from topology_notes(scheduled_pod.pod, fitting, snapshot.devices, whole)
        yield from who_decides(scheduled_pod, snapshot, refused, bool(fitting))
    else:
        yield from what_ends_it(pod_object(pod.review.document), snapshot)
    classes = [node.node_class for node in fitting]
    lacking: dict[CUDANeed | ImageBuild, list[NodeClass]] = {}
    for one in classes:
        if (lack := lacks_code(scheduled_pod.demand, one)) is not None:
            lacking.setdefault(lack, []).append(one)
    yield from starmap(lacks_code_words, lacking.items())
    for row in NEEDS:
        yield from row.tolerated(scheduled_pod.demand, classes)
    if not pod.node and not pod.review.has_our_scheduler and scheduled_pod.demand.requests_gpus:
        yield (
            f"admission leaves this pod as it is, since it names scheduler {scheduled_pod.pod.scheduler_name}: a "
            "policy with that schedulerName includes it; without one it needs its own toleration and runtimeClassName"
        )
    yield from asks_for_none(scheduled_pod, snapshot)
    left_out = _left_out(nodes.groups, snapshot) if node is not None else ()
    yield from what_it_got(scheduled_pod, node, snapshot.knowledge.products, left_out)
    if pod.live and (refusals := scheduled_pod.review_result.reasons):
        yield f"created again now, it would be refused: {'; '.join(reason.message for reason in refusals)}"


def _not_known(demand: Demand, snapshot: World) -> Iterator[str]:
    """Say that no driver was compared, since nothing tells the CUDA version of the pod."""
    classes = (node.node_class for node in snapshot.nodes.values())
    drivers = (one.cuda and any(one.allocatable(resource) for resource, _ in demand.resources) for one in classes)
    if not (demand.cuda or demand.preferred_cuda) and any(drivers):
        yield f"CUDA of its image is not known: drivers were not checked; set {CUDA}"


def _left_out(groups: Groups, snapshot: World) -> list[tuple[str, int]]:
    """Count the nodes with GPUs that lasting objections leave out, by the first of them; most nodes first."""
    counts: Counter[str] = Counter()
    for objections, names in groups.items():
        lasting = [one for one in objections if not is_transient(one) and objection_name(one) not in OFFER_NONE]
        gpu_nodes = sum(snapshot.nodes[name].has_gpus for name in names)
        if lasting and gpu_nodes:
            counts[objection_text(first_objection(lasting))] += gpu_nodes
    return counts.most_common(2)


def _with_fixes(pod: _ReadPod, judged: _JudgedNodes) -> Generator[None, None, _JudgedNodes]:
    """Search for changes of the pod, and of the claims that it has."""
    scheduled_pod, snapshot = judged.scheduled_pod, pod.snapshot
    search = FixSearch(scheduled_pod, pod.base, snapshot, judged.constraints)
    fixes = yield from search.run(judged.groups, pod.live)
    tried = tuple(KINDS.get(kind, kind) for kind in search.tried)
    if scheduled_pod.claims is not None:
        is_fault = snapshot.knowledge.families.is_fault
        of_claims, kinds = yield from claim_fixes(scheduled_pod.claims, judged.groups, snapshot.nodes, is_fault)
        fixes, tried = (*fixes, *of_claims), (*tried, *(CLAIM_KINDS.get(kind, kind) for kind in kinds))
    return replace(judged, fixes=fixes, tried=tried)


def _equivalent_claim(demand: Demand, snapshot: World) -> dict[str, Any] | None:
    """Write the claim for what a pod requests as resources; None if it requests none."""
    if not demand.resources:
        return None
    return dra_equivalent(demand, snapshot.knowledge, version=snapshot.state.devices.dra.served_version)


def _by_objections(nodes: Mapping[str, Node], judge: NodeJudge) -> Generator[None, None, Groups]:
    """Judge all nodes, and group their names by what objects to the pod; nodes that fit have no objections."""
    groups: dict[tuple[Objection, ...], list[str]] = {}
    for index, (name, node) in enumerate(nodes.items()):
        groups.setdefault(judge.objections(node), []).append(name)
        if index % NODES_JUDGED_AT_ONCE == 0:
            yield
    return groups


def _device_funnels(
    scheduled_pod: ScheduledPod, groups: Groups, snapshot: World
) -> Generator[None, None, tuple[RequestFunnel, ...]]:
    """Count the devices of the fleet for each request, where the claims get none on some node."""
    if scheduled_pod.claims is None or not any(any(map(is_of_claims, objections)) for objections in groups):
        return ()
    return (yield from funnels(scheduled_pod.claims, snapshot.nodes))


def _unjudged(scheduled_pod: ScheduledPod, constraints: InterPodConstraints | None) -> tuple[str, ...]:
    """List what only kube-scheduler can judge: claims, and constraints between pods where the others are not known.

    Claims are judged but for those that are not known, and those that go beyond what is read here.
    """
    judge = scheduled_pod.claims
    claims = bool(judge.not_judged) if judge is not None else bool(scheduled_pod.demand.claims)
    return tuple(unjudged_constraints(claims, None if constraints else scheduled_pod.pod_among_others))


def _count_reasons(
    counts: Mapping[tuple[Objection, ...], int], scheduled_pod: ScheduledPod
) -> tuple[tuple[Refused, ...], tuple[Refused, ...]]:
    """Count the nodes by the first reason of gpu-usher's filters, and by every reason of kube-scheduler."""
    filter_counts: Counter[Objection] = Counter()
    in_tree_counts: Counter[Objection] = Counter()
    for objections, count in counts.items():
        reasons = [
            objection
            for objection in objections
            if isinstance(objection, Reason) and objection not in scheduled_pod.review_result.reasons
        ]
        for first in reasons[:1]:
            filter_counts[first] += count
        for refusal in dict.fromkeys(refusal for refusal in objections if isinstance(refusal, InTreeRefusal)):
            in_tree_counts[refusal] += count
    return tuple(refused_by(*entry) for entry in filter_counts.most_common()), tuple(
        refused_by(*entry) for entry in in_tree_counts.most_common()
    )


def _verdicts(groups: Groups) -> Generator[None, None, tuple[NodeVerdict, ...]]:
    """List every node's objections, the nodes with the fewest first; the nodes of a group share one list of them."""
    verdicts: list[NodeVerdict] = []
    for objections, names in sorted(groups.items(), key=lambda group: len(group[0])):
        first = _verdict(names[0], objections)
        for start in range(0, len(names), VERDICTS_AT_ONCE):
            part = names[start : start + VERDICTS_AT_ONCE]
            verdicts.extend(NodeVerdict(name, first.fits, first.reasons, first.messages) for name in part)
            yield
    return tuple(verdicts)


def _bound_verdict(node: str, groups: Groups) -> NodeVerdict:
    """List the objections to the node that a pod has; the node may be gone while the pod is still there."""
    objections = next((objections for objections, names in groups.items() if node in names), None)
    if objections is None:
        return NodeVerdict(node, fits=False, reasons=(Code.NodeNotKnown.name,), messages=(GONE,))
    return _verdict(node, objections)


GONE = "the node is not there any more"


def _verdict(name: str, objections: tuple[Objection, ...]) -> NodeVerdict:
    return NodeVerdict(
        name, not objections, tuple(map(objection_name, objections)), tuple(map(objection_text, objections))
    )


def admission_outcome(result: ReviewResult) -> AdmissionOutcome:
    """Summarize the result of an admission review."""
    message = "; ".join(f"{reason.code.name}: {reason.message}" for reason in result.reasons)
    actions = tuple(action for action in result.record if action not in result.warnings)
    return AdmissionOutcome(result.allowed, message, result.warnings, actions)


def _unsourced(snapshot: World) -> tuple[str, ...]:
    """Name the fleet's products whose facts (memory, MIG, interconnect) have no source; GFD labels override them."""
    products = snapshot.knowledge.products.by_form
    rows = {products.get(product) for product in {node.node_class.product or "" for node in snapshot.nodes.values()}}
    return tuple(sorted(row.label for row in rows if row is not None and row.unsourced))


def _best(
    demand: Demand, fitting: list[Node], promised: bool, products: Products
) -> Generator[None, None, tuple[FittingNode, ...]]:
    if not fitting:
        return ()
    totals: list[float] = []
    best: list[int] = []
    for start in range(0, len(fitting), NODES_JUDGED_AT_ONCE):
        totals.extend(total(demand, node) for node in fitting[start : start + NODES_JUDGED_AT_ONCE])
        positions = range(start, len(totals))
        best = nsmallest(
            BEST_SHOWN, [*best, *positions], key=lambda position: ranking_key(totals[position], fitting[position].name)
        )
        yield
    scores = demand_scores(demand, [node.name for node in fitting], totals, one_best=promised)
    return tuple(
        _fitting_node(demand, fitting[position], totals[position], scores[position], products) for position in best
    )


def _fitting_node(demand: Demand, node: Node, value: float, score: int, products: Products) -> FittingNode:
    """Say what the node gives, and break its total down: each scorer's score and weight, and the penalties."""
    parts, row = breakdown(demand, node), products.find(node.node_class.product or "")
    gives = {resource: node.node_class.unit_words(resource) for resource, _ in demand.resources}
    memory = node.node_class.memory_of(gives)
    return FittingNode(
        node=node.name,
        gives=gives,
        product=(row.label if row is not None else node.node_class.product or "") * demand.requests_gpus,
        memory_mib=int(memory) if memory and demand.requests_gpus else None,
        driver=show_driver(node.node_class.driver) if node.node_class.driver and demand.requests_gpus else "",
        score=score,
        total=round(value, 3),
        scores={name: {"score": round(part, 3), "weight": weight} for name, (part, weight) in parts.items()},
        lowered_by=tuple(score_penalties(demand, node)),
    )


def score_penalties(demand: Demand, node: Node) -> list[str]:
    """Name the penalties that halve a node's total, in words."""
    refusal = demand.warned is not None and judge_class(demand.warned, class_for_demand(demand.warned, node))
    warned = [f"a policy that warns: {refusal.message}"] if refusal else []
    names = [penalty.__name__.replace("_", " ") for penalty in PENALTIES if penalty(demand, node.node_class)]
    reported = [condition.words for condition in node.conditions]
    return [*warned, *(f"{name} {', '.join(reported)}" if name == "node condition" else name for name in names)]
