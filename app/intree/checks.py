# SPDX-License-Identifier: Apache-2.0
"""Why kube-scheduler itself refuses a node: its own plugins' checks, in their own words, so that an answer is whole.

Words and order are those of kube-scheduler v1.36 (pkg/scheduler/framework/plugins). One function a cause; the tuple at
the foot is the product. What depends on other pods is in company.py; where those are not known, `unjudged` names it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from app.admission.tolerations import tolerates
from app.intree.existing_pods import REQUIRED, PodAmongOthers
from app.kube.pod_limits import MOST_CONSTRAINTS, check_constraints
from app.kube.pod_requests import PODS, Amounts, amounts_of, requests_of
from app.nodes.model import Node
from app.values.errors import BadInput
from app.values.json_members import member, strings
from app.values.label_requirements import Requirement, requirement

UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
"""core/v1 TaintNodeUnschedulable: a pod that tolerates it goes to cordoned nodes too (node_unschedulable.go)."""


class InTreeCause(Enum):
    """One cause of kube-scheduler's own; the value is its remedy."""

    NodeUnschedulable = "uncordon the node, or add nodes"
    UntoleratedTaint = "add the toleration, if the node is meant for this pod"
    NodeAffinityMismatch = "change nodeSelector or node affinity, or label nodes so"
    NodeNameMismatch = "remove spec.nodeName: it bypasses scheduling"
    InsufficientResource = "request less, or wait for pods to end, or add nodes"
    TooManyPods = "wait for pods to end, or add nodes"
    VolumeNodeAffinityConflict = "use a volume of another zone, or a StorageClass with WaitForFirstConsumer"
    HostPortTaken = "use another hostPort or none, or wait for the pod that has it to end, or add nodes"
    PodAffinityMismatch = "start first the pods that it wants to be near, or change its pod affinity"
    PodAntiAffinityConflict = "make its pod anti-affinity preferred, or wait for those pods to end, or add nodes"
    ExistingPodAntiAffinity = "running pods keep it away by their anti-affinity: change that, or its labels"
    TopologySpreadConflict = "raise maxSkew, or say whenUnsatisfiable: ScheduleAnyway, or make room in other domains"
    SchedulingGated = "whoever set the gate must remove it: see spec.schedulingGates"


@dataclass(frozen=True, slots=True)
class InTreeRefusal:
    """Why not, for kube-scheduler. `message`: its own words; `about`: which taint, label or resource it is about."""

    cause: InTreeCause
    message: str
    about: tuple[str, ...] = ()

    @property
    def remedy(self) -> str:
        """The one thing to do about it."""
        return self.cause.value


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """One node selector term. `expressions`: None for one that is not valid, which nothing fulfils.

    `names`: (In, name) or (NotIn, name) of matchFields.
    """

    expressions: tuple[tuple[str, Requirement | None], ...]
    names: tuple[tuple[bool, str], ...]

    def selects(self, node: Node) -> bool:
        """Tell whether the node is one of the term's; a term that says nothing selects none (nodeaffinity.go)."""
        if not self.expressions and not self.names:
            return False
        labels = node.labels
        return all(wanted is not None and wanted.allows(labels.get(key)) for key, wanted in self.expressions) and all(
            (name == node.name) is within for within, name in self.names
        )


@dataclass(frozen=True, slots=True)
class PodConstraints:
    """What of a pod kube-scheduler looks at. `terms`: None where there is no required node affinity.

    `requests`: but for GPUs, which the filters count. `volumes`: the node affinity of each of its bound volumes.
    """

    tolerations: tuple[Mapping[str, Any], ...]
    selector: tuple[tuple[str, str], ...]
    terms: tuple[NodeSelectorTerm, ...] | None
    node_name: str
    requests: Amounts
    gates: tuple[str, ...]
    volumes: tuple[tuple[NodeSelectorTerm, ...], ...] = ()


