# SPDX-License-Identifier: Apache-2.0
"""A pod posed to every node: what kube-scheduler and the filters, each asked for all they object to, say of each."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.admission.affinity.mutator import NODE_AFFINITY
from app.admission.json_patch import apply
from app.admission.review import ReviewContext, Verdict, mutate
from app.explain.funnel import Objection
from app.intree.checks import NodeSelectorTerm, PodConstraints, scheduling_gate_refusal, read_pod_constraints, refusals
from app.intree.existing_pods import REQUIRED, ExistingPods, PodAmongOthers, read_pod_among_others
from app.intree.inter_pod_constraints import InterPodConstraints, inter_pod_constraints_of
from app.kube.gpu_usage import GPUUsage
from app.kube.pods import Pod, read_pod
from app.nodes.model import Node
from app.placement import engine
from app.placement.filters import FREE_FILTERS
from app.placement.scheduler_demand import scheduler_demand
from app.policy.demand import Demand
from app.policy.expected_demand import ExpectedDemand
from app.policy.match import Ruling
from app.values.json_members import member
from app.values.reasons import Code, Reason

NOTHING: Mapping[str, int] = {}
LACKING = frozenset({Code.ResourceNotOffered, Code.GhostGPUs, Code.MIGProfileAbsent, Code.RequestExceedsNode})
IMPLIED = frozenset({Code.RequestExceedsNode, Code.InsufficientGPUs})
"""What goes without saying where a resource is lacking, or too few of it are there in all."""


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The cluster at one moment. `used`: what pods have booked of each node; `holdings`: who holds GPUs on a node.

    `volumes`: the node affinity of the PersistentVolume behind each PersistentVolumeClaim, by "namespace/name".
    `neighbours`: all pods that have a node; None where they are not known: a service keeps only what pods hold.
    `expected`: the demand to be expected, as the service has learnt it. `group_cliques`: the NVLink domains in which
    other pods of a pod's group run. `unpromised`: the node promised to a pod, by UID, as it is without the promise.
    """

    nodes: Mapping[str, Node]
    used: Mapping[str, Mapping[str, int]]
    setting: ReviewContext
    namespace_labels: Callable[[str], Mapping[str, str]]
    holdings: Callable[[str], tuple[GPUUsage, ...]] = lambda _name: ()
    volumes: Mapping[str, tuple[NodeSelectorTerm, ...]] = field(default_factory=dict)
    neighbours: ExistingPods | None = None
    expected: ExpectedDemand | None = None
    group_cliques: Callable[[Pod], frozenset[str]] = lambda _pod: frozenset()
    unpromised: Callable[[str], Node | None] = lambda _uid: None


Groups = Mapping[tuple[Objection, ...], list[str]]
"""Nodes by what stands against them, all of it; a fleet has dozens of groups."""


@dataclass(frozen=True, slots=True)
class ScheduledPod:
    """A pod as kube-scheduler sees it. `seeker`: what that looks at; `own`: the same, but for the affinity that
    admission wrote into it, since the filters say better why a node is left out by that.
    """

    document: Mapping[str, Any]
    pod: Pod
    verdict: Verdict
    ruling: Ruling
    demand: Demand
    pod_constraints: PodConstraints
    own: PodConstraints
    pod_among_others: PodAmongOthers

    def against(self) -> tuple[Objection, ...]:
        """List what stands against the pod itself, whatever the node: admission's reasons, gates."""
        gate = scheduling_gate_refusal(self.pod_constraints)
        return (*self.verdict.reasons, *((gate,) if gate else ()))


def pose(document: Mapping[str, Any], world: ClusterSnapshot, admit: bool) -> ScheduledPod:
    """Take a pod through admission, or as it is in the cluster, and read what is asked. `document`: the user's part.

    Raises MalformedPod, QuantityError.
    """
    setting, namespace = world.setting, namespace_of(document)
    labels = world.namespace_labels(namespace)
    verdict = mutate(document, namespace, labels, setting)
    admitted = apply(document, verdict.operations) if admit else document
    pod = read_pod(admitted)
    ruling = setting.ruling(pod, labels)
    pod_constraints = read_pod_constraints(admitted, setting.knowledge.families.of, world.volumes)
    own = read_pod_constraints(plain(document, world), setting.knowledge.families.of)
    bare = replace(pod_constraints, terms=own.terms)
    demand = scheduler_demand(pod, ruling.demand, world.group_cliques(pod), world.expected)
    return ScheduledPod(admitted, pod, verdict, ruling, demand, pod_constraints, bare, read_pod_among_others(admitted))


def without_promise(uid: str, world: ClusterSnapshot) -> ClusterSnapshot:
    """Give the cluster without what is promised to a pod: prioritize forgets that too when it is asked again."""
    node = world.unpromised(uid)
    return replace(world, nodes={**world.nodes, node.name: node}) if node is not None else world


