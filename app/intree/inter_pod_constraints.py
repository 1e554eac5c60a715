# SPDX-License-Identifier: Apache-2.0
"""What the pods that are there already mean to another: ports, pod affinity and anti-affinity, topology spread.

As kube-scheduler v1.36 judges (plugins nodeports, interpodaffinity/filtering.go, podtopologyspread/filtering.go). All
is counted once for a pod; a node then costs some look-ups.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.admission.tolerations import tolerates
from app.intree.checks import InTreeCause, InTreeRefusal, PodConstraints, selected
from app.intree.existing_pods import (
    EVERY_ADDRESS,
    AffinityTerm,
    ExistingPod,
    NamespaceLabels,
    Neighbours,
    PodAmongOthers,
    Port,
    SpreadConstraint,
)
from app.nodes.model import Node

PORT_TAKEN = "node(s) didn't have free ports for the requested pod ports"
UNATTRACTED = "node(s) didn't match pod affinity rules"
REPELLED = "node(s) didn't match pod anti-affinity rules"
SHUNNED = "node(s) didn't satisfy existing pods anti-affinity rules"
UNEVEN = "node(s) didn't match pod topology spread constraints"
UNLABELLED = f"{UNEVEN} (missing required label)"
Place = tuple[str, str]
"""A topology key and its value: one domain."""


@dataclass(frozen=True, slots=True)
class SpreadCounts:
    """A constraint, and how many pods it counts in each domain. `fewest`: in the emptiest; `itself`: the pod counts."""

    constraint: SpreadConstraint
    found: Mapping[str, int]
    fewest: int
    itself: bool


@dataclass(frozen=True, slots=True)
class InterPodConstraints:
    """The neighbours as one pod finds them. `attracting`: domains where a pod of all its affinity terms runs.

    `first`: no pod anywhere fulfils its affinity terms, and it fulfils them itself, so that it may be the first.
    """

    pod: PodAmongOthers
    taken: Mapping[str, frozenset[Port]]
    attracting: frozenset[Place]
    first: bool
    repelled: frozenset[Place]
    shunned: frozenset[Place]
    shunning: tuple[str, ...]
    spread: tuple[SpreadCounts, ...]

    def refusals(self, node: Node) -> Iterator[InTreeRefusal]:
        """List what stands against a node, in the order of the plugins."""
        labels = node.labels
        yield from self._ports(node)
        yield from self._uneven(labels)
        for place, term in enumerate(self.pod.attracted):
            domain = labels.get(term.topology_key)
            if domain is None or not (self.first or (term.topology_key, domain) in self.attracting):
                yield InTreeRefusal(InTreeCause.PodAffinityMismatch, UNATTRACTED, (term.topology_key, str(place)))
        for place, term in enumerate(self.pod.repels):
            if (term.topology_key, labels.get(term.topology_key)) in self.repelled:
                yield InTreeRefusal(InTreeCause.PodAntiAffinityConflict, REPELLED, (term.topology_key, str(place)))
        for key in self.shunning:
            if (key, labels.get(key)) in self.shunned:
                yield InTreeRefusal(InTreeCause.ExistingPodAntiAffinity, SHUNNED, (key,))

    def _ports(self, node: Node) -> Iterator[InTreeRefusal]:
        there = self.taken.get(node.name, frozenset())
        for port in self.pod.ports:
            if any(_clash(port, each) for each in there):
                yield InTreeRefusal(InTreeCause.HostPortTaken, PORT_TAKEN, (str(port[2]), port[1]))

    def _uneven(self, labels: Mapping[str, str]) -> Iterator[InTreeRefusal]:
        for each in self.spread:
            about = (each.constraint.topology_key, str(each.constraint.place))
            domain = labels.get(each.constraint.topology_key)
            if domain is None:
                yield InTreeRefusal(InTreeCause.TopologySpreadConflict, UNLABELLED, about)
            elif each.found.get(domain, 0) + each.itself - each.fewest > each.constraint.max_skew:
                yield InTreeRefusal(InTreeCause.TopologySpreadConflict, UNEVEN, about)


def keep_company(
    pod: PodAmongOthers,
    pod_constraints: PodConstraints,
    neighbours: Neighbours,
    nodes: Mapping[str, Node],
    namespace_labels: NamespaceLabels,
) -> InterPodConstraints:
    """Count for a pod what the neighbours mean to it."""
    attracting, repelled, shunned = set[Place](), set[Place](), set[Place]()
    taken: dict[str, frozenset[Port]] = {}
    for each in neighbours:
        node, other = nodes.get(each.node), each.pod
        if node is None:
            continue
        if pod.ports and other.ports:
            taken[node.name] = taken.get(node.name, frozenset()) | frozenset(other.ports)
        if pod.attracted and _all_mean(pod.attracted, other, namespace_labels):
            attracting.update(_places(node, pod.attracted))
        if pod.repels:
            repelled.update(_places(node, _meaning(pod.repels, other, namespace_labels)))
        if other.repels:
            shunned.update(_places(node, _meaning(other.repels, pod, namespace_labels)))
    return InterPodConstraints(
        pod,
        taken,
        frozenset(attracting),
        not attracting and _all_mean(pod.attracted, pod, namespace_labels),
        frozenset(repelled),
        frozenset(shunned),
        tuple(sorted({key for key, _ in shunned})),
        tuple(_spreads(pod, pod_constraints, neighbours, nodes)) if pod.spread else (),
    )


def _meaning(
    terms: Iterable[AffinityTerm], pod: PodAmongOthers, namespace_labels: NamespaceLabels
) -> Iterator[AffinityTerm]:
    return (each for each in terms if each.matches(pod.namespace, pod.labels, namespace_labels))


def _all_mean(terms: Sequence[AffinityTerm], pod: PodAmongOthers, namespace_labels: NamespaceLabels) -> bool:
    return len(list(_meaning(terms, pod, namespace_labels))) == len(terms)


def _places(node: Node, terms: Iterable[AffinityTerm]) -> Iterator[Place]:
    for each in terms:
        if (domain := node.labels.get(each.topology_key)) is not None:
            yield each.topology_key, domain


def _clash(one: Port, other: Port) -> bool:
    """Tell whether two host ports cannot both be had (framework/types.go HostPortInfo.CheckConflict)."""
    return one[1:] == other[1:] and (one[0] == other[0] or EVERY_ADDRESS in (one[0], other[0]))


def _spreads(
    pod: PodAmongOthers, pod_constraints: PodConstraints, neighbours: Neighbours, nodes: Mapping[str, Node]
) -> Iterator[SpreadCounts]:
    """Count each constraint's pods by domain: those of the namespace that are not going, on nodes that it looks at."""
    keys = {each.topology_key for each in pod.spread}
    labelled = [node for node in nodes.values() if keys <= node.labels.keys()]
    there = defaultdict[str, list[ExistingPod]](list)
    for each in neighbours:
        if each.pod.namespace == pod.namespace and not each.going:
            there[each.node].append(each)
    for constraint in pod.spread:
        found: dict[str, int] = {}
        for node in (node for node in labelled if _looked_at(constraint, pod_constraints, node)):
            domain = node.labels[constraint.topology_key]
            found[domain] = found.get(domain, 0) + sum(
                constraint.counts(each.pod.labels) for each in there.get(node.name, ())
            )
        fewest = 0 if len(found) < constraint.min_domains else min(found.values(), default=0)
        yield SpreadCounts(constraint, found, fewest, constraint.selector.matches(pod.labels))


def _looked_at(constraint: SpreadConstraint, pod_constraints: PodConstraints, node: Node) -> bool:
    """Tell whether a node counts (common.go matchNodeInclusionPolicies)."""
    if constraint.honors_affinity and any(selected(pod_constraints, node, {})):
        return False
    return not constraint.honors_taints or all(
        effect == "PreferNoSchedule"
        or any(tolerates(each, {"key": key, "value": value, "effect": effect}) for each in pod_constraints.tolerations)
        for key, value, effect in node.taints
    )
