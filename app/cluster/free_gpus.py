# SPDX-License-Identifier: Apache-2.0
"""The free GPU capacity by product, updated node by node (F51). A part of State."""

from collections.abc import Mapping

from app.nodes.model import Node, NodeClass
from app.placement.expected_demand import free_floor, free_step
from app.placement.unusable_capacity import free_gpus, whole_milli

Capacity = tuple[str | None, int, int]
"""A product, and the free and the whole GPU capacity of a node in thousandths of a GPU."""
NOTHING: tuple[NodeClass | None, Capacity] = (None, (None, 0, 0))
"""Of a node that does not exist. The class is that by which GPUs are counted, None where each GPU is known."""


class FreeGPUs:
    """Free and whole GPU capacity in thousandths, by product. `generation` counts changes of what `rounded` returns."""

    def __init__(self) -> None:
        self._by_node: dict[str, tuple[NodeClass | None, Capacity]] = {}
        self._sums: dict[str, tuple[int, int]] = {}
        self._steps: dict[str, tuple[int, int]] = {}
        self.generation = 0

    def put(self, node: Node) -> None:
        """Add or change a node."""
        counted_as, before = self._by_node.get(node.name, NOTHING)
        counted = node.node_class if node.free.gpus is None else None
        free = sum(free_gpus(node.free))
        if counted is not None and counted is counted_as:  # as where pods come and go, for speed
            product, former, whole = before
            if free == former:
                return
        else:
            product, whole = node.node_class.product, whole_milli(node)
        self._by_node[node.name] = (counted, (product, free, whole))
        if product == before[0]:
            self._add(product, free - before[1], whole - before[2])
        else:
            self._add(before[0], -before[1], -before[2])
            self._add(product, free, whole)

    def drop(self, name: str) -> None:
        """Remove a node."""
        product, free, whole = self._by_node.pop(name, NOTHING)[1]
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
