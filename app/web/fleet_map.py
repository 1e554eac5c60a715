# SPDX-License-Identifier: Apache-2.0
"""The fleet map kept up to date: a tile and its HTML for each node, the totals, and what they were over the hours.

Made anew only where a node changed since; whoever asks catches up, in steps, so that a fleet of 5,000 nodes never
holds the event loop.
"""

import datetime as dt
from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass

from markupsafe import Markup

from app.cluster.state import State
from app.web.rendering import render_tile
from app.web.views.fleet_tiles import FilterChoices, FleetSums, FleetTotal, TileFilter
from app.web.views.node_tile import Tile, tile_of

NODES_AT_ONCE = 16
"""Between two rests; a tile is some 40 µs, its HTML included."""
TILES_AT_ONCE = 512
"""Between two rests where tiles are only looked at, which is some 0.5 µs each."""
TILES_IN_A_PART = 200
"""Of one product; a browser leaves parts alone that are out of sight (page.css, content-visibility)."""
SAMPLE_SECONDS = 60.0
SAMPLES_KEPT = 360
"""Six hours; a sample of a fleet of 20 products is some 3 kB."""


@dataclass(frozen=True, slots=True)
class TotalsSample:
    """The totals at a moment of the wall clock."""

    at: dt.datetime
    totals: tuple[FleetTotal, ...]


@dataclass(frozen=True, slots=True)
class TileGroup:
    """The tiles of one product that are shown, in the order of the nodes' names. `parts`: HTML, some at a time."""

    product: str
    count: int
    parts: tuple[Markup, ...]


class FleetMap:
    """Tiles by node. `generation`: up to which change of the fleet they are true.

    `changed`: nodes whose tile is another than it was, or is gone, for who tells of them, and empties it.
    """

    def __init__(self, seen: State) -> None:
        self._seen = seen
        self.generation = -1
        self.tiles: dict[str, tuple[Tile, Markup]] = {}
        self.changed: dict[str, None] = {}
        self._sums = FleetSums()
        self.samples: deque[TotalsSample] = deque(maxlen=SAMPLES_KEPT)

    def catch_up(self, whole: bool = False) -> Generator[None, None, None]:
        """Take in what changed since.

        `whole`: look at every node: what pods without GPUs took of CPU and memory is no change of a node.
        """
        seen, generation, first = self._seen, self._seen.changes.generation, self.generation < 0
        changed = None if whole or first else seen.changes.since(self.generation)
        names: Iterable[str] = {**seen.nodes, **self.tiles} if changed is None else dict.fromkeys(changed)
        for index, name in enumerate(names):
            if self._renew(name) and not first:
                self.changed[name] = None
            if index % NODES_AT_ONCE == NODES_AT_ONCE - 1:
                yield
        self.generation = max(self.generation, generation)

    def _renew(self, name: str) -> bool:
        """Make a node's tile; tells whether it is another than it was."""
        node = self._seen.nodes.get(name)
        known = self.tiles.get(name)
        tile = None
        if node is not None and node.has_gpus:
            seen = self._seen
            tile = tile_of(node, seen.usage_on(name), seen.requested_on(name), seen.knowledge)
        if known is not None:
            if known[0] == tile:
                return False
            self._sums.add(known[0], -1)
            del self.tiles[name]
        if tile is None:
            return known is not None
        self._sums.add(tile)
        self.tiles[name] = tile, render_tile(tile)
        return True

    def shown(self, wanted: TileFilter) -> Generator[None, None, tuple[TileGroup, ...]]:
        """Group the tiles that a filter lets through."""
        groups: dict[str, list[tuple[str, Markup]]] = {}
        for index, (name, (tile, html)) in enumerate(list(self.tiles.items())):
            if not wanted or wanted.takes(tile):
                groups.setdefault(tile.product, []).append((name, html))
            if index % TILES_AT_ONCE == 0:
                yield
        found = []
        for product, tiles in sorted(groups.items()):
            yield
            tiles.sort()
            parts = (tiles[start : start + TILES_IN_A_PART] for start in range(0, len(tiles), TILES_IN_A_PART))
            joined = tuple(Markup("").join(html for _, html in part) for part in parts)
            found.append(TileGroup(product, len(tiles), joined))
        return tuple(found)

    def listed(self, wanted: TileFilter) -> Generator[None, None, tuple[Tile, ...]]:
        """List the tiles that a filter lets through, by name."""
        found = []
        for index, (tile, _) in enumerate(list(self.tiles.values())):
            if wanted.takes(tile):
                found.append(tile)
            if index % TILES_AT_ONCE == 0:
                yield
        return tuple(sorted(found, key=lambda tile: tile.node))

    def choices(self) -> FilterChoices:
        """Give what can be filtered by."""
        return self._sums.choices()

    def totals(self) -> tuple[FleetTotal, ...]:
        """Give the totals by product."""
        return self._sums.totals()

    def sample(self) -> Generator[None, None, None]:
        """Note the totals as they are now."""
        yield from self.catch_up(whole=True)
        self.samples.append(TotalsSample(dt.datetime.now(dt.UTC), self.totals()))
