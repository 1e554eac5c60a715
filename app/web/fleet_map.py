# SPDX-License-Identifier: Apache-2.0
"""The fleet map: a tile and its HTML for each node, and the totals.

Only tiles of changed nodes are made again, and only when the page is read. Readers bring the map up to date in steps,
so that a fleet of 5,000 nodes never blocks the event loop.
"""

import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass

from markupsafe import Markup

from app.nodes.model import Node
from app.web.rendering import render_tile
from app.web.views.fleet_tiles import FleetSums, FleetTotal, TileFilter
from app.web.views.node_tile import Tile, tile_of
from app.world.state import State

TILED_AT_ONCE = 16
"""Tiles made between two rests; one takes some 40 µs, its HTML included."""
TILES_AT_ONCE = 512
"""Tiles filtered between two rests; one takes some 0.5 µs."""
TILES_PER_PART = 200
"""Tiles of one product in one element; a browser does not lay out elements out of sight (page.css,
content-visibility)."""
WHOLE_SECONDS = 60.0
"""Interval in which every tile is made again for a reader, because memory and parts of cores that pods without GPUs
take do not count as a change of a node."""


@dataclass(frozen=True, slots=True)
class TileGroup:
    """The visible tiles of one product, ordered by node name. `parts` are pieces of HTML."""

    product: str
    count: int
    parts: tuple[Markup, ...]


class FleetMap:
    """The tiles by node, up to date with `generation` of the state."""

    def __init__(self, state: State, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._clock = clock
        self._whole_at = float("-inf")
        self.generation = -1
        self.tiles: dict[str, tuple[Tile, Markup]] = {}
        self._sums = FleetSums()

    def catch_up(self) -> Generator[None, None, None]:
        """Update the tiles of changed nodes, and of every node once in WHOLE_SECONDS."""
        state, generation = self._state, self._state.changes.generation
        started = self._clock()
        whole = self.generation < 0 or started - self._whole_at >= WHOLE_SECONDS
        changed = None if whole else state.changes.since(self.generation)
        names: Iterable[str] = {**state.nodes, **self.tiles} if changed is None else dict.fromkeys(changed)
        for index, name in enumerate(names):
            self._update_tile(name)
            if index % TILED_AT_ONCE == TILED_AT_ONCE - 1:
                yield
        self.generation = max(self.generation, generation)
        if changed is None:
            self._whole_at = started

    def _update_tile(self, name: str) -> None:
        node = self._state.nodes.get(name)
        before = self.tiles.get(name)
        tile = self._tile(node) if node is not None and node.has_gpus else None
        if before is not None:
            if before[0] == tile:
                return
            self._sums.add(before[0], -1)
            del self.tiles[name]
        if tile is not None:
            self._sums.add(tile)
            self.tiles[name] = tile, render_tile(tile)

    def _tile(self, node: Node) -> Tile:
        state, name = self._state, node.name
        held = state.devices.devices_held_on(node)
        return tile_of(
            node, state.allocations.bound(name), state.node_requests.used.get(name, {}), state.knowledge, held
        )

    def tile_groups(self, tile_filter: TileFilter) -> Generator[None, None, tuple[TileGroup, ...]]:
        """Return the groups of the tiles that a filter selects."""
        groups: dict[str, list[tuple[str, Markup]]] = {}
        for index, (name, (tile, html)) in enumerate(list(self.tiles.items())):
            if (not tile_filter or tile_filter.selects(tile)) and name in self.tiles:
                groups.setdefault(tile.product, []).append((name, html))
            if index % TILES_AT_ONCE == 0:
                yield
        shown_groups = []
        for product, tiles in sorted(groups.items()):
            yield
            tiles.sort()
            parts = (tiles[start : start + TILES_PER_PART] for start in range(0, len(tiles), TILES_PER_PART))
            joined = tuple(Markup("").join(html for _, html in part) for part in parts)
            shown_groups.append(TileGroup(product, len(tiles), joined))
        return tuple(shown_groups)

    def tile_list(self, tile_filter: TileFilter) -> Generator[None, None, tuple[Tile, ...]]:
        """Return the tiles that a filter selects, by node name."""
        tiles = []
        for index, (tile, _) in enumerate(list(self.tiles.values())):
            if tile_filter.selects(tile):
                tiles.append(tile)
            if index % TILES_AT_ONCE == 0:
                yield
        return tuple(sorted(tiles, key=lambda tile: tile.node))

    def choices(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return self._sums.choices()

    def totals(self) -> tuple[FleetTotal, ...]:
        return self._sums.totals()
