# SPDX-License-Identifier: Apache-2.0
"""The pods that have a node, as far as kube-scheduler looks at them when it places another: labels, ports, and whom
they repel; and what a pod asks of such company.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.kube.gpu_usage import FINISHED
from app.kube.pod_limits import check_constraints
from app.values.errors import BadInput
from app.values.label_requirements import Requirement, requirement

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
Labels = Mapping[str, str]
NamespaceLabels = Callable[[str], Labels]
Port = tuple[str, str, int]
"""(address, protocol, host port); address 0.0.0.0 is every one."""
EVERY_ADDRESS = "0.0.0.0"
NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class PodLabelSelector:
    """A selector over labels. `wanted`: all must hold; None: the selector is absent, or not valid, and matches none."""

    wanted: tuple[Requirement, ...] | None

    def matches(self, labels: Labels) -> bool:
        """Tell whether labels are selected; an empty selector takes all (apimachinery LabelSelectorAsSelector)."""
        return self.wanted is not None and all(each.allows(labels.get(each.key)) for each in self.wanted)


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """A required term of pod affinity or anti-affinity: pods of these namespaces, or of those selected by labels."""

    topology_key: str
    selector: PodLabelSelector
    namespaces: frozenset[str]
    of_namespaces: PodLabelSelector

    def matches(self, namespace: str, labels: Labels, namespace_labels: NamespaceLabels) -> bool:
        """Tell whether a pod is one of the term's (framework/types.go AffinityTerm.Matches)."""
        if not self.selector.matches(labels):
            return False
        return namespace in self.namespaces or (
            self.of_namespaces.wanted is not None and self.of_namespaces.matches(namespace_labels(namespace))
        )


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """A topology spread constraint that forbids (DoNotSchedule). `place`: its index in the spec."""

    place: int
    topology_key: str
    max_skew: int
    min_domains: int
    selector: PodLabelSelector
    honors_affinity: bool
    honors_taints: bool

    def counts(self, labels: Labels) -> bool:
        """Tell whether a pod on a node counts; an empty selector counts none (common.go countPodsMatchSelector)."""
        return bool(self.selector.wanted) and self.selector.matches(labels)


@dataclass(frozen=True, slots=True)
class PodAmongOthers:
    """A pod among others: what they see of it, and what it asks of them."""

    namespace: str
    labels: Labels
    ports: tuple[Port, ...] = ()
    attracted: tuple[AffinityTerm, ...] = ()
    repels: tuple[AffinityTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()


@dataclass(frozen=True, slots=True)
class ExistingPod:
    """A pod on a node. `going`: it is being deleted, and no longer counts for spread."""

    name: str
    node: str
    pod: PodAmongOthers
    going: bool


Neighbours = tuple[ExistingPod, ...]


def neighbours_of(pods: Iterable[Mapping[str, Any]]) -> Neighbours:
    """Read the pods that have a node and are not finished, of objects as the API server gives them."""
    return tuple(filter(None, map(_neighbour, pods)))


def _neighbour(document: Mapping[str, Any]) -> ExistingPod | None:
    metadata, spec = document.get("metadata") or NONE, document.get("spec") or NONE
    node = spec.get("nodeName")
    if not node or (document.get("status") or NONE).get("phase") in FINISHED:
        return None
    namespace = metadata.get("namespace") or "default"
    labels = metadata.get("labels") or NONE
    pod = PodAmongOthers(namespace, labels, _ports(spec), repels=_terms(spec, "podAntiAffinity", namespace, labels))
    return ExistingPod(f"{namespace}/{metadata.get('name')}", node, pod, bool(metadata.get("deletionTimestamp")))


def read_companion(document: Mapping[str, Any]) -> PodAmongOthers:
    """Read a Pod that `read_pod` has read before.

    Raises OversizedPod.
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
    check_constraints(len(pod.attracted), "spec.affinity.podAffinity")
    check_constraints(len(pod.repels), "spec.affinity.podAntiAffinity")
    check_constraints(len(pod.spread), "spec.topologySpreadConstraints")
    return pod


def _ports(spec: Mapping[str, Any]) -> tuple[Port, ...]:
    """List the host ports of containers and sidecars (scheduler util.GetHostPorts)."""
    sidecars = (each for each in _objects(spec, "initContainers") if each.get("restartPolicy") == "Always")
    return tuple(
        (port.get("hostIP") or EVERY_ADDRESS, port.get("protocol") or "TCP", port["hostPort"])
        for container in (*_objects(spec, "containers"), *sidecars)
        for port in _objects(container, "ports")
        if isinstance(port.get("hostPort"), int) and port["hostPort"] > 0
    )


def _terms(spec: Mapping[str, Any], kind: str, namespace: str, labels: Labels) -> tuple[AffinityTerm, ...]:
    affinity = spec.get("affinity")
    if not isinstance(affinity, dict) or not isinstance(said := affinity.get(kind), dict):
        return ()
    return tuple(_term(each, namespace, labels) for each in _objects(said, REQUIRED))


def _term(said: Mapping[str, Any], namespace: str, labels: Labels) -> AffinityTerm:
    """Read a term; one that names no namespaces means the pod's own (framework/types.go)."""
    named, selected = said.get("namespaces") or (), said.get("namespaceSelector")
    own = (namespace,) if not named and selected is None else ()
    selector = _selector(
        said.get("labelSelector"),
        *_own_labels(said, "matchLabelKeys", "In", labels),
        *_own_labels(said, "mismatchLabelKeys", "NotIn", labels),
    )
    return AffinityTerm(str(said.get("topologyKey")), selector, frozenset((*named, *own)), _selector(selected))


def _constraints(spec: Mapping[str, Any], labels: Labels) -> Iterator[SpreadConstraint]:
    for place, said in enumerate(_objects(spec, "topologySpreadConstraints")):
        if said.get("whenUnsatisfiable") != "DoNotSchedule":
            continue
        yield SpreadConstraint(
            place,
            str(said.get("topologyKey")),
            int(said.get("maxSkew") or 1),
            int(said.get("minDomains") or 1),
            _selector(said.get("labelSelector"), *_own_labels(said, "matchLabelKeys", "In", labels)),
            said.get("nodeAffinityPolicy") != "Ignore",
            said.get("nodeTaintsPolicy") == "Honor",
        )


def _own_labels(said: Mapping[str, Any], field: str, operator: str, labels: Labels) -> Iterator[Mapping[str, Any]]:
    """Turn keys into what the pod's own labels make of them, as the API server does (KEP-3633, KEP-3243)."""
    for key in said.get(field) or ():
        if key in labels:
            yield {"key": key, "operator": operator, "values": [labels[key]]}


def _selector(said: object, *more: Mapping[str, Any]) -> PodLabelSelector:
    if not isinstance(said, dict):
        return PodLabelSelector(None)
    equal = ({"key": key, "operator": "In", "values": [each]} for key, each in (said.get("matchLabels") or {}).items())
    try:
        return PodLabelSelector(tuple(map(_requirement, (*equal, *_objects(said, "matchExpressions"), *more))))
    except BadInput:
        return PodLabelSelector(None)


def _requirement(said: Mapping[str, Any]) -> Requirement:
    return requirement(str(said.get("key")), str(said.get("operator")), tuple(map(str, said.get("values") or ())))


def _objects(parent: Mapping[str, Any], key: str) -> Iterable[Mapping[str, Any]]:
    found = parent.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else ()
