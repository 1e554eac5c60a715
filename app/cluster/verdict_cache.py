# SPDX-License-Identifier: Apache-2.0
"""The cache of verdicts: the verdicts on every node for a demand, judged again only for nodes that changed.

The scheduler asks about the same demand many times (every pod of a Job). With ≤ 1 % of the nodes changed since, a call
costs one set comparison, not a filter run per node. Tests compare the cache with the plain engine.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from app.cluster.change_log import ChangeLog
from app.nodes.label_keys import CLIQUE
from app.nodes.model import Node
from app.placement.engine import (
    class_for_demand,
    class_share,
    judge_class,
    judge_counts,
    judge_free,
    scoring_plan,
    total_by_cpu,
)
from app.placement.fragmentation import ScoreByCPU
from app.policy.demand import Demand
from app.values.reasons import Code, Reason

DEMANDS_KEPT = 64
"""Distinct demands in the cache; one costs about 0.5 MB at 5,000 nodes."""
VERDICTS_SPARE = 1024
"""Verdicts and messages kept beyond two per node, before those of labels and states that no node has are dropped."""


class KnownFleet(Protocol):
    """A fleet to judge: the State, or an imagined one."""

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes by name. Their classes are interned."""
        ...

    @property
    def changes(self) -> ChangeLog:
        """The log of changed nodes."""
        ...


class Verdict(NamedTuple):
    """The reason against a node, None if it fits, and whether it fits only by kube-scheduler's count."""

    refusal: Reason | None
    behind: bool


FITS = Verdict(None, False)
"""The verdict on every node for a pod without GPUs, which filters do not judge."""


