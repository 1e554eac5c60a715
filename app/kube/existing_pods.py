# SPDX-License-Identifier: Apache-2.0
"""Pods that have a node, with what kube-scheduler reads of them when it places another pod: labels, host ports and
anti-affinity; and the inter-pod constraints of the pod that is to be placed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.kube.node_selectors import MatchExpression
from app.kube.pod_limits import check_constraints
from app.kube.pod_object import (
    ObjectSelector,
    PodAffinity,
    PodAffinityTerm,
    PodMetadata,
    PodObject,
    PodSpec,
    PodStatus,
    pod_object,
)
from app.values.errors import BadInput
from app.values.label_requirements import Requirement

LabelsOfPod = Mapping[str, str]
NamespaceLabels = Callable[[str], LabelsOfPod]
Port = tuple[str, str, int]
"""(address, protocol, host port number); the address 0.0.0.0 stands for every address of the node."""
EVERY_ADDRESS = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class PodLabelSelector:
    """A label selector. All `requirements` must hold; None means an absent or invalid selector, which matches none."""

    requirements: tuple[Requirement, ...] | None

    def matches(self, labels: LabelsOfPod) -> bool:
        """Tell whether labels match; an empty selector matches all (apimachinery LabelSelectorAsSelector)."""
        return self.requirements is not None and all(rule.allows(labels.get(rule.key)) for rule in self.requirements)


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """A required term of pod affinity or anti-affinity, for pods of `namespaces` or of selected namespaces."""

    topology_key: str
    selector: PodLabelSelector
    namespaces: frozenset[str]
    namespace_selector: PodLabelSelector

    def matches(self, namespace: str, labels: LabelsOfPod, namespace_labels: NamespaceLabels) -> bool:
        """Tell whether the term matches a pod (framework/types.go AffinityTerm.Matches)."""
        if not self.selector.matches(labels):
            return False
        return namespace in self.namespaces or (
            self.namespace_selector.requirements is not None
            and self.namespace_selector.matches(namespace_labels(namespace))
        )


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """A topology spread constraint with whenUnsatisfiable DoNotSchedule (core/v1 TopologySpreadConstraint).

    `index` is its position in the spec. `max_skew` is by how many more pods a domain may have than the one with the
    fewest. If fewer than `min_domains` domains exist, the fewest count as 0; 1 where the pod does not set it.
    `honors_affinity` says that only nodes which the pod's node affinity and selector allow count (nodeAffinityPolicy
    Honor, the default), and `honors_taints` the same of nodes whose taints it tolerates (nodeTaintsPolicy Honor; the
    default is Ignore).
    """

    index: int
    topology_key: str
    max_skew: int
    min_domains: int
    selector: PodLabelSelector
    honors_affinity: bool
    honors_taints: bool

    def counts(self, labels: LabelsOfPod) -> bool:
        """Tell whether a pod is counted; an empty selector counts none (common.go countPodsMatchSelector)."""
        return bool(self.selector.requirements) and self.selector.matches(labels)


@dataclass(frozen=True, slots=True)
class PodAmongOthers:
    """A pod among others: its labels and ports, and the constraints that it sets on other pods.

    `affinity` and `anti_affinity` are its required terms, `spread` its required topology spread constraints.
    """

    namespace: str
    labels: LabelsOfPod
    ports: tuple[Port, ...] = ()
    affinity: tuple[AffinityTerm, ...] = ()
    anti_affinity: tuple[AffinityTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()


@dataclass(frozen=True, slots=True)
class ExistingPod:
    """A pod on a node. `terminating` is true while it is being deleted; such a pod no longer counts for spread.

    `state` says why it makes no progress, empty where nothing says so. `deployment` is the name of its Deployment.
    """

    name: str
    node: str
    pod: PodAmongOthers
    terminating: bool
    state: str = ""
    deployment: str = ""


ExistingPods = tuple[ExistingPod, ...]


def existing_pods_of(documents: Iterable[Mapping[str, Any]]) -> ExistingPods:
    """Read the pods that have a node and are not finished, from objects as the API server returns them."""
    pods = map(pod_object, documents)
    return tuple(_existing_pod(pod) for pod in pods if pod.spec.node_name and not pod.finished)


def _existing_pod(pod: PodObject) -> ExistingPod:
    labels, affinity = pod.metadata.labels or {}, pod.spec.affinity.pod_anti_affinity
    among = PodAmongOthers(pod.namespace, labels, _ports(pod.spec), anti_affinity=_terms(affinity, pod))
    terminating = bool(pod.metadata.deletion_timestamp)
    state = "being deleted" if terminating else _crashing(pod.status)
    return ExistingPod(pod.key, pod.spec.node_name, among, terminating, state, deployment_of(pod.metadata))


def _crashing(status: PodStatus) -> str:
    """Say that a container of a pod is restarted again and again; empty where none is."""
    for container in status.container_statuses:
        waiting = container.state.waiting if container.state else None
        if waiting and waiting.reason == "CrashLoopBackOff":
            return f"in CrashLoopBackOff, {container.restart_count or 0} restarts"
    return ""


def deployment_of(metadata: PodMetadata) -> str:
    """Name the Deployment of a pod by its ReplicaSet, whose name ends with the hash of the template; empty if none."""
    template = (metadata.labels or {}).get("pod-template-hash")
    for owner in metadata.owner_references:
        name = owner.name or ""
        if owner.kind == "Deployment" or (template and name.endswith(f"-{template}")):
            return name.removesuffix(f"-{template}")
    return ""


def read_pod_among_others(pod: PodObject) -> PodAmongOthers:
    """Read the inter-pod constraints of a Pod.

    Raises OversizedPod where it has more than kube.pod_limits allows.
    """
    affinity = pod.spec.affinity
    among = PodAmongOthers(
        pod.namespace,
        pod.metadata.labels or {},
        _ports(pod.spec),
        _terms(affinity.pod_affinity, pod),
        _terms(affinity.pod_anti_affinity, pod),
        tuple(_constraints(pod)),
    )
    check_constraints(len(among.ports), "spec: host ports")
    check_constraints(len(among.affinity), "spec.affinity.podAffinity")
    check_constraints(len(among.anti_affinity), "spec.affinity.podAntiAffinity")
    check_constraints(len(among.spread), "spec.topologySpreadConstraints")
    return among


def _ports(spec: PodSpec) -> tuple[Port, ...]:
    """List the host ports of containers and sidecars (kube-scheduler util.GetHostPorts)."""
    return tuple(
        (port.host_ip or EVERY_ADDRESS, port.protocol or "TCP", port.host_port)
        for container in (*spec.containers, *(one for one in spec.init_containers if one.sidecar))
        for port in container.ports or ()
        if port.host_port and port.host_port > 0
    )


def _terms(affinity: PodAffinity, pod: PodObject) -> tuple[AffinityTerm, ...]:
    return tuple(_term(term, pod.namespace, pod.metadata.labels or {}) for term in affinity.required)


def _term(term: PodAffinityTerm, namespace: str, labels: LabelsOfPod) -> AffinityTerm:
    """Read a term; without namespaces it means the pod's own namespace (framework/types.go)."""
    named, selected = term.namespaces or (), term.namespace_selector
    own = (namespace,) if not named and selected is None else ()
    selector = _selector(
        term.label_selector,
        *_own_labels(term.match_label_keys, "In", labels),
        *_own_labels(term.mismatch_label_keys, "NotIn", labels),
    )
    return AffinityTerm(str(term.topology_key), selector, frozenset((*named, *own)), _selector(selected))


