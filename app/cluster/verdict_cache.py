# SPDX-License-Identifier: Apache-2.0
"""The cache of verdicts: the verdicts on every node for a demand, judged again only for nodes that changed.

The scheduler asks about the same demand many times (every pod of a Job). With ≤ 1 % of the nodes changed since, a call
costs one set comparison, not a filter run per node. Tests compare the cache with the plain engine.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol

from app.cluster.change_log import ChangeLog
from app.nodes.model import Node
from app.placement.engine import (
    class_for_demand,
    class_share,
    combine,
    judge_class,
    judge_counts,
    judge_free,
    scoring_plan,
)
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
        self._label_keys = (demand.warned or demand).label_keys  # the warned demand includes the enforced one
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
            for node in self._state.nodes.values():
                self._place(node)
        for name in changed or ():
            self._renew(name)
        self._generation = self._state.changes.generation

    def _overgrown(self) -> bool:
        most = 2 * len(self._state.nodes) + VERDICTS_SPARE
        return max(len(self.codes), len(self._classes), len(self._shares)) > most

    def _renew(self, name: str) -> None:
        self.failed.pop(name, None)
        self.unresolvable.pop(name, None)
        self.feasible.discard(name)
        self.behind.discard(name)
        node = self._state.nodes.get(name)
        weighed = self._totals.pop(name, None) is not None
        if node is not None:
            if weighed:
                self._totals[name] = self._total(name)
            self._place(node)

    def _place(self, node: Node) -> None:
        """Judge a node and store its verdict."""
        refusal = self._judge(node)
        if refusal is None:
            self.feasible.add(node.name)
            if not self._recount and self.demand.requests_gpus and judge_counts(self.demand, node.free):
                self.behind.add(node.name)
            return
        self.codes[refusal.message] = refusal.code
        (self.failed if refusal.preemptible else self.unresolvable)[node.name] = refusal.message

    def _judge(self, node: Node) -> Reason | None:
        if not self.demand.requests_gpus:
            return None
        key = self._labelled(node) if self._label_keys else id(node.node_class)
        if key not in self._classes:
            self._classes[key] = judge_class(self.demand, class_for_demand(self.demand, node))
        return self._classes[key] or judge_free(self.demand, node.free, self._recount)

    def _labelled(self, node: Node) -> Hashable:
        """Return a key of a node's class and labels; State interns classes and keeps each alive."""
        return (id(node.node_class), *map(node.labels.get, self._label_keys))

    def totals(self, names: Sequence[str]) -> list[float]:
        """Return the total scores of nodes in the order of `names`; 0.0 for unknown nodes."""
        try:
            return list(map(self._totals.__getitem__, names))
        except KeyError:
            wanted = ({*names} - self._totals.keys()) & self._state.nodes.keys()
            self._totals.update((name, self._total(name)) for name in wanted)
            return [self._totals.get(name, 0.0) for name in names]

    def _total(self, name: str) -> float:
        node = self._state.nodes.get(name)
        if node is None:
            return 0.0
        key = self._labelled(node) if self._label_keys else id(node.node_class)
        if key not in self._shares:
            self._shares[key] = class_share(self.demand, node)
        return combine(self.demand, self._plan, self._shares[key], node)


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
