# SPDX-License-Identifier: Apache-2.0
"""The fleet map: which tiles are shown, in which groups, and the totals by product."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

from app.web.views.node_tile import NodeState, Tile

Word = TypeVar("Word", int, str)


@dataclass(frozen=True, slots=True)
class TileFilter:
    """What a person filters by; an empty word asks for nothing."""

    product: str = ""
    driver: str = ""
    state: str = ""
    namespace: str = ""

    def __bool__(self) -> bool:
        """Tell whether anything is left out."""
        return any(getattr(self, each.name) for each in fields(self))

    def takes(self, tile: Tile) -> bool:
        """Tell whether a tile is shown."""
        return (
            (not self.product or tile.product == self.product)
            and (not self.driver or tile.driver == self.driver)
            and (not self.state or tile.state.value == self.state)
            and (not self.namespace or self.namespace in tile.namespaces)
        )


def wanted_of(query: Mapping[str, str]) -> TileFilter:
    """Read a filter from the query of an address; what it does not know is left out."""
    return TileFilter(**{each.name: query.get(each.name, "")[:253] for each in fields(TileFilter)})


@dataclass(frozen=True, slots=True)
class FilterChoices:
    """What can be filtered by: all that the fleet has, sorted."""

    product: tuple[str, ...]
    driver: tuple[str, ...]
    state: tuple[str, ...]
    namespace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FleetTotal:
    """One product in one form. `fragmented`: free GPUs that a pod as they run now could not use, on average; None
    where units are no whole GPUs. `stranded`: free, but no pod can have them.
    """

    product: str
    unit: str
    nodes: int
    units: int
    used: int
    fragmented: float | None
    stranded: int

    @property
    def allocated(self) -> float:
        """The share that pods hold, from 0 to 1."""
        return self.used / self.units if self.units else 0.0


def sum_of(totals: Iterable[FleetTotal]) -> FleetTotal:
    """Add totals up, of whatever products and units."""
    rows = [(each.nodes, each.units, each.used, each.stranded) for each in totals]
    nodes, units, used, stranded = map(sum, zip(*rows, strict=True)) if rows else (0, 0, 0, 0)
    return FleetTotal("", "", nodes, units, used, None, stranded)


class FleetSums:
    """The sums over all tiles, kept up to date tile by tile."""

    def __init__(self) -> None:
        self._nodes: Counter[tuple[str, str]] = Counter()
        self._units: Counter[tuple[str, str]] = Counter()
        self._free: Counter[tuple[str, str]] = Counter()
        self._stranded: Counter[tuple[str, str]] = Counter()
        self._frees: dict[tuple[str, str], Counter[int]] = {}
        self._sizes: dict[tuple[str, str], Counter[int]] = {}
        self._choices: tuple[Counter[str], ...] = (Counter(), Counter(), Counter(), Counter())

    def add(self, tile: Tile, sign: int = 1) -> None:
        """Add a tile, or take it out again with -1."""
        key = tile.product, tile.unit
        self._nodes[key] += sign
        self._units[key] += sign * tile.units
        self._free[key] += sign * tile.free
        self._stranded[key] += sign * tile.stranded
        if tile.whole:
            _count(self._frees.setdefault(key, Counter()), (tile.free,), sign)
            _count(self._sizes.setdefault(key, Counter()), tile.sizes, sign)
        shown = (tile.product,), (tile.driver,), (tile.state.value,), tile.namespaces
        for counter, words in zip(self._choices, shown, strict=True):
            _count(counter, words, sign)

    def choices(self) -> FilterChoices:
        """Give what can be filtered by."""
        order = [each.value for each in NodeState]
        product, driver, state, namespace = self._choices
        return FilterChoices(
            tuple(sorted(product)),
            tuple(sorted(driver)),
            tuple(sorted(state, key=order.index)),
            tuple(sorted(namespace)),
        )

    def totals(self) -> tuple[FleetTotal, ...]:
        """Give the totals, by product and unit; a product without nodes has none."""
        return tuple(self._total(key) for key, nodes in sorted(self._nodes.items()) if nodes)

    def _total(self, key: tuple[str, str]) -> FleetTotal:
        used = self._units[key] - self._free[key]
        frees, sizes = self._frees.get(key), self._sizes.get(key)
        fragmented = None if frees is None else fragmentation(frees, sizes or {})
        return FleetTotal(*key, self._nodes[key], self._units[key], used, fragmented, self._stranded[key])


def _count(counter: Counter[Word], words: Iterable[Word], sign: int) -> None:
    for word in words:
        counter[word] += sign
        if not counter[word]:
            del counter[word]


def fragmentation(frees: Mapping[int, int], sizes: Mapping[int, int]) -> float:
    """Give how many free GPUs a pod could not use, on average over the pods that hold GPUs now.

    `frees`: nodes by free GPUs; `sizes`: pods by GPUs held. For a pod of s GPUs those are lost that lie on nodes with
    fewer than s free; it is the fragmentation of FGD (Weng et al., USENIX ATC 2023, F_n(M)) with whole GPUs only.
    """
    pods = sum(sizes.values())
    if not pods:
        return 0.0
    lost = sum(
        count * sum(free * nodes for free, nodes in frees.items() if free < size) for size, count in sizes.items()
    )
    return lost / pods
