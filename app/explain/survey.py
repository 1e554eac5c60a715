# SPDX-License-Identifier: Apache-2.0
"""A pod against every node: all objections of kube-scheduler and of the filters to each node.

A pod is read and ruled on once (`review_as_is`), and admission runs once on that. `ScheduledPod` is what kube-scheduler
would then see of it. A `NodeJudge` asks about each node the checks of kube-scheduler, the constraints of existing pods,
the claims, and the filters.
"""

import copy
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.admission.node_affinity import NODE_AFFINITY, required_terms, value_at
from app.admission.review import ReviewResult, mutate_reviewed
from app.admission.reviewed_pod import ReviewContext, ReviewedPod, begin_review, is_exempt
from app.admission.tolerations import keys_added_with_nodes
from app.dra.pod_claims import claims_of_pod
from app.dra.pod_judge import ClaimJudge
from app.explain.funnel import Objection, is_transient
from app.intree.api_server import NewPod, api_server_refusals, completed
from app.intree.checks import (
    InTreeCause,
    InTreeRefusal,
    PodConstraints,
    in_tree_refusals,
    read_pod_constraints,
    scheduling_gate_refusal,
)
from app.intree.inter_pod_constraints import InterPodConstraints, inter_pod_constraints_of
from app.knowledge.mig_profiles import MIGProfiles
from app.kube.existing_pods import PodAmongOthers, read_pod_among_others
from app.kube.pod_object import REQUIRED_TERMS, pod_object
from app.kube.pods import Pod, pod_of, read_pod
from app.nodes.mig_state import may_offer_later
from app.nodes.model import Node
from app.placement import engine
from app.placement.filters import FREE_FILTERS
from app.placement.scheduler_demand import scheduler_demand
from app.policy.demand import Demand
from app.policy.match import Ruling
from app.values.json_members import member
from app.values.reasons import Code, Reason, ReasonKind
from app.world.namespace_limits import held_by_others
from app.world.scheduling_groups import SchedulingGroups
from app.world.world import World

NO_REQUESTS: Mapping[str, int] = {}
LACKING = frozenset(
    {
        Code.ResourceNotOffered,
        Code.OfferedByClaimOnly,
        Code.GhostGPUs,
        Code.MIGProfileAbsent,
        Code.RequestExceedsNode,
    }
)
"""Codes which say that a node never has the requested units, even with no other pod on it."""
LACKED_MEANWHILE = frozenset(
    {Code.MIGProfileAbsent, Code.ResourceNotOffered, Code.RequestExceedsNode, Code.InsufficientGPUs}
)
"""Codes that tell nothing of a node whose MIG layout is being changed, where it may offer what is asked afterwards."""
IMPLIED = frozenset({Code.RequestExceedsNode, Code.InsufficientGPUs})
"""Codes that follow from one of LACKING, so that explain leaves them out beside it: too few units in all where the node
does not offer the resource, and too few free units in both cases."""


Groups = Mapping[tuple[Objection, ...], list[str]]
"""Nodes by all their objections to a pod; a fleet has dozens of groups."""


@dataclass(frozen=True, slots=True)
class ScheduledPod:
    """A pod as kube-scheduler sees it.

    `review_result` is what admission makes of it. `pod_constraints` are its constraints on a node. `own` are the same
    without the node affinity that admission wrote into it, since the filters give a better reason for a node which that
    affinity excludes. `claims` judges nodes for its ResourceClaims; None where it has none. `tolerable` are the keys of
    the taints that admission tolerates for it as soon as a node with them suits it. `new_pod` is what the API server's
    own admission judges, None for a pod that exists, and `api_refusals` are those of it. `admission_refusals` are the
    reasons for which admission refuses the pod; none for a pod that exists, which admission judges no more. `mig` are
    the MIG profiles of products.
    """

    document: Mapping[str, Any]
    pod: Pod
    review_result: ReviewResult
    ruling: Ruling
    demand: Demand
    pod_constraints: PodConstraints
    own: PodConstraints
    pod_among_others: PodAmongOthers
    mig: MIGProfiles
    claims: ClaimJudge | None = None
    tolerable: frozenset[str] = frozenset()
    api_refusals: tuple[InTreeRefusal, ...] = ()
    new_pod: NewPod | None = None
    admission_refusals: tuple[Reason, ...] = ()

    def pod_objections(self) -> tuple[Objection, ...]:
        """List the objections to the pod itself: admission's reasons, the API server's own, scheduling gates."""
        gate = scheduling_gate_refusal(self.pod_constraints)
        return (*self.admission_refusals, *self.api_refusals, *((gate,) if gate else ()))