def company_of(scheduled_pod: ScheduledPod, world: ClusterSnapshot) -> InterPodConstraints | None:
    """Count what the pods that are there mean to a pod; None where they are not known."""
    if world.neighbours is None:
        return None
    return inter_pod_constraints_of(
        scheduled_pod.pod_among_others,
        scheduled_pod.pod_constraints,
        world.neighbours,
        world.nodes,
        world.namespace_labels,
    )


def plain(document: Mapping[str, Any], world: ClusterSnapshot) -> Mapping[str, Any]:
    """Take out of a pod the node affinity that admission has written, or would write, into it."""
    terms = _required(document).get("nodeSelectorTerms")
    if not terms or not isinstance(terms, list):
        return document
    bare = _with_required(document, None)
    namespace = namespace_of(document)
    verdict = mutate(bare, namespace, world.namespace_labels(namespace), world.setting)
    ours = [each.get("matchExpressions") or [] for each in _required(apply(bare, verdict.operations)).get(
        "nodeSelectorTerms", ())]  # fmt: skip
    left: list[Mapping[str, Any]] = []
    for term in terms:
        rest = _without(term, ours)
        if not (rest.get("matchExpressions") or rest.get("matchFields")):
            return bare
        if rest not in left:
            left.append(rest)
    return _with_required(document, {"nodeSelectorTerms": left})


def _without(term: Mapping[str, Any], ours: list[list[Any]]) -> Mapping[str, Any]:
    present = term.get("matchExpressions") or []
    held = [wanted for wanted in ours if wanted and all(each in present for each in wanted)]
    most = max(held, key=len, default=[])
    return {**term, "matchExpressions": [each for each in present if each not in most]} if most else term


def _required(document: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Any = document
    for key in (*NODE_AFFINITY, REQUIRED):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _with_required(document: Mapping[str, Any], required: Mapping[str, Any] | None) -> Mapping[str, Any]:
    changed: Any = copy.deepcopy(document)
    affinity = changed["spec"]["affinity"]["nodeAffinity"]
    if required is None:
        del affinity[REQUIRED]
    else:
        affinity[REQUIRED] = required
    return changed  # type: ignore[no-any-return]


def namespace_of(document: Mapping[str, Any]) -> str:
    """Read a pod's namespace."""
    metadata = member(document, "metadata", dict, "") or {}
    return member(metadata, "namespace", str, "metadata.") or "default"


class NodeJudge:
    """Judges nodes for one pod; what is the same for all nodes of a class is asked once."""

    def __init__(
        self, scheduled_pod: ScheduledPod, used: Mapping[str, Mapping[str, int]], company: InterPodConstraints | None
    ) -> None:
        self.scheduled_pod = scheduled_pod
        self._company = company
        self._demand = scheduled_pod.demand
        self._used = used
        self._classes: dict[int, tuple[Reason, ...]] = {}

    def objections(self, node: Node) -> tuple[Objection, ...]:
        """List all that stands against a node, the filters' reasons last; none where the pod fits."""
        scheduled_pod, used = self.scheduled_pod, self._used.get(node.name, NOTHING)
        company = self._company.refusals(node) if self._company else ()
        found: list[Objection] = [
            *scheduled_pod.against(),
            *refusals(scheduled_pod.own, node, used),
            *company,
            *self._filters(node),
        ]
        return tuple(found) or refusals(scheduled_pod.pod_constraints, node, used)

    def fits(self, node: Node) -> bool:
        """Tell whether the pod can be bound to the node now."""
        scheduled_pod = self.scheduled_pod
        return not (
            scheduled_pod.against()
            or self._filters(node)
            or refusals(scheduled_pod.pod_constraints, node, self._used.get(node.name, NOTHING))
            or (self._company and any(self._company.refusals(node)))
        )

    def _filters(self, node: Node) -> tuple[Reason, ...]:
        if not self._demand.judged:
            return ()
        found = (*self._of_class(node), *filter(None, (accepts(self._demand, node.free) for accepts in FREE_FILTERS)))
        if len(found) > 1 and (lacking := {each.code for each in found} & LACKING):
            implied = IMPLIED - lacking if lacking == {Code.RequestExceedsNode} else IMPLIED
            return tuple(each for each in found if each.code not in implied)
        return found

    def _of_class(self, node: Node) -> tuple[Reason, ...]:
        if self._demand.node_selector:
            return engine.refusals(self._demand, engine.facts(self._demand, node))
        known = self._classes.get(id(node.node_class))
        if known is None:
            known = self._classes[id(node.node_class)] = engine.refusals(self._demand, node.node_class)
        return known
