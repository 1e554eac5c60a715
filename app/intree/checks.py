# SPDX-License-Identifier: Apache-2.0
"""kube-scheduler's own reasons to refuse a node, in its own words, so that an explanation is complete.

The messages and their order are those of kube-scheduler v1.36 (pkg/scheduler/framework/plugins). An InTreeCause has a
stage of the funnel and a remedy. Each plugin has one function; CHECKS, at the end, lists those that look at one node.
Constraints between pods are in inter_pod_constraints.py; where the other pods are not known, `unjudged_constraints`
names these constraints.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from app.knowledge.gpu_resources import TaintMeaning, meaning_of_taint
from app.kube.existing_pods import PodAmongOthers
from app.kube.node_selectors import NodeSelectorTerm, read_terms
from app.kube.pod_limits import MOST_CONSTRAINTS, check_constraints
from app.kube.pod_object import PodObject, PodSpec, Toleration
from app.kube.pod_requests import PODS, Amounts, read_amounts, sum_pod_requests
from app.kube.pods import toleration_covers
from app.nodes.model import Node
from app.values.label_requirements import match_expression
from app.values.reasons import FunnelStage


class InTreeCause(Enum):
    """A cause for which kube-scheduler itself refuses a node; the value is (stage, whether it may pass, remedy)."""

    NodeUnschedulable = FunnelStage.Selectors, True, "uncordon the node, or add nodes"
    UntoleratedTaint = FunnelStage.Selectors, False, "add the toleration, if the node is meant for this pod"
    NodeAffinityMismatch = FunnelStage.Selectors, False, "change nodeSelector or node affinity, or label nodes to match"
    NodeNameMismatch = FunnelStage.Selectors, False, "remove spec.nodeName: it bypasses scheduling"
    InsufficientResource = FunnelStage.Resources, True, "request less, or wait for pods to end, or add nodes"
    TooManyPods = FunnelStage.Resources, True, "wait for pods to end, or add nodes"
    VolumeNodeAffinityConflict = (
        FunnelStage.Volumes,
        False,
        "use a volume of another zone, or a StorageClass with WaitForFirstConsumer",
    )
    HostPortTaken = (
        FunnelStage.OtherPods,
        True,
        "use another hostPort or none, or wait for the pod that has it to end, or add nodes",
    )
    PodAffinityMismatch = (
        FunnelStage.OtherPods,
        False,
        "start the pods that its pod affinity selects first, or change its pod affinity",
    )
    PodAntiAffinityConflict = (
        FunnelStage.OtherPods,
        True,
        "make its pod anti-affinity preferred, or wait for those pods to end, or add nodes",
    )
    ExistingPodAntiAffinity = (
        FunnelStage.OtherPods,
        True,
        "the anti-affinity of running pods excludes it: change that, or its labels",
    )
    TopologySpreadConflict = (
        FunnelStage.OtherPods,
        False,
        "raise maxSkew, or say whenUnsatisfiable: ScheduleAnyway, or make room in other domains",
    )
    DevicesNotSuitable = FunnelStage.Claims, False, "change the claim's requests, or add nodes with such devices"
    DevicesInUse = FunnelStage.Claims, True, "wait for pods to end, or ask for fewer devices, or add nodes"
    ClaimNotUsable = (
        FunnelStage.Claims,
        False,
        "correct the claim or its DeviceClass: until then kube-scheduler cannot place the pod",
    )
    RefusedByAPIServer = (
        FunnelStage.Admission,
        False,
        "no pod is created until the pod, or what it is refused for, is changed",
    )
    SchedulingGated = (
        FunnelStage.Admission,
        False,
        "the controller that set the gate must remove it: see spec.schedulingGates",
    )

    @property
    def stage(self) -> FunnelStage:
        """The stage of the funnel at which a node falls out."""
        return self.value[0]

    @property
    def transient(self) -> bool:
        """Whether it may pass while the pod and the node stay as they are."""
        return self.value[1]

    @property
    def remedy(self) -> str:
        """The one action that would remove the cause."""
        return self.value[2]


@dataclass(frozen=True, slots=True)
class InTreeRefusal:
    """A refusal by kube-scheduler. `message` is its own text; `about` names the taint, label or resource.

    `meaning` is that of a taint which no pod is to tolerate; None for other taints and causes.
    """

    cause: InTreeCause
    message: str
    about: tuple[str, ...] = ()
    meaning: TaintMeaning | None = None

    @property
    def remedy(self) -> str:
        """The one action that would remove the cause."""
        return self.meaning.remedy if self.meaning else self.cause.remedy

    @property
    def transient(self) -> bool:
        """Whether it may pass while the pod and the node stay as they are."""
        return self.meaning.passes if self.meaning else self.cause.transient


UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
"""core/v1 TaintNodeUnschedulable: a pod that tolerates this taint may run on cordoned nodes (node_unschedulable.go)."""


@dataclass(frozen=True, slots=True)
class PodConstraints:
    """What kube-scheduler reads of a pod to judge one node.

    `selector` is the nodeSelector. `terms` are the required node affinity terms, or None where there is none.
    `requests` are the resource requests without GPUs, which gpu-usher's filters count. `gates` are scheduling gates.
    `volumes` are claims with the node affinity terms of their volumes. `served` are the extended resources that a
    DeviceClass serves: a node that has none of one in allocatable is judged by its devices (fit.go
    shouldDelegateResourceToDRA).
    `taints` say what taints mean that no pod is to tolerate.
    """

    tolerations: tuple[Toleration, ...]
    selector: tuple[tuple[str, str], ...]
    terms: tuple[NodeSelectorTerm, ...] | None
    node_name: str
    requests: Amounts
    gates: tuple[str, ...]
    volumes: tuple[tuple[str, tuple[NodeSelectorTerm, ...]], ...] = ()
    served: frozenset[str] = frozenset()
    taints: tuple[TaintMeaning, ...] = ()


def read_pod_constraints(
    pod: PodObject,
    counted: Callable[[str], object],
    volumes: Mapping[str, tuple[NodeSelectorTerm, ...]] | None = None,
) -> PodConstraints:
    """Read the node constraints of a Pod.

    `counted` is true of resources that gpu-usher counts itself. `volumes` are the node affinity terms of bound
    volumes, by "namespace/name" of the PersistentVolumeClaim.

    Raises OversizedPod.
    """
    spec, required = pod.spec, pod.spec.affinity.node_affinity.required
    volume_terms = (volumes or {}).get
    selector, terms = spec.node_selector or {}, None if required is None else read_terms(required)
    check_constraints(len(selector), "spec.nodeSelector")
    check_constraints(len(terms or ()), "spec.affinity.nodeAffinity")
    return PodConstraints(
        tolerations=spec.tolerations,
        selector=tuple(sorted(selector.items())),
        terms=terms,
        node_name=spec.node_name,
        requests=tuple(amount for amount in sum_pod_requests(spec) if not counted(amount[0])),
        gates=tuple(str(gate.name) for gate in spec.scheduling_gates),
        volumes=tuple(
            (claim, terms) for claim in claims_of(spec) if (terms := volume_terms(f"{pod.namespace}/{claim}"))
        ),
    )


def claims_of(spec: PodSpec) -> Iterator[str]:
    """List the names of the PersistentVolumeClaims that a pod mounts."""
    for volume in spec.volumes:
        if volume.persistent_volume_claim and volume.persistent_volume_claim.claim_name is not None:
            yield volume.persistent_volume_claim.claim_name


InTreeCheck = Callable[[PodConstraints, Node, Mapping[str, int]], Iterator[InTreeRefusal]]


def requested_node(pod: PodConstraints, node: Node, _used: Mapping[str, int]) -> Iterator[InTreeRefusal]:
    """Check the plugin NodeName."""
    if pod.node_name and pod.node_name != node.name:
        yield WRONG_NAME


def schedulable(pod: PodConstraints, node: Node, _used: Mapping[str, int]) -> Iterator[InTreeRefusal]:
    """Check the plugin NodeUnschedulable."""
    if node.unschedulable and not any(
        toleration_covers(toleration, UNSCHEDULABLE_TAINT) for toleration in pod.tolerations
    ):
        yield CORDONED


def taints_tolerated(pod: PodConstraints, node: Node, _used: Mapping[str, int]) -> Iterator[InTreeRefusal]:
    """Check the plugin TaintToleration; it reports the first untolerated taint, this check all but the cordon's."""
    for key, value, effect in node.taints:
        if effect == "PreferNoSchedule" or key == UNSCHEDULABLE_TAINT["key"]:
            continue
        taint = {"key": key, "value": value, "effect": effect}
        if not any(toleration_covers(toleration, taint) for toleration in pod.tolerations):
            meaning = meaning_of_taint(key, pod.taints)
            yield InTreeRefusal(InTreeCause.UntoleratedTaint, TAINTED, (key, value, effect), meaning)


