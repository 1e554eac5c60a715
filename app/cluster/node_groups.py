# SPDX-License-Identifier: Apache-2.0
"""The census of the nodes: how many there are of each kind, whose labels they carry, what is free. A part of State.

Counted node by node, so that a change costs the same whatever the fleet's size.
"""

from collections.abc import Iterable
from typing import Any

from app.admission.fleet_facts import NodeGroup, NodeGroupKey, label_dialects_of, node_group_key
from app.knowledge.tables import Knowledge
from app.nodes.model import Node

NO_WORDS: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


class NodeGroups:
    """What admission sums up of all nodes. `changed`: a kind, or a dialect, has come or gone since it was last read."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._by_key: dict[NodeGroupKey, NodeGroup] = {}
        self._of: dict[str, NodeGroup | None] = {}
        self._members: dict[NodeGroup, int] = {}
        self._dialects: dict[str, int] = {}
        self._pools: dict[str, int] = {}
        self._words: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self.free: dict[tuple[NodeGroup, str], int] = {}
        self.changed = False

    def all(self) -> tuple[NodeGroup, ...]:
        """List the kinds of GPU nodes."""
        return tuple(self._members)

    def provisioners(self) -> tuple[str, ...]:
        """List the dialects that some node speaks."""
        return tuple(sorted(self._dialects))

    def pools(self) -> tuple[str, ...]:
        """List the labels of node pools on nodes that speak no dialect."""
        return tuple(sorted(self._pools))

    def replace(self, before: Node | None, after: Node | None) -> None:
        """Count a node as what it is now; None: there was none, or it is gone."""
        if before is not None:
            self._add_free(before, -1)
        if before is None or after is None or _told(before) != _told(after):
            self._recount(before, after)
        if after is not None:
            self._add_free(after, 1)

    def _add_free(self, node: Node, sign: int) -> None:
        group = self._of.get(node.name)
        if group is None:
            return
        for resource, units in node.free.units.items():
            self.free[group, resource] = self.free.get((group, resource), 0) + sign * max(0, units)

    def _recount(self, before: Node | None, after: Node | None) -> None:
        left = self._of.pop(before.name, None) if before is not None else None
        joined = self._group_of(after, left) if after is not None else None
        if after is not None:
            self._of[after.name] = joined
        if left is not joined:
            self._count(self._members, [left] if left else [], [joined] if joined else [])
        if left is not None and left not in self._members:
            self._forget(left)
        former = self._words.pop(before.name, NO_WORDS) if before is not None else NO_WORDS
        words = label_dialects_of(after.labels, self._knowledge) if after is not None else NO_WORDS
        if after is not None:
            self._words[after.name] = words
        if former != words:
            self._count(self._dialects, former[0], words[0])
            self._count(self._pools, former[1], words[1])

    def _group_of(self, node: Node, former: NodeGroup | None) -> NodeGroup | None:
        """Find the kind of a node; most often it is the former one, and comparing is cheaper than looking up."""
        key = node_group_key(node, self._knowledge)
        if key is None or (former is not None and (former.node_class, former.taints, former.labels) == key):
            return former if key is not None else None
        return self._by_key.setdefault(key, NodeGroup(*key))

    def _forget(self, group: NodeGroup) -> None:
        """Forget a kind that has no node left."""
        self._by_key.pop((group.node_class, group.taints, group.labels), None)
        for key in [each for each in self.free if each[0] is group]:
            del self.free[key]

    def _count(self, counts: dict[Any, int], left: Iterable[Any], joined: Iterable[Any]) -> None:
        for each in joined:
            self.changed |= each not in counts
            counts[each] = counts.get(each, 0) + 1
        for each in left:
            counts[each] -= 1
            if not counts[each]:
                del counts[each]
                self.changed = True


def _told(node: Node) -> tuple[Any, ...]:
    """Give what a node's group follows from; where only pods changed, comparing takes three looks at identity."""
    return (node.node_class, node.labels, node.taints)
