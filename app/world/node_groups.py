# SPDX-License-Identifier: Apache-2.0
"""The parts of State about the fleet: free GPUs by product, and groups of equal nodes.

Counts are updated node by node, so that a change costs the same in a fleet of any size. The expected demand reads free
capacity (`FreeGPUs`); admission reads the groups of equal
GPU nodes, their number, their free resources and the label dialects in use (`NodeGroups`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from app.knowledge.tables import Knowledge
from app.kube.objects import RuntimeClass
from app.nodes.model import FreeResources, Node, NodeClass
from app.placement.scheduler_demand import free_floor, free_step
from app.placement.unusable_capacity import free_gpus, whole_milli
from app.world.fleet_facts import (
    FleetFacts,
    NodeGroup,
    NodeGroupKey,
    label_dialects_of,
    node_group_key,
    selectable_on,
)

Capacity = tuple[str | None, int, int]
"""A product, and the free and the whole GPU capacity of a node in thousandths of a GPU."""
NO_CAPACITY: tuple[NodeClass | None, FreeResources | None, Capacity] = (None, None, (None, 0, 0))
"""Of a node that does not exist. The class is that by which GPUs are counted, None where each GPU is known."""


class FreeGPUs:
    """Free and whole GPU capacity in thousandths, by product. `generation` counts changes of what `rounded` returns."""

    def __init__(self) -> None:
        self._by_node: dict[str, tuple[NodeClass | None, FreeResources | None, Capacity]] = {}
        self._sums: dict[str, tuple[int, int]] = {}
        self._steps: dict[str, tuple[int, int]] = {}
        self.generation = 0

    def put(self, node: Node) -> None:
        counted_as, former_free, before = self._by_node.get(node.name, NO_CAPACITY)
        counted = node.node_class if node.free.gpus is None else None
        if node.free is former_free and counted is counted_as is not None:
            return
        free = sum(free_gpus(node.free))
        if counted is not None and counted is counted_as:  # as where pods come and go, for speed
            product, former, whole = before
            if free == former:
                return
        else:
            product, whole = node.node_class.product, whole_milli(node)
        self._by_node[node.name] = (counted, node.free, (product, free, whole))
        if product == before[0]:
            self._add(product, free - before[1], whole - before[2])
        else:
            self._add(before[0], -before[1], -before[2])
            self._add(product, free, whole)

    def drop(self, name: str) -> None:
        product, free, whole = self._by_node.pop(name, NO_CAPACITY)[2]
        self._add(product, -free, -whole)

    def rounded(self) -> Mapping[str, int]:
        """Return the rounded free capacity by product."""
        return {product: high for product, (_, high) in self._steps.items()}

    def _add(self, product: str | None, free: int, whole: int) -> None:
        if product is None or not (free or whole):
            return
        former = self._sums.get(product, (0, 0))
        free, whole = self._sums[product] = (former[0] + free, former[1] + whole)
        low, high = self._steps.get(product, (0, -1))
        if whole == former[1] and low < free + free_floor(whole) <= high:
            return
        self._steps[product] = free_step(free, whole)
        if not whole:
            del self._sums[product], self._steps[product]
        self.generation += self._steps.get(product) != (low, high)


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
        self._platforms: dict[frozenset[str] | None, int] = {}
        self._dialects_by_node: dict[str, Dialects] = {}
        self.free: dict[tuple[NodeGroup, str], int] = {}
        self.changed = False

    def facts(self, runtime_classes: Mapping[str, RuntimeClass] | None) -> FleetFacts:
        """Return what admission reads of the fleet. `runtime_classes` is None until they are listed."""
        dialects, pools = tuple(sorted(self._dialects)), tuple(sorted(self._pools))
        selectable = selectable_on(self._platforms)
        return FleetFacts(tuple(self._counts), runtime_classes, dialects, pools, self.free, self._counts, selectable)

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
            self._by_key.pop((former.node_class, former.taints, former.labels), None)
            for key in [counted for counted in self.free if counted[0] is former]:
                del self.free[key]

    def _add_free(self, group: NodeGroup | None, node: Node | None, sign: int) -> None:
        if group is None or node is None:
            return
        for resource, units in node.free.units.items():
            self.free[group, resource] = self.free.get((group, resource), 0) + sign * max(0, units)

    def _recount(self, before: Node | None, after: Node | None) -> None:
        platforms = [[self._knowledge.clouds.selectable(node.name)] if node else [] for node in (before, after)]
        self._count(self._platforms, *platforms)
        left = self._group_by_node.pop(before.name, None) if before is not None else None
        joined = self._group_of(after, left) if after is not None else None
        if after is not None:
            self._group_by_node[after.name] = joined
        if left is not joined:
            self._count(self._counts, [left] if left else [], [joined] if joined else [])
        former = self._dialects_by_node.pop(before.name, NO_DIALECTS) if before is not None else NO_DIALECTS
        if before is not None and after is not None and before.labels is after.labels:
            dialects = former
        else:
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