def _constraints(pod: PodObject) -> Iterator[SpreadConstraint]:
    labels = pod.metadata.labels or {}
    for index, constraint in enumerate(pod.spec.topology_spread_constraints):
        if constraint.when_unsatisfiable == "DoNotSchedule":
            yield SpreadConstraint(
                index,
                str(constraint.topology_key),
                constraint.max_skew or 1,
                constraint.min_domains or 1,
                _selector(constraint.label_selector, *_own_labels(constraint.match_label_keys, "In", labels)),
                constraint.node_affinity_policy != "Ignore",
                constraint.node_taints_policy == "Honor",
            )


def _own_labels(keys: Iterable[str] | None, operator: str, labels: LabelsOfPod) -> Iterator[MatchExpression]:
    """Write requirements for keys from the pod's own labels, as the API server does."""
    return (MatchExpression(key, operator, (labels[key],)) for key in keys or () if key in labels)


def _selector(selector: ObjectSelector | None, *more: MatchExpression) -> PodLabelSelector:
    if selector is None:
        return PodLabelSelector(None)
    equal = (MatchExpression(key, "In", (value,)) for key, value in (selector.match_labels or {}).items())
    expressions = (*equal, *(selector.match_expressions or ()), *more)
    try:
        return PodLabelSelector(tuple(expression.requirement() for expression in expressions))
    except BadInput:
        return PodLabelSelector(None)
