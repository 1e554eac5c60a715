# SPDX-License-Identifier: Apache-2.0
"""GET /events: changes as server-sent events (WHATWG HTML §9.2), to a bounded number of open pages.

One task checks ten times a second and sends to all of them at once; a page that does not keep up is dropped.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fastapi import Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.client_certificates import ABORT
from app.api.wire import status_body
from app.web.views.decision_rows import DecisionFilter, read_decision_filter
from app.web.views.tile_colours import Colouring, read_colouring

MOST_LISTENERS = 16
"""Open pages, each with a connection of its own; a further one is answered with 503. A guess: the page is for a few
people of one team, through a port-forward, and every change is sent to each page."""
MOST_QUEUED = 64
"""Messages queued for one page: six seconds of a fleet that changes all the time."""
SEND_SECONDS = 10.0
"""For a connection to take a message; a guess. One that sleeps is closed, and its page reconnects later."""
COMMENT_SECONDS = 15.0
"""Interval of comments on a quiet stream, so that proxies do not close it (advice of the specification)."""
HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"connection", b"close"),
]
"""X-Accel-Buffering is for nginx. The connection closes with the stream, so that it does not delay our exit."""


@dataclass(eq=False)
class EventListener:
    """One open page.

    `view` names what it shows, and `since` the generation that it has, or was notified of. `colouring` is what its map
    is coloured by, and `colours` the stamp of these colours. `queue` holds its messages, with None as the last.
    """

    view: str
    since: int
    decision_filter: DecisionFilter
    colouring: Colouring = Colouring.State
    colours: str = ""
    queue: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(MOST_QUEUED))


class EventListeners:
    """The open pages. A page may take `send_seconds` for a message."""

    def __init__(self, send_seconds: float = SEND_SECONDS) -> None:
        self.send_seconds = send_seconds
        self._all: set[EventListener] = set()
        self._new: list[EventListener] = []
        self.closed = False

    def showing(self, view: str) -> list[EventListener]:
        """Return the pages that show a view."""
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

    def answer(self, request: Request) -> ASGIApp:
        """Start a stream, or refuse it."""
        if self.closed or len(self._all) >= MOST_LISTENERS:
            problem = "about to end" if self.closed else f"{MOST_LISTENERS} pages are open already"
            return Response(status_body(503, f"events: {problem}"), 503, {"Retry-After": "5"}, "application/json")
        since = request.query_params.get("since", "")
        generation = int(since) if since.isdecimal() and len(since) < 16 else -1
        query = request.query_params
        view, colours = query.get("of", ""), query.get("colours", "")
        listener = EventListener(view, generation, read_decision_filter(query), read_colouring(query), colours)
        return Stream(self, listener)


class Stream:
    """The stream to one page, as an ASGI application."""

    def __init__(self, listeners: EventListeners, listener: EventListener) -> None:
        self._listeners = listeners
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send messages until either side ends the stream."""
        disconnected = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            async with asyncio.timeout(None) as timeout:
                with self._listeners.register(self._listener):
                    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                    await self._send_messages(disconnected, send, timeout)
        except TimeoutError:
            if (abort := scope.get(ABORT)) is not None:
                abort()
        finally:
            disconnected.cancel()

    async def _send_messages(self, disconnected: asyncio.Task[None], send: Send, timeout: asyncio.Timeout) -> None:
        clock = asyncio.get_running_loop().time
        message: bytes | None = b"retry: 2000\n\n"
        while message is not None:
            timeout.reschedule(clock() + self._listeners.send_seconds)
            await send({"type": "http.response.body", "body": message, "more_body": True})
            timeout.reschedule(None)
            message = await self._next(disconnected)
        timeout.reschedule(clock() + self._listeners.send_seconds)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self, disconnected: asyncio.Task[None]) -> bytes | None:
        """Wait for the next message; return a comment after a long pause, None at the end."""
        next_message = asyncio.create_task(self._listener.queue.get())
        try:
            await asyncio.wait(
                {next_message, disconnected}, timeout=COMMENT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if disconnected.done():
                return None
            return next_message.result() if next_message.done() else b": still here\n\n"
        finally:
            next_message.cancel()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
