# SPDX-License-Identifier: Apache-2.0
"""The cache of verdicts: the verdicts on every node for a demand, judged again only for nodes that changed.

The scheduler asks about the same demand many times (every pod of a Job). With ≤ 1 % of the nodes changed since, a call
costs one look-up per name, not a filter run per node. Tests compare the cache with the plain engine.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from app.nodes.conditions import CLIQUE
from app.nodes.model import Node
from app.placement.engine import (
    class_for_demand,
    class_key,
    class_share,
    judge_class,
    judge_counts,
    judge_free,
    scoring_plan,
    total_by_cpu,
)
from app.placement.scorers import ScoreByCPU
from app.policy.demand import Demand
from app.values.reasons import Code, Reason

VERDICTS_SPARE = 1024
"""Verdicts and messages kept beyond two per node, before those of labels and states that no node has are dropped."""


CHANGES_KEPT = 20_000
"""Names kept; a reader that is further behind starts over. Four times the largest fleet of the budgets (5,000
nodes)."""


class ChangeLog:
    """The names of changed nodes, in order. `generation` is their number since the start."""

    def __init__(self) -> None:
        self.generation = 0
        self._names: list[str] = []
        self._first = 0

    def note(self, name: str) -> None:
        """Note that a node was added, changed or removed."""
        self.generation += 1
        self._names.append(name)
        if len(self._names) > CHANGES_KEPT:
            kept = self._names[CHANGES_KEPT // 2 :]
            self._first += len(self._names) - len(kept)
            self._names = kept

    def reset(self) -> None:
        """Make every reader start over, also one that is up to date."""
        self.generation += 1
        self._first = self.generation
        self._names = []

    def since(self, generation: int) -> Iterable[str] | None:
        """Return the nodes changed after a generation, repeats possible; None if that is too long ago."""
        if generation < self._first:
            return None
        return self._names[generation - self._first :]


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


def alike_key(node: Node, label_keys: tuple[str, ...]) -> Hashable:
    """Return a key of all that filters read of a node, and scorers but for its free CPU.

    It is valid only until a node changes: State shares the objects of equal free resources, but may drop them.
    """
    if not label_keys:
        return id(node.free), id(node.node_class), id(node.devices)
    return (id(node.free), id(node.node_class), id(node.devices), *map(node.labels.get, label_keys))


class Verdict(NamedTuple):
    """The reason against a node, None if it fits, and whether it fits only by kube-scheduler's count."""

    refusal: Reason | None
    behind: bool


FITS = Verdict(None, False)
"""The verdict on every node for a pod without GPUs, which filters do not judge."""


class Verdicts:
    """The verdicts. `feasible` holds the names of the nodes that fit.

    `failed` and `unresolvable` hold the messages of the others by name, as in filter's two maps. `codes` is the reason
    code by message. `behind` holds the names of nodes that fit only because kube-scheduler's count, newer than ours, is
    trusted. These objects stay the same; only their contents change.
    """

    def __init__(self, demand: Demand, state: KnownFleet, recount: bool) -> None:
        self.feasible: set[str] = set()
        self.failed: dict[str, str] = {}
        self.unresolvable: dict[str, str] = {}
        self.codes: dict[str, Code] = {}
        self.behind: set[str] = set()
        self._demand = demand
        self._state = state
        self._recount = recount
        self._generation = -1
        self._label_keys = demand.label_keys
        self._classes: dict[Hashable, Reason | None] = {}

    def renew(self, generation: int, changed: Iterable[str] | None) -> None:
        """Judge the nodes that changed since the last call; all nodes at the first call.

        `changed` are at least those, where the caller has read them from the log.
        """
        if generation == self._generation:
            return
        if changed is None and self._generation >= 0:
            changed = self._state.changes.since(self._generation)
        if self._generation < 0 or changed is None or self._overgrown():
            self._judge_all()
        else:
            for name in changed:
                self._judge_again(name)
        self._generation = generation

    def _overgrown(self) -> bool:
        return max(len(self.codes), len(self._classes)) > 2 * len(self._state.nodes) + VERDICTS_SPARE

    def _judge_all(self) -> None:
        """Judge all nodes; those that are alike in all that filters read are judged once."""
        for kept in (self.feasible, self.failed, self.unresolvable, self.behind, self.codes, self._classes):
            kept.clear()
        alike: dict[Hashable, list[str]] = defaultdict(list)
        for name, node in self._state.nodes.items():
            alike[alike_key(node, self._label_keys)].append(name)
        for names in alike.values():
            self._place(names, self._judge(self._state.nodes[names[0]]))

    def _judge_again(self, name: str) -> None:
        self.failed.pop(name, None)
        self.unresolvable.pop(name, None)
        self.feasible.discard(name)
        self.behind.discard(name)
        node = self._state.nodes.get(name)
        if node is not None:
            self._place((name,), self._judge(node))

    def _place(self, names: Sequence[str], verdict: Verdict) -> None:
        refusal = verdict.refusal
        if refusal is None:
            self.feasible.update(names)
            if verdict.behind:
                self.behind.update(names)
            return
        self.codes[refusal.message] = refusal.code
        (self.failed if refusal.preemptible else self.unresolvable).update(dict.fromkeys(names, refusal.message))

    def _judge(self, node: Node) -> Verdict:
        if not self._demand.requests_gpus:
            return FITS
        key = class_key(node, self._label_keys)
        if key not in self._classes:
            self._classes[key] = judge_class(self._demand, class_for_demand(self._demand, node))
        refusal = self._classes[key] or judge_free(self._demand, node.free, self._recount)
        behind = refusal is None and not self._recount and judge_counts(self._demand, node.free) is not None
        return Verdict(refusal, behind)


