# SPDX-License-Identifier: Apache-2.0
"""The soft constraints of a pod: what kube-scheduler's own scores prefer, and gpu-usher leaves to them.

They are preferred node affinity, preferred pod affinity and anti-affinity, topology spread with `ScheduleAnyway`, and
the taints `PreferNoSchedule` (kube-scheduler v1.36: plugins nodeaffinity, interpodaffinity, podtopologyspread,
tainttoleration). No score is computed here: nodes are distinguished only if such a score could.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from app.kube.node_selectors import DeclaredTerm, NodeSelectorTerm
from app.kube.pod_limits import MOST_CONSTRAINTS
from app.kube.pod_object import NodeAffinity, PodAffinityTerm, PodObject, Toleration
from app.kube.pods import toleration_covers
from app.nodes.model import Node

PREFER_NO_SCHEDULE = "PreferNoSchedule"
MOST_SOFT_CONSTRAINTS = 6
"""Preferred terms, and topology keys, that are looked at: each is evaluated on every node that fits, and tenants write
them. The expressions of all terms together are twice as many at most. On 5,000 nodes that holds the event loop for
less than 50 ms (tests/stepping.py); eight of each took longer. Ordinary pods have one or two."""

Taints = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class SoftConstraints:
    """What a pod prefers and does not require.

    `terms` are its preferred node affinity terms. `topology_keys` are those of its preferred pod affinity and
    anti-affinity, and of its spread constraints with ScheduleAnyway. The first MOST_PREFERENCES of both are read.
    """

    terms: tuple[NodeSelectorTerm, ...] = ()
    topology_keys: tuple[str, ...] = ()
    tolerations: tuple[Toleration, ...] = ()

    @property
    def wants_something(self) -> bool:
        """Tell whether the pod prefers some nodes, apart from their taints."""
        return bool(self.terms or self.topology_keys)

    def traits(self, nodes: Sequence[Node]) -> list[Sequence[Hashable]]:
        """Tell what these can tell apart, as columns with a value for each node.

        The columns are: for each term whether it selects the node, for each topology key the domain, and the number of
        soft taints.
        """
        labels = [node.labels for node in nodes]
        return [
            *(_selected(term, nodes) for term in self.terms),
            *([own.get(key) for own in labels] for key in self.topology_keys),
            self._soft_taints_of_all(nodes),
        ]

    def _soft_taints_of_all(self, nodes: Sequence[Node]) -> list[int]:
        """Count the soft taints of nodes; nodes with equal taints are counted once."""
        counts: dict[Taints, int] = {}
        for node in nodes:
            if node.taints not in counts:
                counts[node.taints] = self.soft_taints(node)
        return [counts[node.taints] for node in nodes]

    def soft_taints(self, node: Node) -> int:
        """Count the node's taints PreferNoSchedule that the pod does not tolerate."""
        count = 0
        for key, value, effect in node.taints:
            if effect == PREFER_NO_SCHEDULE:
                taint = {"key": key, "value": value, "effect": effect}
                count += not any(toleration_covers(toleration, taint) for toleration in self.tolerations)
        return count


def _selected(term: NodeSelectorTerm, nodes: Sequence[Node]) -> list[bool]:
    """Tell which nodes a term selects; nodes with equal values of the labels that it reads are evaluated once."""
    if term.names or not term.expressions:
        return [term.selects(node) for node in nodes]
    values = list(zip(*([node.labels.get(key) for node in nodes] for key, _ in term.expressions), strict=True))
    selects = {own: term.selects(node) for own, node in dict(zip(values, nodes, strict=True)).items()}
    return [selects[own] for own in values]


def read_soft_constraints(pod: PodObject) -> SoftConstraints:
    """Read the soft constraints of a Pod."""
    spec = pod.spec
    others = (*spec.affinity.pod_affinity.preferred, *spec.affinity.pod_anti_affinity.preferred)
    keys = [str((one.pod_affinity_term or PodAffinityTerm()).topology_key) for one in others]
    keys += [
        str(constraint.topology_key)
        for constraint in spec.topology_spread_constraints
        if constraint.when_unsatisfiable == "ScheduleAnyway"
    ]
    return SoftConstraints(
        tuple(term.read() for term in _preferred_terms(spec.affinity.node_affinity)),
        tuple(dict.fromkeys(keys))[:MOST_SOFT_CONSTRAINTS],
        spec.tolerations[:MOST_CONSTRAINTS],
    )


def _preferred_terms(affinity: NodeAffinity) -> Iterator[DeclaredTerm]:
    """List the first preferred terms, as far as MOST_PREFERENCES allows."""
    expressions = 0
    for weighted in affinity.preferred[:MOST_SOFT_CONSTRAINTS]:
        term = weighted.preference or DeclaredTerm()
        expressions += len(term.match_expressions or ()) + len(term.match_fields or ())
        if expressions > 2 * MOST_SOFT_CONSTRAINTS:
            return
        yield term
