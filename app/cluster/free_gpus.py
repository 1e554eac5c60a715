# SPDX-License-Identifier: Apache-2.0
"""The free GPU capacity by product, updated node by node (F51). A part of State."""

from collections.abc import Mapping

from app.nodes.model import Node
from app.placement.unusable_capacity import free_gpus, whole_milli
from app.placement.workload import rounded_free

Capacity = tuple[str, int, int]
"""A product, and the free and the whole GPU capacity of a node in thousandths of a GPU."""
NOTHING: Capacity = ("", 0, 0)


class FreeGPUs:
    """Free and whole GPU capacity in thousandths, by product. `generation` counts changes of what `rounded` returns."""

    def __init__(self) -> None:
        self._by_node: dict[str, Capacity] = {}
        self._sums: dict[str, tuple[int, int]] = {}
        self._rounded: dict[str, int] = {}
        self.generation = 0

    def put(self, node: Node) -> None:
        """Add or change a node."""
        product = node.node_class.product
        if product is None:
            self.drop(node.name)
            return
        capacity = (product, sum(free_gpus(node.free)), whole_milli(node))
        before = self._by_node.get(node.name)
        if before == capacity:
            return
        self._by_node[node.name] = capacity
        if before is not None and before[0] == product:
            self._add(product, capacity[1] - before[1], capacity[2] - before[2])
        else:
            self._add(*(before or NOTHING), sign=-1)
            self._add(*capacity)

    def drop(self, name: str) -> None:
        """Remove a node."""
        self._add(*self._by_node.pop(name, NOTHING), sign=-1)

    def rounded(self) -> Mapping[str, int]:
        """Return the rounded free capacity by product."""
        return self._rounded

    def _add(self, product: str, free: int, whole: int, sign: int = 1) -> None:
        former_free, former_whole = self._sums.get(product, (0, 0))
        free, whole = former_free + sign * free, former_whole + sign * whole
        if whole:
            self._sums[product] = (free, whole)
            if self._rounded.get(product) == (share := rounded_free(free, whole)):
                return
            self._rounded = {**self._rounded, product: share}
        elif self._sums.pop(product, None) is None:
            return
        else:
            self._rounded = {other: share for other, share in self._rounded.items() if other != product}
        self.generation += 1
