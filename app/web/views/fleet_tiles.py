# SPDX-License-Identifier: Apache-2.0
"""The fleet map's filter, and its totals by product."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

from app.web.views.node_tile import NodeState, Tile

Word = TypeVar("Word", int, str)


@dataclass(frozen=True, slots=True)
class TileFilter:
    """The filter of the page; an empty member selects everything."""

    product: str = ""
    driver: str = ""
    state: str = ""
    namespace: str = ""

    def __bool__(self) -> bool:
        """Whether the filter selects less than everything."""
        return any(getattr(self, member.name) for member in fields(self))

    def selects(self, tile: Tile) -> bool:
        """Tell whether the filter selects a tile."""
        return (
            (not self.product or tile.product == self.product)
            and (not self.driver or tile.driver == self.driver)
            and (not self.state or tile.state.value == self.state)
            and (not self.namespace or self.namespace in tile.namespaces)
        )


def read_tile_filter(query: Mapping[str, str]) -> TileFilter:
    """Read the filter from the query of a URL; unknown parameters are ignored."""
    return TileFilter(**{member.name: query.get(member.name, "")[:253] for member in fields(TileFilter)})


@dataclass(frozen=True, slots=True)
class FilterChoices:
    """The values that can be filtered by: those of the fleet, sorted."""

    product: tuple[str, ...]
    driver: tuple[str, ...]
    state: tuple[str, ...]
    namespace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FleetTotal:
    """The totals of one product in one unit.

    `fragmented` is the number of free GPUs that a pod like the present ones could not use, on average; None if the
    units are not whole GPUs. `stranded` counts free GPUs that no pod can use.
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
        """The share that pods use, from 0 to 1."""
        return self.used / self.units if self.units else 0.0


def sum_of(totals: Iterable[FleetTotal]) -> FleetTotal:
    """Return the sum of totals of any products and units."""
    rows = [(total.nodes, total.units, total.used, total.stranded) for total in totals]
    nodes, units, used, stranded = map(sum, zip(*rows, strict=True)) if rows else (0, 0, 0, 0)
    return FleetTotal("", "", nodes, units, used, None, stranded)


class FleetSums:
    """The sums over all tiles, updated tile by tile."""

    def __init__(self) -> None:
        self._nodes: Counter[tuple[str, str]] = Counter()
        self._units: Counter[tuple[str, str]] = Counter()
        self._free: Counter[tuple[str, str]] = Counter()
        self._stranded: Counter[tuple[str, str]] = Counter()
        self._frees: dict[tuple[str, str], Counter[int]] = {}
        self._sizes: dict[tuple[str, str], Counter[int]] = {}
        self._choices: tuple[Counter[str], ...] = (Counter(), Counter(), Counter(), Counter())

    def add(self, tile: Tile, sign: int = 1) -> None:
        """Add a tile, or with `sign` -1 remove it."""
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

    @property
    def holders(self) -> Mapping[str, int]:
        """The number of nodes on which each namespace holds GPUs."""
        return self._choices[-1]

    def choices(self) -> FilterChoices:
        """Return the values that can be filtered by."""
        order = [state.value for state in NodeState]
        product, driver, state, namespace = self._choices
        return FilterChoices(
            tuple(sorted(product)),
            tuple(sorted(driver)),
            tuple(sorted(state, key=order.index)),
            tuple(sorted(namespace)),
        )

    def totals(self) -> tuple[FleetTotal, ...]:
        """Return the totals by product and unit; a product without nodes has none."""
        return tuple(self._total(key) for key, nodes in sorted(self._nodes.items()) if nodes)

    def _total(self, key: tuple[str, str]) -> FleetTotal:
        used = self._units[key] - self._free[key]
        frees, sizes = self._frees.get(key), self._sizes.get(key)
        fragmented = None if frees is None else fragmented_gpus(frees, sizes or {})
        return FleetTotal(*key, self._nodes[key], self._units[key], used, fragmented, self._stranded[key])


def _count(counter: Counter[Word], words: Iterable[Word], sign: int) -> None:
    for word in words:
        counter[word] += sign
        if not counter[word]:
            del counter[word]


def fragmented_gpus(frees: Mapping[int, int], sizes: Mapping[int, int]) -> float:
    """Return the free GPUs that a pod could not use, on average over the pods that use GPUs now.

    `frees` is the number of nodes by free GPUs, `sizes` the number of pods by GPUs used. For a pod of s GPUs, the free
    GPUs on nodes with fewer than s are lost; this is the fragmentation of FGD (Weng et al., USENIX ATC 2023, F_n(M))
    with whole GPUs only.
    """
    pods = sum(sizes.values())
    if not pods:
        return 0.0
    lost = sum(
        count * sum(free * nodes for free, nodes in frees.items() if free < size) for size, count in sizes.items()
    )
    return lost / pods