def review_as_is(document: Mapping[str, Any], snapshot: World) -> ReviewedPod:
    """Read a pod, and rule on it as it is: what admission, the judges and the search for fixes look at.

    Raises MalformedPod, OversizedPod, QuantityError.
    """
    pod = read_pod(document)
    document = document if document.get("spec") else {**document, "spec": {}}  # a template without one
    return begin_review(document, pod, snapshot.state.namespaces.labels(pod.namespace), ReviewContext(snapshot))


def with_api_defaults(document: Mapping[str, Any], namespace: str, snapshot: World) -> Mapping[str, Any]:
    """Return a pod with what the API server's plugins write into a new one. Raises QuantityError."""
    if not snapshot.judges_creation:
        return document
    return completed(document, namespace, snapshot.admission_objects, snapshot.fleet.runtime_classes)


def read_scheduled_pod(document: Mapping[str, Any], snapshot: World, admit: bool) -> ScheduledPod:
    """Read a pod after admission, or as it is in the cluster. Raises MalformedPod, QuantityError."""
    review = review_as_is(document, snapshot)
    if (new := with_api_defaults(document, review.pod.namespace, snapshot)) is not document:
        review = review_as_is(new, snapshot)
    return scheduled_pod_of(review, mutate_reviewed(review), snapshot, admit)


def scheduled_pod_of(review: ReviewedPod, result: ReviewResult, snapshot: World, admit: bool) -> ScheduledPod:
    """Give a pod as kube-scheduler sees it. `result` is that of its admission, which `admit` applies.

    Raises MalformedPod, QuantityError.
    """
    own_document = with_api_defaults(without_our_affinity(review), review.pod.namespace, snapshot)
    if admit and result.admitted is not None:
        review = result.admitted
    admitted, ruling, knowledge = review.document, review.ruling, review.context.world.knowledge
    families = knowledge.families
    if (new := with_api_defaults(admitted, review.pod.namespace, snapshot)) is not admitted:
        admitted, declared = new, pod_object(new)
        review = replace(review, document=new, pod=pod_of(declared))
    else:
        declared = pod_object(admitted)
    pod = review.pod
    labels = review.namespace_labels
    claims = ClaimJudge(claims_of_pod(pod, admitted, snapshot.devices, labels), snapshot.devices, snapshot.selection)
    served = frozenset(resource for resource, _ in claims.pod_claims.extended)
    uncounted = families.uncounted(pod.scheduler_name, pod.annotations)

    def counted(name: str) -> bool:
        return name in uncounted or families.of(name) is not None

    pod_constraints = read_pod_constraints(declared, counted, snapshot.volumes)
    pod_constraints = replace(pod_constraints, served=served, taints=families.taints)
    own = pod_constraints
    if own_document is not admitted:
        affinity = pod_object({"spec": {"affinity": own_document["spec"].get("affinity")}})
        own = replace(pod_constraints, terms=read_pod_constraints(affinity, families.of).terms)
    classes = review.context.world.fleet.runtime_classes
    cliques = SchedulingGroups(snapshot.state).cliques(pod, ruling.demand)
    held = held_by_others(snapshot.state, pod) if ruling.demand.namespace_limits else ()
    demand = scheduler_demand(pod, ruling.demand, cliques, snapshot.expected, classes, held)
    among_others = read_pod_among_others(declared)
    judge = claims if claims.pod_claims.to_allocate or claims.pod_claims.obstacles or pod.claims else None
    tolerable = keys_added_with_nodes(ruling, families)
    created = _new_pod(review, demand, snapshot) if snapshot.judges_creation else None
    refused = api_server_refusals(created) if created else ()
    return ScheduledPod(admitted, pod, result, ruling, demand, pod_constraints, own, among_others,
                        knowledge.mig, judge, tolerable,
                        refused, created, tuple(result.reasons) if admit else ())  # fmt: skip