class VerdictTable:
    """The engine's verdicts on every node for one demand.

    `feasible` holds the names of the nodes that fit. `failed` and `unresolvable` hold the messages of the others by
    name, as in filter's two maps. `codes` is the reason code by message. `behind` holds the names of nodes that fit
    only because kube-scheduler's count, newer than ours, is trusted.
    """

    __slots__ = (
        "_classes",
        "_generation",
        "_label_keys",
        "_plan",
        "_recount",
        "_shares",
        "_state",
        "_totals",
        "behind",
        "codes",
        "demand",
        "failed",
        "feasible",
        "unresolvable",
    )

    def __init__(self, demand: Demand, state: KnownFleet, recount: bool) -> None:
        self.demand = demand
        self.feasible: set[str] = set()
        self.failed: dict[str, str] = {}
        self.unresolvable: dict[str, str] = {}
        self.codes: dict[str, Code] = {}
        self.behind: set[str] = set()
        self._state = state
        self._recount = recount
        self._generation = -1
        self._label_keys = _label_keys(demand)
        self._plan = scoring_plan(demand)
        self._classes: dict[Hashable, Reason | None] = {}
        self._shares: dict[Hashable, tuple[float, float]] = {}
        self._totals: dict[str, float] = {}

    def renew(self) -> None:
        """Judge the nodes that changed since the last call; all nodes at the first call."""
        changed = self._state.changes.since(self._generation) if self._generation >= 0 else None
        if changed is None or self._overgrown():
            changed = None
            verdicts = (self.feasible, self.failed, self.unresolvable, self.behind, self._totals)
            for kept in (*verdicts, self.codes, self._classes, self._shares):
                kept.clear()
            self._place_all()
        for name in dict.fromkeys(changed or ()):
            self._renew(name)
        self._generation = self._state.changes.generation

    def _overgrown(self) -> bool:
        most = 2 * len(self._state.nodes) + VERDICTS_SPARE
        return max(len(self.codes), len(self._classes), len(self._shares)) > most

    def _place_all(self) -> None:
        """Judge all nodes; those that are alike in all that filters read are judged once."""
        verdicts: dict[Hashable, Verdict] = {}
        for name, node in self._state.nodes.items():
            key = self._alike(node)
            verdict = verdicts.get(key)
            if verdict is None:
                verdict = verdicts[key] = self._judge(node)
            self._place(name, verdict)

    def _renew(self, name: str) -> None:
        self.failed.pop(name, None)
        self.unresolvable.pop(name, None)
        self.feasible.discard(name)
        self.behind.discard(name)
        node = self._state.nodes.get(name)
        weighed = self._totals.pop(name, None) is not None
        if node is not None:
            if weighed:
                self._totals[name] = self._total_by_cpu(node)(node.free_cpu_milli)
            self._place(name, self._judge(node))

    def _place(self, name: str, verdict: Verdict) -> None:
        """Store the verdict on a node."""
        refusal = verdict.refusal
        if refusal is None:
            self.feasible.add(name)
            if verdict.behind:
                self.behind.add(name)
            return
        self.codes[refusal.message] = refusal.code
        (self.failed if refusal.preemptible else self.unresolvable)[name] = refusal.message

    def _judge(self, node: Node) -> Verdict:
        if not self.demand.requests_gpus:
            return FITS
        key = self._labelled(node)
        if key not in self._classes:
            self._classes[key] = judge_class(self.demand, class_for_demand(self.demand, node))
        refusal = self._classes[key] or judge_free(self.demand, node.free, self._recount)
        behind = refusal is None and not self._recount and judge_counts(self.demand, node.free) is not None
        return Verdict(refusal, behind)

    def _labelled(self, node: Node) -> Hashable:
        """Return a key of a node's class and labels; State interns classes and keeps each alive."""
        if not self._label_keys:
            return id(node.node_class)
        return (id(node.node_class), *map(node.labels.get, self._label_keys))

    def _alike(self, node: Node) -> Hashable:
        """Return a key of all that filters read of a node, and scorers but for its free CPU.

        It is valid only until a node changes: State shares the objects of equal free resources, but may drop them.
        """
        return (id(node.free), id(node.node_class), *map(node.labels.get, self._label_keys))

    def totals(self, names: Sequence[str]) -> list[float]:
        """Return the total scores of nodes in the order of `names`; 0.0 for unknown nodes."""
        try:
            return list(map(self._totals.__getitem__, names))
        except KeyError:
            known = self._state.nodes.get
            self._weigh(node for name in names if name not in self._totals and (node := known(name)) is not None)
            return [self._totals.get(name, 0.0) for name in names]

    def _weigh(self, nodes: Iterable[Node]) -> None:
        """Compute the totals of nodes; those that are alike but for their free CPU share all other scores."""
        by_cpu: dict[Hashable, tuple[ScoreByCPU, dict[int | None, float]]] = {}
        for node in nodes:
            key, cpu = self._alike(node), node.free_cpu_milli
            known = by_cpu.get(key)
            if known is None:
                known = by_cpu[key] = (self._total_by_cpu(node), {})
            total_at, totals = known
            total = totals.get(cpu)
            if total is None:
                total = totals[cpu] = total_at(cpu)
            self._totals[node.name] = total

    def _total_by_cpu(self, node: Node) -> ScoreByCPU:
        key = self._labelled(node)
        if key not in self._shares:
            self._shares[key] = class_share(self.demand, node)
        return total_by_cpu(self.demand, self._plan, self._shares[key], node)


def _label_keys(demand: Demand) -> tuple[str, ...]:
    """List the labels of a node that filters or scorers read for a demand."""
    keys = (demand.warned or demand).label_keys  # the warned demand includes the enforced one
    return (*keys, CLIQUE) if demand.group_cliques else keys


class VerdictCache:
    """The verdicts of the last demands, at most `most` of them."""

    def __init__(self, state: KnownFleet, recount: bool, most: int = DEMANDS_KEPT) -> None:
        self._most = most
        self._state = state
        self._recount = recount
        self._kept: dict[Demand, VerdictTable] = {}

    def of(self, demand: Demand) -> VerdictTable:
        """Return the verdicts of a demand, up to date with the state."""
        table = self._kept.pop(demand, None) or VerdictTable(demand, self._state, self._recount)
        self._kept[demand] = table
        if len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]
        table.renew()
        return table