def node_affinity_matches(pod: PodConstraints, node: Node, _used: Mapping[str, int]) -> Iterator[InTreeRefusal]:
    """Check the plugin NodeAffinity: each key of nodeSelector, and the required terms, of which one must match."""
    for key, value in pod.selector:
        if node.labels.get(key) != value:
            yield _unselected(key, value)
    if pod.terms is not None and not any(term.selects(node) for term in pod.terms):
        yield InTreeRefusal(InTreeCause.NodeAffinityMismatch, UNSELECTED, ("affinity", *_unmet(pod.terms, node)))


def _unmet(terms: tuple[NodeSelectorTerm, ...], node: Node) -> Iterator[str]:
    """Write the first expression that a node does not fulfil, where there is one term alone."""
    for key, rule in terms[0].expressions if len(terms) == 1 else ():
        if rule is not None and not rule.allows(node.labels.get(key)):
            written = match_expression(rule)
            operator, values = written["operator"], written.get("values", [])
            if rule.greater_than is not None or rule.less_than is not None:
                operator = "Lt" if rule.greater_than is None else "Gt"
                values = [str(rule.less_than if rule.greater_than is None else rule.greater_than)]
            listed = ", ".join(values[:MOST_VALUES]) + ", …" * (len(values) > MOST_VALUES)
            yield f"{key} {operator} {listed}".rstrip()
            return