def _new_pod(review: ReviewedPod, demand: Demand, snapshot: World) -> NewPod:
    """Give what the API server's own admission judges of a new pod; its claims count if they are made for it."""
    made = review.pod.claims and all(template for _, _, template in review.pod.claims)
    claimed = {name: count for name, count in demand.claims if count is not None} if made else {}
    security = review.context.world.knowledge.pod_security
    objects, classes = snapshot.admission_objects, review.context.world.fleet.runtime_classes
    return NewPod(review.document, review.pod.namespace, review.namespace_labels, objects, classes, security, claimed)


def without_promise(uid: str, snapshot: World) -> World:
    """Return the snapshot without what is promised to a pod; prioritize drops its promise too when called again."""
    node = snapshot.state.unpromised(uid)
    return replace(snapshot, nodes={**snapshot.nodes, node.name: node}) if node is not None else snapshot


def existing_pod_constraints(scheduled_pod: ScheduledPod, snapshot: World) -> InterPodConstraints | None:
    """Count the existing pods' constraints on a pod; None where the existing pods are not known."""
    if snapshot.existing_pods is None:
        return None
    return inter_pod_constraints_of(
        scheduled_pod.pod_among_others,
        scheduled_pod.pod_constraints,
        snapshot.existing_pods,
        snapshot.nodes,
        snapshot.state.namespaces.labels,
    )


def without_our_affinity(review: ReviewedPod) -> Mapping[str, Any]:
    """Give a pod without the node affinity that admission has written, or would write, into it."""
    terms = _required(review.document).get("nodeSelectorTerms")
    if not terms or not isinstance(terms, list):
        return review.document
    exempt = is_exempt(review.pod.namespace, review.namespace_labels, review.context.world.knowledge)
    ours = [] if exempt else [list(term) for term in required_terms(review)]
    remaining: list[Mapping[str, Any]] = []
    for term in terms:
        present = term.get("matchExpressions") or []
        written = (one for one in ours if all(expression in present for expression in one))
        largest = max(written, key=len, default=[])
        left = [expression for expression in present if expression not in largest]
        remaining_term = {**term, "matchExpressions": left} if largest else term
        if not (remaining_term.get("matchExpressions") or remaining_term.get("matchFields")):
            return _with_required(review.document, None)
        if remaining_term not in remaining:
            remaining.append(remaining_term)
    return _with_required(review.document, {"nodeSelectorTerms": remaining})


def _required(document: Mapping[str, Any]) -> Mapping[str, Any]:
    value = value_at(document, (*NODE_AFFINITY, REQUIRED_TERMS))
    return value if isinstance(value, dict) else {}


def _with_required(document: Mapping[str, Any], required: Mapping[str, Any] | None) -> Mapping[str, Any]:
    changed: Any = copy.deepcopy(document)
    affinity = changed["spec"]["affinity"]["nodeAffinity"]
    if required is None:
        del affinity[REQUIRED_TERMS]
    else:
        affinity[REQUIRED_TERMS] = required
    return changed  # type: ignore[no-any-return]


def namespace_of(document: Mapping[str, Any]) -> str:
    """Return a pod's namespace, "default" where it names none."""
    metadata = member(document, "metadata", dict, "") or {}
    return member(metadata, "namespace", str, "metadata.") or "default"


