# SPDX-License-Identifier: Apache-2.0
"""What keeps the page true: one task that takes in what changed, tells the open pages, and notes the totals."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from app.api.backend import Backend
from app.api.recent_decisions import RecentDecisions
from app.api.time_slices import JobQueue, TooManyJobs, in_slices
from app.web.fleet_map import SAMPLE_SECONDS, FleetMap
from app.web.pending_reasons import PendingReasons
from app.web.rendering import render
from app.web.server_sent_events import EventListener, EventListeners
from app.web.views.decision_rows import rows_of

TICK_SECONDS = 0.1
"""A change is on the page within 200 ms (issue), and a person sees no more than some changes a second."""
TOTALS_TICKS = 20
"""Totals are told every two seconds."""
MOST_TILES = 500
"""Told one by one; of more changes at once the page is told to load itself again."""
MOST_DECISIONS = 50
"""Told at once; a busy service has more, and a person reads fewer."""


class LiveUpdates:
    """The task. `start`: a word that another process would not say; `totals`: gives what their template shows."""

    def __init__(
        self,
        backend: Backend,
        fleet: FleetMap,
        causes: PendingReasons,
        turns: JobQueue,
        tail: RecentDecisions,
        start: str,
        totals: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._start = start
        self._totals = totals
        self._totals_of = -1
        self._ticks = 0
        self._backend = backend
        self._fleet = fleet
        self._causes = causes
        self._turns = turns
        self._tail = tail
        self._told = tail.total
        self._seen = (-1, -1)
        self.listeners = EventListeners()

    async def run(self) -> None:
        """Look, ten times a second, for ever; at the end of the service the streams end first."""
        loop = asyncio.get_running_loop()
        sampled = float("-inf")
        while True:
            if self._backend.draining:
                self.listeners.close()
            elif loop.time() - sampled >= SAMPLE_SECONDS and self._backend.unready() is None:
                sampled = loop.time()
                await self._sample()
            await self.look()
            await asyncio.sleep(TICK_SECONDS)

    async def _sample(self) -> None:
        try:
            async with self._turns.turn():
                await in_slices(self._fleet.sample())
        except TooManyJobs:
            pass  # many pages are being made: the next sample is as good

    async def look(self) -> None:
        """Tell every open page what is new to it."""
        listeners = self.listeners
        new = listeners.newcomers()
        listeners.tell(new, "hello", {"start": self._start})
        self._tell_decisions(listeners.of("decisions"))
        self._tell_waiting(listeners.of("pending"))
        if watching := listeners.of("fleet"):
            await self._tell_fleet(watching, new)
        else:
            self._fleet.changed.clear()

    async def _tell_fleet(self, watching: list[EventListener], new: list[EventListener]) -> None:
        fleet = self._fleet
        if fleet.generation != self._backend.generation:
            try:
                async with self._turns.turn():
                    await in_slices(fleet.catch_up())
            except TooManyJobs:
                return
        names, fleet.changed = fleet.changed, {}
        for each in new:
            if each.of == "fleet":
                missed = self._backend.state.changes.since(each.since)
                names |= dict.fromkeys(missed) if missed is not None else {}
        if len(names) > MOST_TILES:
            self.listeners.tell(watching, "reload", {})
        elif names:
            tiles = {name: _tile(fleet, name) for name in names}
            self.listeners.tell(watching, "tiles", {"generation": fleet.generation, "tiles": tiles})
        self._ticks += 1
        if self._ticks % TOTALS_TICKS == 0 and self._totals_of != fleet.generation:
            self._totals_of = fleet.generation
            shown = self._totals()
            self.listeners.tell(
                watching, "totals", {"html": render("sum.html", **shown) + render("totals.html", **shown)}
            )

    def _tell_decisions(self, watching: list[EventListener]) -> None:
        if watching and self._tail.total > self._told:
            new = self._tail.since(self._told)[-MOST_DECISIONS:]
            for each in watching:
                if rows := rows_of(new, each.asked):
                    content = {"html": render("rows.html", rows=rows), "total": self._tail.total}
                    self.listeners.tell([each], "decisions", content)
        self._told = self._tail.total

    def _tell_waiting(self, watching: list[EventListener]) -> None:
        """Say that the list of waiting pods is another; the page loads it again."""
        if watching:
            self._causes.wanted()
            seen = self._backend.state.pending_pods.generation, self._causes.generation
            if seen != self._seen:
                self._seen = seen
                self.listeners.tell(watching, "waiting", {})


def _tile(fleet: FleetMap, name: str) -> list[str] | None:
    """Give a tile's group and HTML; None for a node that is no more."""
    found = fleet.tiles.get(name)
    return [found[0].product, str(found[1])] if found else None
