# SPDX-License-Identifier: Apache-2.0
"""Live updates: one task that finds changes, sends them to the open pages, and samples the allocated shares."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from app.api.decision_line import RecentDecisions
from app.api.pending_reasons import PendingReasons
from app.api.time_slices import JobQueue, TooManyJobs, in_slices
from app.cluster.core import Core
from app.web.allocation_history import AllocationHistory
from app.web.fleet_map import FleetMap
from app.web.rendering import render
from app.web.server_sent_events import EventListener, EventListeners
from app.web.views.decision_rows import rows_of, select
from app.web.views.tile_colours import Colouring

TICK_SECONDS = 0.1
"""Interval of the checks: a change is on the page within 200 ms, and nobody sees more than some changes a second."""
TICKS_PER_TOTALS = 20
"""Totals are sent every two seconds."""
SAMPLE_SECONDS = 60.0
"""Interval of the samples for the charts, which are taken also while nobody looks."""
MOST_TILES = 500
"""Tiles sent one by one; after more changes at once the page is told to reload."""
MOST_DECISIONS = 50
"""Rows of decisions sent at once; a busy service makes more, and nobody reads them all."""


class LiveUpdates:
    """The task. `start` identifies this process to the page; `totals` returns the variables of the totals' template."""

    def __init__(
        self,
        core: Core,
        fleet: FleetMap,
        reasons: PendingReasons,
        queue: JobQueue,
        recent: RecentDecisions,
        start: str,
        totals: Callable[[], Mapping[str, Any]],
        history: AllocationHistory,
    ) -> None:
        self._start = start
        self._totals = totals
        self._totals_generation = -1
        self._ticks = 0
        self._core = core
        self._fleet = fleet
        self._history = history
        self._reasons = reasons
        self._queue = queue
        self._recent = recent
        self.listeners = EventListeners()

    async def run(self) -> None:
        """Check ten times a second until cancelled; when the service drains, the streams end first."""
        loop = asyncio.get_running_loop()
        sampled = float("-inf")
        while True:
            if self._core.draining:
                self.listeners.close()
            elif loop.time() - sampled >= SAMPLE_SECONDS and self._core.unready() is None:
                sampled = loop.time()
                await self._sample()
            await self.check()
            await asyncio.sleep(TICK_SECONDS)

    async def _sample(self) -> None:
        try:
            async with self._queue.turn():
                await in_slices(self._history.sample())
        except TooManyJobs:
            pass  # many pages are being made; the next sample will do

    async def check(self) -> None:
        """Send every open page the changes of its view."""
        listeners = self.listeners
        new = listeners.take_new()
        listeners.send(new, "hello", {"start": self._start})
        self._send_decisions(listeners.showing("decisions"))
        if watching := listeners.showing("pending"):
            self._reasons.request()
            self._send_changed(watching, "waiting", self.pending_generation)
        if watching := listeners.showing("use"):
            self._send_changed(watching, "reload", self.use_generation)
        if watching := listeners.showing("fleet"):
            await self._send_tiles(watching, new)
        else:
            self._fleet.changed.clear()

    async def _send_tiles(self, watching: list[EventListener], new: list[EventListener]) -> None:
        fleet = self._fleet
        if fleet.behind:
            try:
                async with self._queue.turn():
                    await in_slices(fleet.catch_up())
            except TooManyJobs:
                return
        names, fleet.changed = fleet.changed, {}
        for listener in new:
            if listener.view == "fleet":
                missed = self._core.state.changes.since(listener.since)
                names |= dict.fromkeys(missed) if missed is not None else {}
        if len(names) > MOST_TILES:
            self.listeners.send(watching, "reload", {})
        else:
            await self._send_by_colouring(watching, names)
        self._ticks += 1
        if self._ticks % TICKS_PER_TOTALS == 0 and self._totals_generation != fleet.generation:
            self._totals_generation = fleet.generation
            shown = self._totals()
            self.listeners.send(
                watching, "totals", {"html": render("sum.html", **shown) + render("totals.html", **shown)}
            )

    async def _send_by_colouring(self, watching: list[EventListener], names: Mapping[str, None]) -> None:
        """Send tiles, to each page in its colours; a page whose colours mean something else now loads itself again."""
        fleet, generation = self._fleet, self._fleet.generation
        for colouring in Colouring:
            listeners = [listener for listener in watching if listener.colouring is colouring]
            if not listeners:
                continue
            colours = fleet.colours(colouring, self._core.use())
            if colours:
                self.listeners.send([one for one in listeners if one.colours != colours.stamp], "reload", {})
                for listener in listeners:
                    listener.colours = colours.stamp
            if names:
                tiles = await in_slices(fleet.tiles_of(names, colours))
                self.listeners.send(listeners, "tiles", {"generation": generation, "tiles": tiles})

    def _send_decisions(self, watching: list[EventListener]) -> None:
        """Send each page the rows that changed since the page was made, also between the page and its stream."""
        total = self._recent.total
        behind = any(0 <= listener.since < total for listener in watching)
        all_rows = rows_of(self._recent.since(0)) if behind else ()
        for listener in watching:
            if 0 <= listener.since < total:
                new = (row for row in all_rows if row.number > listener.since)
                if rows := select(new, listener.decision_filter, MOST_DECISIONS):
                    content = {"html": render("rows.html", rows=rows), "total": total}
                    self.listeners.send([listener], "decisions", content)
            listener.since = total

    @property
    def pending_generation(self) -> int:
        """Twice the number of changes of waiting pods and of their causes, plus one while some are looked for."""
        changes = self._core.state.pending_pods.generation + self._reasons.generation
        return 2 * changes + self._reasons.looking

    @property
    def use_generation(self) -> int:
        """The number of polls of use, or 0 where nothing is known of it."""
        use = self._core.use()
        return use.generation if use.summary else 0

    def _send_changed(self, watching: list[EventListener], event: str, generation: int) -> None:
        """Tell the pages that have another generation that they have to load themselves again."""
        behind = [listener for listener in watching if listener.since != generation]
        for listener in behind:
            listener.since = generation
        self.listeners.send(behind, event, {})