def read_seeker(
    document: Mapping[str, Any],
    counted: Callable[[str], object],
    volumes: Mapping[str, tuple[NodeSelectorTerm, ...]] | None = None,
) -> PodConstraints:
    """Read a Pod that `read_pod` has read before. `counted`: resources that others count; `volumes`: by PVC's key.

    Raises MalformedPod, OversizedPod.
    """
    spec = document.get("spec") or {}
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    namespace = (document.get("metadata") or {}).get("namespace") or "default"
    found = (volumes or {}).get
    selector = strings(spec, "nodeSelector", "spec.")
    terms = None if required is None else read_terms(required)
    check_constraints(len(selector), "spec.nodeSelector")
    check_constraints(len(terms or ()), "spec.affinity.nodeAffinity")
    return PodConstraints(
        tolerations=tuple(_objects(spec, "tolerations")),
        selector=tuple(sorted(selector.items())),
        terms=terms,
        node_name=member(spec, "nodeName", str, "spec.") or "",
        requests=tuple(each for each in requests_of(spec) if not counted(each[0])),
        gates=tuple(str(each.get("name")) for each in _objects(spec, "schedulingGates")),
        volumes=tuple(filter(None, (found(f"{namespace}/{claim}") for claim in claims_of(spec)))),
    )


def read_terms(selector: object) -> tuple[NodeSelectorTerm, ...]:
    """Read a NodeSelector, of affinity or of a PersistentVolume."""
    return tuple(map(_term, _objects(selector, "nodeSelectorTerms"))) if isinstance(selector, dict) else ()


def claims_of(spec: Mapping[str, Any]) -> Iterator[str]:
    """Name the PersistentVolumeClaims that a pod mounts."""
    for volume in _objects(spec, "volumes"):
        claim = volume.get("persistentVolumeClaim")
        if isinstance(claim, dict) and isinstance(claim.get("claimName"), str):
            yield claim["claimName"]