class NodeJudge:
    """Judges nodes for one pod; what is the same for all nodes of a class is judged once."""

    def __init__(
        self,
        scheduled_pod: ScheduledPod,
        used: Mapping[str, Mapping[str, int]],
        constraints: InterPodConstraints | None,
    ) -> None:
        self.scheduled_pod = scheduled_pod
        self._constraints = constraints
        self._demand = scheduled_pod.demand
        self._used = used
        self._classes: dict[Hashable, tuple[Reason, ...]] = {}

    def objections(self, node: Node) -> tuple[Objection, ...]:
        """List all objections to the node, the filters' reasons last; empty where the pod fits."""
        scheduled_pod, used = self.scheduled_pod, self._used.get(node.name, NO_REQUESTS)
        constraint_refusals = self._constraints.refusals(node) if self._constraints else ()
        reasons = self._filter_reasons(node)
        in_tree = in_tree_refusals(scheduled_pod.own, node, used)
        if any(reason.code.kind is ReasonKind.CLASS and not is_transient(reason) for reason in reasons):
            in_tree = tuple(refusal for refusal in in_tree if not self._passes_with_node(refusal))
        objections: list[Objection] = [
            *scheduled_pod.pod_objections(),
            *in_tree,
            *constraint_refusals,
            *self._claim_refusals(node),
            *reasons,
        ]
        return tuple(objections) or in_tree_refusals(scheduled_pod.pod_constraints, node, used)

    def _passes_with_node(self, refusal: InTreeRefusal) -> bool:
        """Tell whether a taint is one that admission tolerates for the pods that the node suits."""
        return refusal.cause is InTreeCause.UntoleratedTaint and refusal.about[0] in self.scheduled_pod.tolerable

    def fits(self, node: Node) -> bool:
        """Tell whether the pod can be bound to the node now."""
        scheduled_pod = self.scheduled_pod
        return not (
            scheduled_pod.pod_objections()
            or self._filter_reasons(node)
            or in_tree_refusals(scheduled_pod.pod_constraints, node, self._used.get(node.name, NO_REQUESTS))
            or (self._constraints and any(self._constraints.refusals(node)))
            or self._claim_refusals(node)
        )

    def _claim_refusals(self, node: Node) -> tuple[InTreeRefusal, ...]:
        """Judge the pod's ResourceClaims (plugin DynamicResources)."""
        refusal = self.scheduled_pod.claims.refusal(node) if self.scheduled_pod.claims else None
        if refusal is None:
            return ()
        cause = InTreeCause.DevicesInUse if refusal.passing else InTreeCause.DevicesNotSuitable
        return (
            InTreeRefusal(InTreeCause.ClaimNotUsable if refusal.error else cause, refusal.message, (refusal.text,)),
        )

    def _filter_reasons(self, node: Node) -> tuple[Reason, ...]:
        if not self._demand.requests_gpus:
            return ()
        key = engine.class_key(node, self._demand.label_keys)
        if key not in self._classes:
            self._classes[key] = engine.class_refusals(self._demand, engine.class_for_demand(self._demand, node))
        reasons = (
            *self._classes[key],
            *filter(None, (accepts(self._demand, node.free) for accepts in FREE_FILTERS)),
        )
        if len(reasons) > 1 and self._gets_layout_for_pod(node, reasons):
            reasons = tuple(reason for reason in reasons if reason.code not in LACKED_MEANWHILE)
        if len(reasons) > 1 and (lacking := {reason.code for reason in reasons} & LACKING):
            implied = IMPLIED - lacking if lacking == {Code.RequestExceedsNode} else IMPLIED
            return tuple(reason for reason in reasons if reason.code not in implied)
        return reasons

    def _gets_layout_for_pod(self, node: Node, reasons: tuple[Reason, ...]) -> bool:
        """Tell whether the node's MIG layout is being changed and may have all that the pod asks afterwards."""
        changing = any(reason.code in {Code.MIGReconfiguring, Code.MIGLayoutFailed} for reason in reasons)
        if self._demand.mig_profile and node.node_class.mig_strategy != "single":
            return False  # the units that it asks for become no slices
        return changing and all(
            may_offer_later(node, *asked, self.scheduled_pod.mig) for asked in self._demand.resources
        )