MOST_VALUES = 3
"""Values of an expression that a refusal names."""


@lru_cache(maxsize=4 * MOST_CONSTRAINTS)
def _unselected(key: str, value: str) -> InTreeRefusal:
    """Build the refusal for a key of nodeSelector, once for all nodes."""
    return InTreeRefusal(InTreeCause.NodeAffinityMismatch, UNSELECTED, ("nodeSelector", key, value))


def resources_left(pod: PodConstraints, node: Node, used: Mapping[str, int]) -> Iterator[InTreeRefusal]:
    """Check the plugin NodeResourcesFit."""
    amounts = read_amounts(node.allocatable)
    if PODS in amounts and used.get(PODS, 0) + 1 > amounts[PODS]:
        yield FULL
    for resource, amount in pod.requests:
        if resource in pod.served and not amounts.get(resource):
            continue
        if amount > amounts.get(resource, 0) - used.get(resource, 0):
            yield InTreeRefusal(InTreeCause.InsufficientResource, f"Insufficient {resource}", (resource,))


def volumes_reachable(pod: PodConstraints, node: Node, _used: Mapping[str, int]) -> Iterator[InTreeRefusal]:
    """Check the plugin VolumeBinding: the node affinity of the volumes that the pod's claims are bound to."""
    for claim, terms in pod.volumes:
        if not any(term.selects(node) for term in terms):
            wants = "".join(f", whose volume wants {unmet}" for unmet in _unmet(terms, node))
            yield InTreeRefusal(InTreeCause.VolumeNodeAffinityConflict, UNREACHABLE, (f"claim {claim}{wants}",))
            return


TAINTED = "node(s) had untolerated taint(s)"
UNSELECTED = "node(s) didn't match Pod's node affinity/selector"
WRONG_NAME = InTreeRefusal(InTreeCause.NodeNameMismatch, "node(s) didn't match the requested node name")
CORDONED = InTreeRefusal(InTreeCause.NodeUnschedulable, "node(s) were unschedulable")
FULL = InTreeRefusal(InTreeCause.TooManyPods, "Too many pods")
UNREACHABLE = "node(s) didn't match PersistentVolume's node affinity"

CHECKS: tuple[InTreeCheck, ...] = (
    schedulable,
    requested_node,
    taints_tolerated,
    node_affinity_matches,
    resources_left,
    volumes_reachable,
)
"""In the order of kube-scheduler's Filter plugins, as far as they are mirrored (apis/config/v1/default_plugins.go)."""


def in_tree_refusals(pod: PodConstraints, node: Node, used: Mapping[str, int]) -> tuple[InTreeRefusal, ...]:
    """List all causes for which kube-scheduler would refuse the node. `used` are the requests of pods on the node."""
    return tuple(refusal for check in CHECKS for refusal in check(pod, node, used))


def scheduling_gate_refusal(pod: PodConstraints) -> InTreeRefusal | None:
    """Return the refusal of a pod with scheduling gates (plugin SchedulingGates); None if it has none."""
    if not pod.gates:
        return None
    return InTreeRefusal(
        InTreeCause.SchedulingGated, f"waiting for scheduling gates: [{' '.join(pod.gates)}]", pod.gates
    )


def unjudged_constraints(claims: bool, pod: PodAmongOthers | None) -> Iterator[str]:
    """Name the constraints of a pod that only kube-scheduler can judge.

    `claims` is true where the pod claims devices by DRA, which kube-scheduler itself allocates. `pod` are the pod's
    constraints on other pods where those are not known, else None.
    """
    constraints = {
        "resourceClaims": claims,
        "podAffinity": pod and pod.affinity,
        "podAntiAffinity": pod and pod.anti_affinity,
        "topologySpreadConstraints": pod and pod.spread,
        "hostPort": pod and pod.ports,
    }
    return (name for name, present in constraints.items() if present)
