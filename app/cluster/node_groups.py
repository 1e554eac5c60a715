# SPDX-License-Identifier: Apache-2.0
"""The groups of equal GPU nodes, their number and free resources, and the label dialects in use. A part of State.

Counts are updated node by node, so that a change costs the same in a fleet of any size.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from app.admission.fleet_facts import FleetFacts, NodeGroup, NodeGroupKey, label_dialects_of, node_group_key
from app.knowledge.tables import Knowledge
from app.nodes.model import Node
from app.nodes.reading import RuntimeClass

Dialects = tuple[tuple[str, ...], tuple[str, ...]]
"""What the labels of one node show: names of label dialects, and its node pool labels if none is on templates."""
NO_DIALECTS: Dialects = ((), ())
"""Of a node that does not exist."""


class NodeGroups:
    """The sums over all nodes that admission reads. `changed` is set when a group or a dialect has come or gone."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._by_key: dict[NodeGroupKey, NodeGroup] = {}
        self._group_by_node: dict[str, NodeGroup | None] = {}
        self._counts: dict[NodeGroup, int] = {}
        self._dialects: dict[str, int] = {}
        self._pools: dict[str, int] = {}
        self._dialects_by_node: dict[str, Dialects] = {}
        self.free: dict[tuple[NodeGroup, str], int] = {}
        self.changed = False

    def all(self) -> tuple[NodeGroup, ...]:
        """Return the groups of GPU nodes."""
        return tuple(self._counts)

    def provisioners(self) -> tuple[str, ...]:
        """Return the label dialects that some node has."""
        return tuple(sorted(self._dialects))

    def pools(self) -> tuple[str, ...]:
        """Return the node pool labels of nodes whose labels an autoscaler does not know before."""
        return tuple(sorted(self._pools))

    def facts(self, runtime_classes: Mapping[str, RuntimeClass] | None) -> FleetFacts:
        """Return what admission reads of the fleet. `runtime_classes` is None until they are listed."""
        return FleetFacts(self.all(), runtime_classes, self.provisioners(), self.pools(), self.free, self._counts)

    def replace(self, before: Node | None, after: Node | None) -> None:
        """Replace a node in the counts. `before` is None for a new node, `after` for a removed one."""
        former = self._group_by_node.get(before.name) if before is not None else None
        if before is None or after is None or _group_facts(before) != _group_facts(after):
            self._recount(before, after)
        group = self._group_by_node.get(after.name) if after is not None else None
        if former is not group or before is None or after is None or before.free is not after.free:
            self._add_free(former, before, -1)
            self._add_free(group, after, 1)
        if former is not None and former not in self._counts:
            self._forget(former)

    def _add_free(self, group: NodeGroup | None, node: Node | None, sign: int) -> None:
        if group is None or node is None:
            return
        for resource, units in node.free.units.items():
            self.free[group, resource] = self.free.get((group, resource), 0) + sign * max(0, units)

    def _recount(self, before: Node | None, after: Node | None) -> None:
        left = self._group_by_node.pop(before.name, None) if before is not None else None
        joined = self._group_of(after, left) if after is not None else None
        if after is not None:
            self._group_by_node[after.name] = joined
        if left is not joined:
            self._count(self._counts, [left] if left else [], [joined] if joined else [])
        former = self._dialects_by_node.pop(before.name, NO_DIALECTS) if before is not None else NO_DIALECTS
        dialects = label_dialects_of(after.labels, self._knowledge) if after is not None else NO_DIALECTS
        if after is not None:
            self._dialects_by_node[after.name] = dialects
        if former != dialects:
            self._count(self._dialects, former[0], dialects[0])
            self._count(self._pools, former[1], dialects[1])

    def _group_of(self, node: Node, former: NodeGroup | None) -> NodeGroup | None:
        """Return the group of a node; comparing with its former group is cheaper than a look-up."""
        key = node_group_key(node, self._knowledge)
        if key is None or (former is not None and (former.node_class, former.taints, former.labels) == key):
            return former if key is not None else None
        return self._by_key.setdefault(key, NodeGroup(*key))

    def _forget(self, group: NodeGroup) -> None:
        """Remove a group without nodes."""
        self._by_key.pop((group.node_class, group.taints, group.labels), None)
        for key in [counted for counted in self.free if counted[0] is group]:
            del self.free[key]

    def _count(self, counts: dict[Any, int], left: Iterable[Any], joined: Iterable[Any]) -> None:
        for key in joined:
            self.changed |= key not in counts
            counts[key] = counts.get(key, 0) + 1
        for key in left:
            counts[key] -= 1
            if not counts[key]:
                del counts[key]
                self.changed = True


def _group_facts(node: Node) -> tuple[Any, ...]:
    """Return what decides the group of a node; if only pods changed, the comparison is of three identical objects."""
    return (node.node_class, node.labels, node.taints)
