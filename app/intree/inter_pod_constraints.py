# SPDX-License-Identifier: Apache-2.0
"""How existing pods restrict another pod: host ports, pod affinity and anti-affinity, topology spread.

The rules are those of kube-scheduler v1.36 (plugins nodeports, interpodaffinity/filtering.go,
podtopologyspread/filtering.go). Everything is counted once per pod; each node then costs a few look-ups.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.intree.checks import InTreeCause, InTreeRefusal, PodConstraints, node_affinity_matches
from app.kube.existing_pods import (
    EVERY_ADDRESS,
    AffinityTerm,
    ExistingPod,
    ExistingPods,
    NamespaceLabels,
    PodAmongOthers,
    Port,
    SpreadConstraint,
)
from app.kube.pods import toleration_covers
from app.nodes.model import Node

PORT_TAKEN = "node(s) didn't have free ports for the requested pod ports"
POD_AFFINITY_MISMATCH = "node(s) didn't match pod affinity rules"
POD_ANTI_AFFINITY_CONFLICT = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"
SPREAD_CONFLICT = "node(s) didn't match pod topology spread constraints"
SPREAD_LABEL_MISSING = f"{SPREAD_CONFLICT} (missing required label)"
Domain = tuple[str, str]
"""A topology domain: (topology key, label value)."""


@dataclass(frozen=True, slots=True)
class SpreadCounts:
    """A spread constraint with the pods that it counts.

    `pods` is their number in each domain, by label value. `fewest` is the lowest of these numbers, or 0 where there
    are fewer domains than minDomains. `counts_itself` is true where the constraint's selector matches the pod itself.
    """

    constraint: SpreadConstraint
    pods: Mapping[str, int]
    fewest: int
    counts_itself: bool


@dataclass(frozen=True, slots=True)
class InterPodConstraints:
    """What existing pods mean to one pod that is to be scheduled.

    `ports` are the host ports in use, by node.
    `affinity_domains` are the domains of pods that match all the pod's affinity terms.
    `may_be_first` is true where no pod anywhere matches the affinity terms, but the pod itself does, so that the
    plugin lets it be the first of its group.
    `anti_affinity_domains` are the domains of pods that match one of its anti-affinity terms.
    `existing_domains` are the domains in which an existing pod's anti-affinity matches the pod, and `existing_keys`
    their topology keys in order.
    """

    pod: PodAmongOthers
    ports: Mapping[str, frozenset[Port]]
    affinity_domains: frozenset[Domain]
    may_be_first: bool
    anti_affinity_domains: frozenset[Domain]
    existing_domains: frozenset[Domain]
    existing_keys: tuple[str, ...]
    spread: tuple[SpreadCounts, ...]

    def refusals(self, node: Node) -> Iterator[InTreeRefusal]:
        """List the reasons against a node, in the order of kube-scheduler's plugins."""
        labels = node.labels
        yield from self._port_refusals(node)
        yield from self._spread_refusals(labels)
        for index, term in enumerate(self.pod.affinity):
            domain = labels.get(term.topology_key)
            if domain is None or not (self.may_be_first or (term.topology_key, domain) in self.affinity_domains):
                yield InTreeRefusal(
                    InTreeCause.PodAffinityMismatch, POD_AFFINITY_MISMATCH, (term.topology_key, str(index))
                )
        for index, term in enumerate(self.pod.anti_affinity):
            if (term.topology_key, labels.get(term.topology_key)) in self.anti_affinity_domains:
                yield InTreeRefusal(
                    InTreeCause.PodAntiAffinityConflict, POD_ANTI_AFFINITY_CONFLICT, (term.topology_key, str(index))
                )
        for key in self.existing_keys:
            if (key, labels.get(key)) in self.existing_domains:
                yield InTreeRefusal(InTreeCause.ExistingPodAntiAffinity, EXISTING_ANTI_AFFINITY, (key,))

    def _port_refusals(self, node: Node) -> Iterator[InTreeRefusal]:
        in_use = self.ports.get(node.name, frozenset())
        for port in self.pod.ports:  # as framework/types.go HostPortInfo.CheckConflict
            same = (other[0] for other in in_use if other[1:] == port[1:])
            if any(address == port[0] or EVERY_ADDRESS in (address, port[0]) for address in same):
                yield InTreeRefusal(InTreeCause.HostPortTaken, PORT_TAKEN, (str(port[2]), port[1]))

    def _spread_refusals(self, labels: Mapping[str, str]) -> Iterator[InTreeRefusal]:
        for spread in self.spread:
            about = (spread.constraint.topology_key, str(spread.constraint.index))
            domain = labels.get(spread.constraint.topology_key)
            if domain is None:
                yield InTreeRefusal(InTreeCause.TopologySpreadConflict, SPREAD_LABEL_MISSING, about)
            elif spread.pods.get(domain, 0) + spread.counts_itself - spread.fewest > spread.constraint.max_skew:
                yield InTreeRefusal(InTreeCause.TopologySpreadConflict, SPREAD_CONFLICT, about)


