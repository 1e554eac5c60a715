# SPDX-License-Identifier: Apache-2.0
"""The filters' verdicts on every node for one demand, judged again only for nodes that changed."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol

from app.cluster.change_log import ChangeLog
from app.nodes.model import Node
from app.placement.engine import class_for_demand, class_key, judge_class, judge_counts, judge_free
from app.policy.demand import Demand
from app.values.reasons import Code, Reason

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

    __slots__ = (
        "_classes",
        "_demand",
        "_generation",
        "_label_keys",
        "_recount",
        "_state",
        "behind",
        "codes",
        "failed",
        "feasible",
        "unresolvable",
    )

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

    def renew(self) -> None:
        """Judge the nodes that changed since the last call; all nodes at the first call."""
        generation = self._state.changes.generation
        if generation == self._generation:
            return
        changed = self._state.changes.since(self._generation) if self._generation >= 0 else None
        if changed is None or self._overgrown():
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
        """Store the verdict on alike nodes."""
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