DEMANDS_KEPT = 64
"""Distinct demands in the cache; one costs about 0.5 MB at 5,000 nodes."""


class VerdictTable:
    """The engine's verdicts on every node for one demand, and the totals of the nodes that were asked about.

    `feasible`, `failed`, `unresolvable`, `codes` and `behind` are those of the demand's `Verdicts`. The totals of nodes
    that fit are apart from those of others, so that one look-up per name tells whether a node fits and how well.
    """

    def __init__(self, demand: Demand, state: KnownFleet, recount: bool, verdicts: Verdicts | None = None) -> None:
        """Make the table; `verdicts` may be those of a demand that differs in what no filter reads."""
        self.demand = demand
        self._verdicts = verdicts or Verdicts(demand, state, recount)
        self.feasible, self.behind = self._verdicts.feasible, self._verdicts.behind
        self.failed, self.unresolvable = self._verdicts.failed, self._verdicts.unresolvable
        self.codes = self._verdicts.codes
        self._state = state
        self._generation = -1
        self._label_keys = _label_keys(demand)
        self._plan = scoring_plan(demand)
        self._shares: dict[Hashable, tuple[float, float]] = {}
        self._weighed: dict[str, float] = {}
        self._others: dict[str, float] = {}
        self._values: dict[float, float] = {}

    def renew(self) -> None:
        """Judge the nodes that changed since the last call, and weigh those again that were asked about."""
        generation = self._state.changes.generation
        if generation == self._generation:
            return
        changed = self._state.changes.since(self._generation) if self._generation >= 0 else None
        self._verdicts.renew(generation, changed)
        if changed is None or self._overgrown():
            kept: tuple[dict[Any, Any], ...] = (self._weighed, self._others, self._shares, self._values)
            for contents in kept:
                contents.clear()
        else:
            self._weigh_again(changed)
        self._generation = generation

    def _overgrown(self) -> bool:
        return max(len(self._shares), len(self._values)) > 2 * len(self._state.nodes) + VERDICTS_SPARE

    def _weigh_again(self, changed: Iterable[str]) -> None:
        asked = []
        for name in changed:
            total = self._weighed.pop(name, None)
            if total is not None or self._others.pop(name, None) is not None:
                asked.append(name)
        self._weigh(asked)

    def fitting(self, names: Sequence[str]) -> tuple[Sequence[str], list[float], Sequence[str]]:
        """Return those of the nodes that fit, their totals, and those that do not fit; in the order of `names`.

        Where all fit, this is one look-up per name. Looking up 5,000 names takes longer than all else that filter does
        with them, because the memory of so many names is in no cache of the processor.
        """
        try:
            return names, list(map(self._weighed.__getitem__, names)), ()
        except KeyError:
            if len(self._weighed) < len(self.feasible):
                self._weigh(self.feasible.intersection(names))
        weighed = list(map(self._weighed.get, names))
        kept = [name for name, total in zip(names, weighed, strict=True) if total is not None]
        lost = [name for name, total in zip(names, weighed, strict=True) if total is None]
        return kept, [total for total in weighed if total is not None], lost

    def totals(self, names: Sequence[str]) -> list[float]:
        """Return the total scores of nodes in the order of `names`; 0.0 for unknown nodes."""
        try:
            return list(map(self._weighed.__getitem__, names))
        except KeyError:
            self._weigh(names)
        totals = map(self._weighed.get, names)
        return [
            self._others.get(name, 0.0) if total is None else total for name, total in zip(names, totals, strict=True)
        ]

    def _weigh(self, names: Iterable[str]) -> None:
        """Compute the totals of known nodes that have none yet.

        Alike nodes share all but the score of their free CPU. Equal totals are one object, which is in the cache.
        """
        alike: dict[Hashable, tuple[ScoreByCPU, dict[int | None, float]]] = {}
        nodes, weighed, others = self._state.nodes, self._weighed, self._others
        for name in names:
            if name in weighed or name in others or name not in nodes:
                continue
            node = nodes[name]
            key, cpu = alike_key(node, self._label_keys), node.free_cpu_milli
            known = alike.get(key)
            if known is None:
                known = alike[key] = (self._total_by_cpu(node), {})
            total_at, totals = known
            total = totals.get(cpu)
            if total is None:
                computed = total_at(cpu)
                total = totals[cpu] = self._values.setdefault(computed, computed)
            (weighed if name in self.feasible else others)[name] = total

    def _total_by_cpu(self, node: Node) -> ScoreByCPU:
        key = (class_key(node, self._label_keys), node.free.kinds)
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
        self._tables: dict[Demand, VerdictTable] = {}
        self._verdicts: dict[Demand, Verdicts] = {}

    def of(self, demand: Demand) -> VerdictTable:
        """Return the verdicts of a demand, up to date with the state."""
        table = self._tables.pop(demand, None) or self._new_table(demand)
        self._tables[demand] = table
        if len(self._tables) > self._most:
            del self._tables[next(iter(self._tables))]
        table.renew()
        return table

    def _new_table(self, demand: Demand) -> VerdictTable:
        """Make a table; demands that differ only in what scorers read of future pods share their verdicts.

        Each lesson about the workload makes new demands (app/world/demand_learning.py), of which no node need be
        judged again.
        """
        judged = replace(demand, cpu_milli=0, expected_demand=None)
        verdicts = self._verdicts.pop(judged, None) or Verdicts(judged, self._state, self._recount)
        self._verdicts[judged] = verdicts
        if len(self._verdicts) > self._most:
            del self._verdicts[next(iter(self._verdicts))]
        return VerdictTable(demand, self._state, self._recount, verdicts)