def _objects(parent: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    found = parent.get(key)
    return (each for each in found if isinstance(each, dict)) if isinstance(found, list) else iter(())


def _term(term: Mapping[str, Any]) -> NodeSelectorTerm:
    expressions = tuple((str(each.get("key")), _requirement(each)) for each in _objects(term, "matchExpressions"))
    return NodeSelectorTerm(expressions, tuple(map(_name, _objects(term, "matchFields"))))


def _name(field: Mapping[str, Any]) -> tuple[bool, str]:
    """Read a matchFields requirement: metadata.name In or NotIn one name (validated so by the API server)."""
    return field.get("operator") == "In", next(iter(_values(field)), "")


def _values(said: Mapping[str, Any]) -> tuple[str, ...]:
    found = said.get("values")
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _requirement(said: Mapping[str, Any]) -> Requirement | None:
    try:
        return requirement(str(said.get("key")), str(said.get("operator")), _values(said))
    except BadInput:
        return None


Check = Callable[[PodConstraints, Node, Mapping[str, int]], Iterator[InTreeRefusal]]


def requested_node(pod: PodConstraints, node: Node, _used: Mapping[str, int]) -> Iterator[InTreeRefusal]:
    """NodeName."""
    if pod.node_name and pod.node_name != node.name:
        yield WRONG_NAME


def schedulable(pod: PodConstraints, node: Node, _used: Mapping[str, int]) -> Iterator[InTreeRefusal]:
    """NodeUnschedulable."""
    if node.unschedulable and not any(tolerates(each, UNSCHEDULABLE_TAINT) for each in pod.tolerations):
        yield CORDONED


def taints_tolerated(pod: PodConstraints, node: Node, _used: Mapping[str, int]) -> Iterator[InTreeRefusal]:
    """TaintToleration; all taints that are not tolerated, where the plugin names the first. Cordoning has its own."""
    for key, value, effect in node.taints:
        if effect == "PreferNoSchedule" or key == UNSCHEDULABLE_TAINT["key"]:
            continue
        asked = {"key": key, "value": value, "effect": effect}
        if not any(tolerates(each, asked) for each in pod.tolerations):
            yield InTreeRefusal(InTreeCause.UntoleratedTaint, TAINTED, (key, value, effect))


def selected(pod: PodConstraints, node: Node, _used: Mapping[str, int]) -> Iterator[InTreeRefusal]:
    """NodeAffinity: nodeSelector, key by key, and the required terms, of which one is enough."""
    for key, value in pod.selector:
        if node.labels.get(key) != value:
            yield _unselected(key, value)
    if pod.terms is not None and not any(term.selects(node) for term in pod.terms):
        yield InTreeRefusal(InTreeCause.NodeAffinityMismatch, UNSELECTED, ("affinity",))


@lru_cache(maxsize=4 * MOST_CONSTRAINTS)
def _unselected(key: str, value: str) -> InTreeRefusal:
    """Make the cause of a nodeSelector's key once for all nodes."""
    return InTreeRefusal(InTreeCause.NodeAffinityMismatch, UNSELECTED, ("nodeSelector", key, value))


def resources_left(pod: PodConstraints, node: Node, used: Mapping[str, int]) -> Iterator[InTreeRefusal]:
    """NodeResourcesFit."""
    amounts = amounts_of(node.allocatable)
    if PODS in amounts and used.get(PODS, 0) + 1 > amounts[PODS]:
        yield FULL
    for resource, wanted in pod.requests:
        if wanted > amounts.get(resource, 0) - used.get(resource, 0):
            yield InTreeRefusal(InTreeCause.InsufficientResource, f"Insufficient {resource}", (resource,))


def volumes_reachable(pod: PodConstraints, node: Node, _used: Mapping[str, int]) -> Iterator[InTreeRefusal]:
    """VolumeBinding: the node affinity of the volumes that the pod's claims are bound to."""
    if any(not any(term.selects(node) for term in terms) for terms in pod.volumes):
        yield UNREACHABLE


TAINTED = "node(s) had untolerated taint(s)"
UNSELECTED = "node(s) didn't match Pod's node affinity/selector"
WRONG_NAME = InTreeRefusal(InTreeCause.NodeNameMismatch, "node(s) didn't match the requested node name")
CORDONED = InTreeRefusal(InTreeCause.NodeUnschedulable, "node(s) were unschedulable")
FULL = InTreeRefusal(InTreeCause.TooManyPods, "Too many pods")
UNREACHABLE = InTreeRefusal(
    InTreeCause.VolumeNodeAffinityConflict, "node(s) didn't match PersistentVolume's node affinity"
)

CHECKS: tuple[Check, ...] = (
    schedulable,
    requested_node,
    taints_tolerated,
    selected,
    resources_left,
    volumes_reachable,
)
"""In kube-scheduler's order of Filter plugins as far as they are here (apis/config/v1/default_plugins.go)."""


def refusals(pod: PodConstraints, node: Node, used: Mapping[str, int]) -> tuple[InTreeRefusal, ...]:
    """List all causes for which kube-scheduler would refuse the node. `used`: what pods there have booked."""
    return tuple(found for check in CHECKS for found in check(pod, node, used))


def gated(pod: PodConstraints) -> InTreeRefusal | None:
    """Say that the pod is not to be scheduled yet (SchedulingGates); None if it is."""
    if not pod.gates:
        return None
    return InTreeRefusal(
        InTreeCause.SchedulingGated, f"waiting for scheduling gates: [{' '.join(pod.gates)}]", pod.gates
    )


def unjudged(claims: bool, pod: PodAmongOthers | None) -> Iterator[str]:
    """Name what a pod asks that only kube-scheduler can tell. `claims`: devices by DRA, which that alone gives out.

    `pod`: what depends on other pods, for who does not know them; None for who does.
    """
    asked = {
        "resourceClaims": claims,
        "podAffinity": pod and pod.attracted,
        "podAntiAffinity": pod and pod.repels,
        "topologySpreadConstraints": pod and pod.spread,
        "hostPort": pod and pod.ports,
    }
    return (name for name, said in asked.items() if said)
