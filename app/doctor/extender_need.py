# SPDX-License-Identifier: Apache-2.0
"""Does a cluster need the extender? What keeps a pod off the nodes that policies refuse: affinity, or filter alone.

Each kind of GPU pod is judged on each node by the engine, and by what kube-scheduler sees without us: the required node
affinity that admission writes, and the resources that the node offers. What the engine alone refuses is served by the
extender alone. Some refusals come and go without a label: for these a node is judged as it would be with all memory of
its shared GPUs promised, and with its GPUs reported as unhealthy.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace

from app.admission.affinity_terms import Term, affinity_terms_of
from app.doctor.fleet_checks import Finding, FindingLevel
from app.knowledge.tables import Knowledge
from app.kube.pods import WORKLOAD_CLASS, Pod, read_pod
from app.nodes.model import Node
from app.placement.engine import class_for_demand, class_key, judge_class, judge_free
from app.policy.compiled import EVERY_POD, CompiledPolicy, PolicySet, policy_set_hash
from app.policy.demand import Demand
from app.policy.match import Ruling, ruling_for
from app.values.label_requirements import all_allow, label_requirement
from app.values.reasons import Code, Reason, counted
from app.world.fleet_facts import FleetFacts

NAMES_SHOWN = 2


@dataclass(frozen=True, slots=True)
class PodKind:
    """GPU pods of one demand: whose they are, and the ORed terms of the node affinity that they are given."""

    whose: str
    demand: Demand
    terms: tuple[Term, ...]

    def offered_by(self, node: Node) -> bool:
        """Tell whether kube-scheduler could ever find the requested resources on a node."""
        facts = node.node_class
        counted_here = (row for row in self.demand.resources if row[0] not in facts.dra_resources)
        return not node.unschedulable and all(facts.allocatable(name) >= amount for name, amount in counted_here)

    def selects(self, node: Node) -> bool:
        """Tell whether a node fulfils the node affinity."""
        return not self.terms or any(_fulfils(node, term) for term in self.terms)


@dataclass(frozen=True, slots=True)
class Refusals:
    """The nodes that kinds of pods are refused for one cause, and whose pods these are.

    `when` says of a cause that is not there now what would bring it; empty for one that is.
    """

    code: Code
    when: str
    nodes: frozenset[str]
    whose: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.whose) - NAMES_SHOWN} more" if len(self.whose) > NAMES_SHOWN else ""
        when = f", {self.when}" if self.when else ""
        owners = ", ".join(self.whose[:NAMES_SHOWN])
        return f"{self.code.name} on {counted(len(self.nodes), 'node')}{when} ({owners}{more})"


@dataclass(frozen=True, slots=True)
class ExtenderNeed:
    """What only the extender refuses, and what node affinity refuses alone, of so many kinds of pods."""

    kinds: int
    by_extender: tuple[Refusals, ...]
    by_affinity: tuple[Refusals, ...]


NodeChange = tuple[str, Callable[[Node], Node]]
"""(when a node is in another state, the node in that state)."""


def promised(node: Node) -> Node:
    """Give a node as it is with all memory of its shared GPUs promised to pods."""
    return replace(node, free=replace(node.free, memory=dict.fromkeys(node.free.memory, 0)))


def reported(node: Node) -> Node:
    """Give a node as it is with all of its GPUs reported as to be drained."""
    facts = node.node_class
    return replace(node, node_class=replace(facts, ill=facts.withdrawn + 1))


AS_IT_IS: NodeChange = ("", lambda node: node)
PROMISED: NodeChange = ("once other pods have declared its memory", promised)
REPORTED: NodeChange = ("once an exporter reports GPUs to be drained", reported)


def kinds_of_pods(
    pods: Iterable[tuple[Pod, Ruling]],
    policies: PolicySet,
    nodes: Iterable[Node],
    fleet: FleetFacts,
    knowledge: Knowledge,
) -> tuple[PodKind, ...]:
    """List the kinds: the pods of the cluster, and for each policy a pod with one unit of each offered resource."""
    named = [(f"Pod {pod.namespace}/{pod.name}", ruling) for pod, ruling in pods]
    offered = sorted({name for node in nodes for name, _ in node.node_class.offered})
    for policy in (*policies.policies, *filter(None, (policies.fallback,))):
        chosen = tuple(
            replace(each, match=EVERY_POD, exceptions=()) if each is policy else each
            for each in policies.policies
            if each is policy or (each.match == EVERY_POD and each.workload_classes is None)
        )
        together = PolicySet(chosen, policy_set_hash(chosen), policies.fallback)
        units = ((f"policy {policy.name}: {name}", _one_unit(name, policy)) for name in offered)
        named += [(whose, ruling_for(pod, {}, together, knowledge)) for whose, pod in units]
    first: dict[tuple[Demand, bool, tuple[str, ...] | None], str] = {}
    for whose, ruling in named:
        required = ruling.enforced.affinity_mode == "Required"
        first.setdefault((ruling.demand, required, ruling.enforced.affinity_keys), whose)
    return tuple(
        PodKind(whose, demand, affinity_terms_of(demand, fleet, keys, knowledge).required if required else ())
        for (demand, required, keys), whose in first.items()
        if demand.requests_gpus and demand.invalid is None
    )


def _one_unit(resource: str, policy: CompiledPolicy) -> Pod:
    annotations = {WORKLOAD_CLASS: min(policy.workload_classes)} if policy.workload_classes else {}
    container = {"name": "main", "resources": {"limits": {resource: "1"}}}
    metadata = {"name": "pod", "namespace": "default", "annotations": annotations}
    return read_pod({"metadata": metadata, "spec": {"containers": [container]}})


def extender_need(kinds: Iterable[PodKind], nodes: Iterable[Node], health_reported: bool) -> ExtenderNeed:
    """Judge each kind on each GPU node; `health_reported` says that exporters report the health of GPUs."""
    kinds, nodes = tuple(kinds), tuple(node for node in nodes if node.has_gpus)
    states = (AS_IT_IS, PROMISED, *((REPORTED,) if health_reported else ()))
    found: dict[tuple[bool, Code], tuple[set[str], dict[str, None], set[str]]] = {}
    for kind in kinds:
        for node, code, when in _refusals(kind, nodes, states):
            names, whose, times = found.setdefault((kind.selects(node), code), (set(), {}, set()))
            names.add(node.name)
            whose[kind.whose] = None
            times.add(when)
    refusals = [
        (selected, Refusals(code, min(times), frozenset(names), tuple(whose)))
        for (selected, code), (names, whose, times) in found.items()
    ]
    return ExtenderNeed(
        len(kinds),
        tuple(refused for selected, refused in refusals if selected),
        tuple(refused for selected, refused in refusals if not selected),
    )


def _refusals(kind: PodKind, nodes: Iterable[Node], states: Iterable[NodeChange]) -> Iterator[tuple[Node, Code, str]]:
    """List the nodes that offer what a kind requests and that the engine refuses: the cause, and in which state."""
    demand, verdicts = kind.demand, dict[tuple[str, Hashable], Reason | None]()
    for node in filter(kind.offered_by, nodes):
        for when, change in states:
            key = (when, class_key(node, demand.label_keys))
            changed = change(node)
            if key not in verdicts:
                verdicts[key] = judge_class(demand, class_for_demand(demand, changed))
            refusal = verdicts[key] or judge_free(demand, changed.free, recount=False)
            if refusal is not None:
                yield node, refusal.code, when
                break


def _fulfils(node: Node, term: Term) -> bool:
    requirements = (label_requirement(item["key"], item["operator"], item.get("values", ())) for item in term)
    return all_allow(requirements, node.labels)


def need_record(need: ExtenderNeed) -> tuple[Finding, ...]:
    """Give the answer as a record for `-o json`: its nodes are those that the extender alone refuses to some pods.

    Its objects are the kinds of these pods. There is none for a cluster without GPU pods and policies.
    """
    if not need.kinds:
        return ()
    nodes = {name for refused in need.by_extender for name in refused.nodes}
    whose = dict.fromkeys(name for refused in need.by_extender for name in refused.whose)
    remedy = "keep the extender" if nodes else "gpu-usher scheduler-config --no-extender"
    alone, affinity = ("; ".join(map(str, refusals)) or "nothing" for refusals in (need.by_extender, need.by_affinity))
    kinds = f"of {counted(need.kinds, 'kind')} of GPU pods"
    what = f"{kinds} the extender alone refuses: {alone}. Node affinity alone refuses: {affinity}"
    return (Finding("ExtenderNeed", FindingLevel.Info, what, remedy, tuple(sorted(nodes)), tuple(whose)),)