def inter_pod_constraints_of(
    pod: PodAmongOthers,
    pod_constraints: PodConstraints,
    existing_pods: ExistingPods,
    nodes: Mapping[str, Node],
    namespace_labels: NamespaceLabels,
) -> InterPodConstraints:
    """Count once for a pod what the existing pods mean to it on every node."""
    affinity_domains, anti_affinity_domains, existing_domains = set[Domain](), set[Domain](), set[Domain]()
    ports: dict[str, frozenset[Port]] = {}
    for existing in existing_pods:
        node, other = nodes.get(existing.node), existing.pod
        if node is None:
            continue
        if pod.ports and other.ports:
            ports[node.name] = ports.get(node.name, frozenset()) | frozenset(other.ports)
        if pod.affinity and _all_match(pod.affinity, other, namespace_labels):
            affinity_domains.update(_domains(node, pod.affinity))
        if pod.anti_affinity:
            anti_affinity_domains.update(_domains(node, _matching(pod.anti_affinity, other, namespace_labels)))
        if other.anti_affinity:
            existing_domains.update(_domains(node, _matching(other.anti_affinity, pod, namespace_labels)))
    return InterPodConstraints(
        pod,
        ports,
        frozenset(affinity_domains),
        not affinity_domains and _all_match(pod.affinity, pod, namespace_labels),
        frozenset(anti_affinity_domains),
        frozenset(existing_domains),
        tuple(sorted({key for key, _ in existing_domains})),
        tuple(_spread_counts(pod, pod_constraints, existing_pods, nodes)) if pod.spread else (),
    )


def _matching(
    terms: Iterable[AffinityTerm], pod: PodAmongOthers, namespace_labels: NamespaceLabels
) -> Iterator[AffinityTerm]:
    return (term for term in terms if term.matches(pod.namespace, pod.labels, namespace_labels))


def _all_match(terms: Sequence[AffinityTerm], pod: PodAmongOthers, namespace_labels: NamespaceLabels) -> bool:
    return len(list(_matching(terms, pod, namespace_labels))) == len(terms)


def _domains(node: Node, terms: Iterable[AffinityTerm]) -> Iterator[Domain]:
    for term in terms:
        if (domain := node.labels.get(term.topology_key)) is not None:
            yield term.topology_key, domain


def _spread_counts(
    pod: PodAmongOthers, pod_constraints: PodConstraints, existing_pods: ExistingPods, nodes: Mapping[str, Node]
) -> Iterator[SpreadCounts]:
    """Count each constraint's pods by domain: those of the pod's namespace that are not terminating."""
    keys = {constraint.topology_key for constraint in pod.spread}
    labelled = [node for node in nodes.values() if keys <= node.labels.keys()]
    pods_on = defaultdict[str, list[ExistingPod]](list)
    for existing in existing_pods:
        if existing.pod.namespace == pod.namespace and not existing.terminating:
            pods_on[existing.node].append(existing)
    for constraint in pod.spread:
        pods: dict[str, int] = {}
        for node in (node for node in labelled if _node_counts(constraint, pod_constraints, node)):
            domain = node.labels[constraint.topology_key]
            pods[domain] = pods.get(domain, 0) + sum(
                constraint.counts(existing.pod.labels) for existing in pods_on.get(node.name, ())
            )
        fewest = 0 if len(pods) < constraint.min_domains else min(pods.values(), default=0)
        yield SpreadCounts(constraint, pods, fewest, constraint.selector.matches(pod.labels))


def _node_counts(constraint: SpreadConstraint, pod_constraints: PodConstraints, node: Node) -> bool:
    """Tell whether a constraint counts the pods of a node (common.go matchNodeInclusionPolicies)."""
    if constraint.honors_affinity and any(node_affinity_matches(pod_constraints, node, {})):
        return False
    return not constraint.honors_taints or all(
        effect == "PreferNoSchedule"
        or any(
            toleration_covers(toleration, {"key": key, "value": value, "effect": effect})
            for toleration in pod_constraints.tolerations
        )
        for key, value, effect in node.taints
    )
