# SPDX-License-Identifier: Apache-2.0
"""What the fleet map shows beside tiles: its filter, totals by product, and the search."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from app.nodes.model import Sharing
from app.web.views.node_tile import WHOLE_UNITS, NodeState, Tile

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


def sums_of(totals: Iterable[FleetTotal]) -> tuple[FleetTotal, ...]:
    """Return the sums over all products of GPUs, of MIG slices, and of shares: units of another kind are not added."""
    sums: dict[str, FleetTotal] = {}
    for total in totals:
        kind = "GPUs" if total.unit in WHOLE_UNITS else "MIG slices" if total.unit == Sharing.MIG.value else "shares"
        before = sums.get(kind, FleetTotal("", kind, 0, 0, 0, None, 0))
        sums[kind] = replace(before, nodes=before.nodes + total.nodes, units=before.units + total.units,
                             used=before.used + total.used, stranded=before.stranded + total.stranded)  # fmt: skip
    return tuple(sums[kind] for kind in sorted(sums) if sums[kind].units)


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
        for count in tile.counts:
            key = tile.product, count.unit
            self._nodes[key] += sign
            self._units[key] += sign * count.units
            self._free[key] += sign * count.free
            self._stranded[key] += sign * count.free * tile.stranded
            if count.whole:
                _count(self._frees.setdefault(key, Counter()), (count.free,), sign)
                _count(self._sizes.setdefault(key, Counter()), tile.sizes, sign)
        shown = (tile.product,), (tile.driver,), (tile.state.value,), tile.namespaces
        for counter, words in zip(self._choices, shown, strict=True):
            _count(counter, words, sign)

    def choices(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return the values that can be filtered by: those of the fleet, sorted, by member of the filter."""
        order = [state.value for state in NodeState]
        sorts = (None, None, order.index, None)
        words = (tuple(sorted(some, key=sort)) for some, sort in zip(self._choices, sorts, strict=True))
        return tuple(zip(("product", "driver", "state", "namespace"), words, strict=True))

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


MOST_FOUND = 50
"""Nodes, and pods, that are listed; a longer name finds the others."""


@dataclass(frozen=True, slots=True)
class Found:
    """The nodes and pods whose names contain the text, those that are equal to it first.

    Pods are pairs of namespace/name and node, which is empty while the pod is pending. `more` is the number of those
    left out. `only` has the only match, or the only one that has exactly this name, as the path of its page before it
    is quoted; empty if there is none.
    """

    nodes: tuple[str, ...]
    pods: tuple[tuple[str, str], ...]
    more: int
    only: str


def find(text: str, nodes: Iterable[str], pods: Iterable[tuple[str, str]]) -> Found:
    """Find a text in the names of nodes, and of pods, which are pairs of namespace/name and node. Case is ignored."""
    text = text.lower()
    found_nodes = sorted((name for name in nodes if text in name), key=lambda name: (name != text, name))
    found_pods = sorted(
        {pod for pod in pods if text in pod[0]}, key=lambda pod: (not _is_named(pod[0], text), pod)
    )  # fmt: skip
    exact = [f"/nodes/{name}" for name in found_nodes if name == text]
    exact += [f"/pending/{key}" for key, _ in found_pods if _is_named(key, text)]
    pages = exact or [*(f"/nodes/{name}" for name in found_nodes), *(f"/pending/{key}" for key, _ in found_pods)]
    more = max(len(found_nodes) - MOST_FOUND, 0) + max(len(found_pods) - MOST_FOUND, 0)
    only = pages[0] if len(pages) == 1 else ""
    return Found(tuple(found_nodes[:MOST_FOUND]), tuple(found_pods[:MOST_FOUND]), more, only)


def _is_named(key: str, text: str) -> bool:
    return text in (key, key.partition("/")[2])
