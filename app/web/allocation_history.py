# SPDX-License-Identifier: Apache-2.0
"""The history of the allocated share of each product, over some hours.

It is kept also while no page is open, so it reads only changed nodes, and of each only what the share needs; tiles and
their HTML are made when a page is read (docs/benchmarks.md#the-web-page-that-nobody-looks-at).
"""

import datetime as dt
from collections import Counter, deque
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass

from app.cluster.state import State
from app.explain.gpu_inventory import inventory_key
from app.web.views.node_tile import counted_units

SAMPLES_KEPT = 360
"""Six hours of samples, one a minute; one of a fleet with 20 products is some 3 kB."""
NODES_AT_ONCE = 64
"""Nodes counted between two rests; one takes some 10 µs."""
Product = tuple[str, str]
"""A product and its unit, as in the inventory."""


@dataclass(frozen=True, slots=True)
class SharesSample:
    """The share of units that pods use, from 0 to 1, by product at a time of the wall clock."""

    at: dt.datetime
    shares: Mapping[Product, float]


class AllocationHistory:
    """The samples, the oldest first."""

    def __init__(self, state: State) -> None:
        self.samples: deque[SharesSample] = deque(maxlen=SAMPLES_KEPT)
        self._state = state
        self._generation = -1
        self._counted: dict[str, tuple[Product, int, int]] = {}
        self._nodes: Counter[Product] = Counter()
        self._units: Counter[Product] = Counter()
        self._used: Counter[Product] = Counter()

    def sample(self) -> Generator[None, None, None]:
        """Count the changed nodes, and add the shares to the history."""
        state, generation = self._state, self._state.changes.generation
        changed = state.changes.since(self._generation) if self._generation >= 0 else None
        names: Iterable[str] = {**state.nodes, **self._counted} if changed is None else dict.fromkeys(changed)
        for index, name in enumerate(names, 1):
            self._count(name)
            if index % NODES_AT_ONCE == 0:
                yield
        self._generation = generation
        shares = {
            product: self._used[product] / units if (units := self._units[product]) else 0.0
            for product, nodes in self._nodes.items()
            if nodes
        }
        self.samples.append(SharesSample(dt.datetime.now(dt.UTC), shares))

    def _count(self, name: str) -> None:
        """Count a node as it is now instead of as it was."""
        if (before := self._counted.pop(name, None)) is not None:
            self._add(*before, -1)
        node = self._state.nodes.get(name)
        if node is not None and node.has_gpus:
            product, _, unit = inventory_key(node, self._state.knowledge.products)
            units, free = counted_units(node)
            self._counted[name] = now = (product, unit), units, units - free
            self._add(*now, 1)

    def _add(self, product: Product, units: int, used: int, sign: int) -> None:
        self._nodes[product] += sign
        self._units[product] += sign * units
        self._used[product] += sign * used
