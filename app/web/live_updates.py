# SPDX-License-Identifier: Apache-2.0
"""Live updates: one task that finds changes, sends them to the open pages, and samples the allocated shares."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from app.api.backend import Backend
from app.api.pending_reasons import PendingReasons
from app.api.recent_decisions import RecentDecisions
from app.api.time_slices import JobQueue, TooManyJobs, in_slices
from app.web.allocation_history import AllocationHistory
from app.web.fleet_map import FleetMap
from app.web.rendering import render
from app.web.server_sent_events import EventListener, EventListeners
from app.web.views.decision_rows import rows_of

TICK_SECONDS = 0.1
"""Interval of the checks: a change is on the page within 200 ms, and nobody sees more than some changes a second."""
TICKS_PER_TOTALS = 20
"""Totals are sent every two seconds."""
SAMPLE_SECONDS = 60.0
"""Interval of the samples for the charts, which are taken also while nobody looks."""
MOST_TILES = 500
"""Tiles sent one by one; after more changes at once the page is told to reload."""
MOST_DECISIONS = 50
"""Decisions sent at once; a busy service makes more, and nobody reads them all."""


class LiveUpdates:
    """The task. `start` identifies this process to the page; `totals` returns the variables of the totals' template."""

    def __init__(
        self,
        backend: Backend,
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
        self._backend = backend
        self._fleet = fleet
        self._history = history
        self._reasons = reasons
        self._queue = queue
        self._recent = recent
        self._sent_total = recent.total
        self._sent_pending = (-1, -1)
        self.listeners = EventListeners()

    async def run(self) -> None:
        """Check ten times a second until cancelled; when the service drains, the streams end first."""
        loop = asyncio.get_running_loop()
        sampled = float("-inf")
        while True:
            if self._backend.draining:
                self.listeners.close()
            elif loop.time() - sampled >= SAMPLE_SECONDS and self._backend.unready() is None:
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
        self._send_pending(listeners.showing("pending"))
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
                missed = self._backend.state.changes.since(listener.since)
                names |= dict.fromkeys(missed) if missed is not None else {}
        if len(names) > MOST_TILES:
            self.listeners.send(watching, "reload", {})
        elif names:
            tiles = {name: _tile(fleet, name) for name in names}
            self.listeners.send(watching, "tiles", {"generation": fleet.generation, "tiles": tiles})
        self._ticks += 1
        if self._ticks % TICKS_PER_TOTALS == 0 and self._totals_generation != fleet.generation:
            self._totals_generation = fleet.generation
            shown = self._totals()
            self.listeners.send(
                watching, "totals", {"html": render("sum.html", **shown) + render("totals.html", **shown)}
            )

    def _send_decisions(self, watching: list[EventListener]) -> None:
        if watching and self._recent.total > self._sent_total:
            new = self._recent.since(self._sent_total)[-MOST_DECISIONS:]
            for listener in watching:
                if rows := rows_of(new, listener.decision_filter):
                    content = {"html": render("rows.html", rows=rows), "total": self._recent.total}
                    self.listeners.send([listener], "decisions", content)
        self._sent_total = self._recent.total

    def _send_pending(self, watching: list[EventListener]) -> None:
        """Tell pages that the list of pending pods has changed, so that they load it again."""
        if watching:
            self._reasons.request()
            current = self._backend.state.pending_pods.generation, self._reasons.generation
            if current != self._sent_pending:
                self._sent_pending = current
                self.listeners.send(watching, "waiting", {})


def _tile(fleet: FleetMap, name: str) -> list[str] | None:
    """Return a tile's product and HTML; None for a removed node."""
    tile = fleet.tiles.get(name)
    return [tile[0].product, str(tile[1])] if tile else None
