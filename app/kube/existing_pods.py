# SPDX-License-Identifier: Apache-2.0
"""Pods that have a node, with what kube-scheduler reads of them when it places another pod: labels, host ports and
anti-affinity; and the inter-pod constraints of the pod that is to be placed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.kube.gpu_usage import FINISHED
from app.kube.pod_limits import check_constraints
from app.values.errors import BadInput
from app.values.json_members import object_if_any, objects_if_any
from app.values.label_requirements import Requirement, label_requirement

REQUIRED_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"
LabelsOfPod = Mapping[str, str]
NamespaceLabels = Callable[[str], LabelsOfPod]
Port = tuple[str, str, int]
"""(address, protocol, host port number); the address 0.0.0.0 stands for every address of the node."""
EVERY_ADDRESS = "0.0.0.0"
NONE: Mapping[str, Any] = {}


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


def existing_pods_of(pods: Iterable[Mapping[str, Any]]) -> ExistingPods:
    """Read the pods that have a node and are not finished, from objects as the API server returns them."""
    return tuple(filter(None, map(_existing_pod, pods)))


def _existing_pod(document: Mapping[str, Any]) -> ExistingPod | None:
    metadata, spec = document.get("metadata") or NONE, document.get("spec") or NONE
    node = spec.get("nodeName")
    if not node or (document.get("status") or NONE).get("phase") in FINISHED:
        return None
    namespace = metadata.get("namespace") or "default"
    labels = metadata.get("labels") or NONE
    terms = _terms(spec, "podAntiAffinity", namespace, labels)
    pod = PodAmongOthers(namespace, labels, _ports(spec), anti_affinity=terms)
    terminating = bool(metadata.get("deletionTimestamp"))
    state = "being deleted" if terminating else _crashing(document)
    return ExistingPod(f"{namespace}/{metadata.get('name')}", node, pod, terminating, state, deployment_of(document))


def _crashing(document: Mapping[str, Any]) -> str:
    """Say that a container of a pod is restarted again and again; empty where none is."""
    for container in objects_if_any(object_if_any(document, "status"), "containerStatuses"):
        waiting = object_if_any(object_if_any(container, "state"), "waiting")
        if waiting.get("reason") == "CrashLoopBackOff":
            return f"in CrashLoopBackOff, {container.get('restartCount') or 0} restarts"
    return ""


def deployment_of(document: Mapping[str, Any]) -> str:
    """Name the Deployment of a pod by its ReplicaSet, whose name ends with the hash of the template; empty if none."""
    metadata = object_if_any(document, "metadata")
    template = object_if_any(metadata, "labels").get("pod-template-hash")
    for owner in objects_if_any(metadata, "ownerReferences"):
        name = str(owner.get("name"))
        if owner.get("kind") == "Deployment" or (template and name.endswith(f"-{template}")):
            return name.removesuffix(f"-{template}")
    return ""


def read_pod_among_others(document: Mapping[str, Any]) -> PodAmongOthers:
    """Read the inter-pod constraints of a Pod that `read_pod` has accepted.

    Raises OversizedPod where it has more than kube.pod_limits allows.
    """
    metadata, spec = document.get("metadata") or NONE, document.get("spec") or NONE
    namespace, labels = metadata.get("namespace") or "default", metadata.get("labels") or NONE
    pod = PodAmongOthers(
        namespace,
        labels,
        _ports(spec),
        _terms(spec, "podAffinity", namespace, labels),
        _terms(spec, "podAntiAffinity", namespace, labels),
        tuple(_constraints(spec, labels)),
    )
    check_constraints(len(pod.ports), "spec: host ports")
    check_constraints(len(pod.affinity), "spec.affinity.podAffinity")
    check_constraints(len(pod.anti_affinity), "spec.affinity.podAntiAffinity")
    check_constraints(len(pod.spread), "spec.topologySpreadConstraints")
    return pod


def _ports(spec: Mapping[str, Any]) -> tuple[Port, ...]:
    """List the host ports of containers and sidecars (kube-scheduler util.GetHostPorts)."""
    sidecars = (
        container for container in objects_if_any(spec, "initContainers") if container.get("restartPolicy") == "Always"
    )
    return tuple(
        (port.get("hostIP") or EVERY_ADDRESS, port.get("protocol") or "TCP", port["hostPort"])
        for container in (*objects_if_any(spec, "containers"), *sidecars)
        for port in objects_if_any(container, "ports")
        if isinstance(port.get("hostPort"), int) and port["hostPort"] > 0
    )


def _terms(spec: Mapping[str, Any], kind: str, namespace: str, labels: LabelsOfPod) -> tuple[AffinityTerm, ...]:
    affinity = spec.get("affinity")
    if not isinstance(affinity, dict) or not isinstance(terms := affinity.get(kind), dict):
        return ()
    return tuple(_term(term, namespace, labels) for term in objects_if_any(terms, REQUIRED_TERMS))


def _term(term: Mapping[str, Any], namespace: str, labels: LabelsOfPod) -> AffinityTerm:
    """Read a term; without namespaces it means the pod's own namespace (framework/types.go)."""
    named, selected = term.get("namespaces") or (), term.get("namespaceSelector")
    own = (namespace,) if not named and selected is None else ()
    selector = _selector(
        term.get("labelSelector"),
        *_own_labels(term, "matchLabelKeys", "In", labels),
        *_own_labels(term, "mismatchLabelKeys", "NotIn", labels),
    )
    return AffinityTerm(str(term.get("topologyKey")), selector, frozenset((*named, *own)), _selector(selected))


def _constraints(spec: Mapping[str, Any], labels: LabelsOfPod) -> Iterator[SpreadConstraint]:
    for index, constraint in enumerate(objects_if_any(spec, "topologySpreadConstraints")):
        if constraint.get("whenUnsatisfiable") != "DoNotSchedule":
            continue
        yield SpreadConstraint(
            index,
            str(constraint.get("topologyKey")),
            int(constraint.get("maxSkew") or 1),
            int(constraint.get("minDomains") or 1),
            _selector(constraint.get("labelSelector"), *_own_labels(constraint, "matchLabelKeys", "In", labels)),
            constraint.get("nodeAffinityPolicy") != "Ignore",
            constraint.get("nodeTaintsPolicy") == "Honor",
        )


def _own_labels(
    parent: Mapping[str, Any], field: str, operator: str, labels: LabelsOfPod
) -> Iterator[Mapping[str, Any]]:
    """Write requirements for keys from the pod's own labels, as the API server does."""
    for key in parent.get(field) or ():
        if key in labels:
            yield {"key": key, "operator": operator, "values": [labels[key]]}


def _selector(selector: object, *more: Mapping[str, Any]) -> PodLabelSelector:
    if not isinstance(selector, dict):
        return PodLabelSelector(None)
    equal = (
        {"key": key, "operator": "In", "values": [value]} for key, value in (selector.get("matchLabels") or {}).items()
    )
    try:
        return PodLabelSelector(
            tuple(map(_requirement, (*equal, *objects_if_any(selector, "matchExpressions"), *more)))
        )
    except BadInput:
        return PodLabelSelector(None)


def _requirement(expression: Mapping[str, Any]) -> Requirement:
    return label_requirement(
        str(expression.get("key")), str(expression.get("operator")), tuple(map(str, expression.get("values") or ()))
    )
