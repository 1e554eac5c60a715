# SPDX-License-Identifier: Apache-2.0
"""Live updates: one task finds changes and sends them to the open pages.

GET /events answers with server-sent events (WHATWG HTML §9.2), for a bounded number of pages. The task checks ten times
a second and sends to all pages at once; a page that does not keep up is dropped.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from app.api.allowed_callers import ABORT
from app.api.decision_line import RecentDecisions
from app.api.pending_reasons import PendingReasons
from app.api.wire import status_body
from app.cluster.core import Core
from app.cluster.time_slices import JobQueue, TooManyJobs, in_slices
from app.web.fleet_map import FleetMap
from app.web.rendering import render
from app.web.views.decision_rows import DecisionFilter, read_decision_filter, rows_of, select

MOST_LISTENERS = 16
"""Open pages, each with a connection of its own; a further one is answered with 503. A guess: the page is for a few
people of one team, through a port-forward, and every change is sent to each page."""
MOST_QUEUED = 64
"""Messages queued for one page: six seconds of a fleet that changes all the time."""
SEND_SECONDS = 10.0
"""For a connection to take a message; a guess. One that sleeps is closed, and its page reconnects later."""
COMMENT_SECONDS = 15.0
"""Interval of comments on a quiet stream, so that proxies do not close it (advice of the specification)."""
HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
    "connection": "close",
}
"""X-Accel-Buffering is for nginx. The connection closes with the stream, so that it does not delay our exit."""


@dataclass(eq=False)
class EventListener:
    """One open page.

    `view` names what it shows, and `since` the generation that it has, or was notified of. `queue`
    holds its messages, with None as the last.
    """

    view: str
    since: int
    decision_filter: DecisionFilter
    queue: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(MOST_QUEUED))


class EventListeners:
    """The open pages. A page may take `send_seconds` for a message."""

    def __init__(self, send_seconds: float = SEND_SECONDS) -> None:
        self.send_seconds = send_seconds
        self._all: set[EventListener] = set()
        self._new: list[EventListener] = []
        self.closed = False

    def showing(self, view: str) -> list[EventListener]:
        return [listener for listener in self._all if listener.view == view]

    def take_new(self) -> list[EventListener]:
        """Return the pages opened since the last call."""
        new, self._new = self._new, []
        return new

    def send(self, listeners: list[EventListener], event: str, content: object) -> None:
        """Queue a message for pages; a page with a full queue is dropped."""
        if not listeners:
            return
        message = f"event: {event}\ndata: {json.dumps(content)}\n\n".encode()  # JSON has no line breaks in it
        for listener in listeners:
            try:
                listener.queue.put_nowait(message)
            except asyncio.QueueFull:
                self._drop(listener)

    def close(self) -> None:
        """End all streams, and accept no other."""
        self.closed = True
        for listener in list(self._all):
            self._drop(listener)

    def _drop(self, listener: EventListener) -> None:
        self._all.discard(listener)
        while not listener.queue.empty():
            listener.queue.get_nowait()
        listener.queue.put_nowait(None)

    @contextmanager
    def register(self, listener: EventListener) -> Iterator[None]:
        """Register a page while its stream lasts."""
        self._all.add(listener)
        self._new.append(listener)
        try:
            yield
        finally:
            self._all.discard(listener)

    def answer(self, request: Request) -> Response:
        """Start a stream, or refuse it."""
        if self.closed or len(self._all) >= MOST_LISTENERS:
            problem = "about to end" if self.closed else f"{MOST_LISTENERS} pages are open already"
            return Response(status_body(503, f"events: {problem}"), 503, {"Retry-After": "5"}, "application/json")
        since = request.query_params.get("since", "")
        generation = int(since) if since.isdecimal() and len(since) < 16 else -1
        query = request.query_params
        listener = EventListener(query.get("of", ""), generation, read_decision_filter(query))
        return Stream(self, listener)


class Stream(StreamingResponse):
    """The stream to one page, until either side ends it."""

    def __init__(self, listeners: EventListeners, listener: EventListener) -> None:
        super().__init__(_messages(listener.queue), headers=HEADERS)
        self._listeners = listeners
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send messages; a connection that does not take one in time is aborted: waiting bytes would keep it open."""

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self._listeners.send_seconds):
                await send(message)

        try:
            with self._listeners.register(self._listener):
                await super().__call__(scope, receive, send_in_time)
        except TimeoutError:
            if (abort := scope.get(ABORT)) is not None:
                abort()


async def _messages(queue: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
    """Yield the messages of a queue until its end, and a comment after each long pause."""
    message: bytes | None = b"retry: 2000\n\n"
    while message is not None:
        yield message
        try:
            async with asyncio.timeout(COMMENT_SECONDS):
                message = await queue.get()
        except TimeoutError:
            message = b": still here\n\n"


TICK_SECONDS = 0.1
"""Interval of the checks: a change is on the page within 200 ms, and more than some changes a second cannot be seen."""
TICKS_PER_TOTALS = 20
"""Totals are sent every two seconds."""
MOST_TILES = 500
"""Tiles sent one by one; after more changes at once the page reloads."""
MOST_DECISIONS = 50
"""Rows of decisions sent at once; a busy service makes more than can be read."""


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
    ) -> None:
        self._start = start
        self._totals = totals
        self._totals_generation = -1
        self._ticks = 0
        self._core = core
        self._fleet = fleet
        self._reasons = reasons
        self._queue = queue
        self._recent = recent
        self.listeners = EventListeners()

    async def run(self) -> None:
        """Check ten times a second until cancelled; when the service drains, the streams end first."""
        while True:
            if self._core.draining:
                self.listeners.close()
            await self.check()
            await asyncio.sleep(TICK_SECONDS)

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
        elif names:
            tiles = {"generation": fleet.generation, "tiles": fleet.tiles_of(names)}
            self.listeners.send(watching, "tiles", tiles)
        self._ticks += 1
        if self._ticks % TICKS_PER_TOTALS == 0 and self._totals_generation != fleet.generation:
            self._totals_generation = fleet.generation
            shown = self._totals()
            self.listeners.send(
                watching, "totals", {"html": render("sum.html", **shown) + render("totals.html", **shown)}
            )

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
        use = self._core.usage.reading()
        return use.generation if use.summary else 0

    def _send_changed(self, watching: list[EventListener], event: str, generation: int) -> None:
        """Tell the pages that have another generation that they have to load themselves again."""
        behind = [listener for listener in watching if listener.since != generation]
        for listener in behind:
            listener.since = generation
        self.listeners.send(behind, event, {})
