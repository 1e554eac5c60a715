# SPDX-License-Identifier: Apache-2.0
"""GET /events: what changed, as server-sent events (WHATWG HTML §9.2), to a bounded number of open pages.

One task looks ten times a second and tells all of them at once; who does not take what is told is dropped.
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
from app.web.views.decision_rows import DecisionFilter, asked_of

MOST_LISTENERS = 16
MOST_UNTOLD = 64
"""Messages that wait for one listener: six seconds of a fleet that changes all the time."""
TAKING_SECONDS = 10.0
"""For a connection to take a message; guess. One that sleeps is closed, and its page connects again when it wakes."""
COMFORT_SECONDS = 15.0
"""Between two comments on a quiet stream, so that proxies do not close it (the specification's own advice)."""
HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"connection", b"close"),
]
"""The first proxy header is nginx's; the connection ends with the stream, so that it holds up nobody's end."""


@dataclass(eq=False)
class EventListener:
    """One open page. `of`: what it shows; `since`: of which generation; `untold`: what it is to hear, None at last."""

    of: str
    since: int
    asked: DecisionFilter
    untold: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(MOST_UNTOLD))


class EventListeners:
    """The open pages. `taking_seconds`: how long one may take to take a message."""

    def __init__(self, taking_seconds: float = TAKING_SECONDS) -> None:
        self.taking_seconds = taking_seconds
        self._all: set[EventListener] = set()
        self._new: list[EventListener] = []
        self.closed = False

    def of(self, what: str) -> list[EventListener]:
        """List those that show something."""
        return [each for each in self._all if each.of == what]

    def newcomers(self) -> list[EventListener]:
        """List those that came since this was asked last."""
        new, self._new = self._new, []
        return new

    def tell(self, listeners: list[EventListener], event: str, content: object) -> None:
        """Tell some of them; who has not taken the last many is dropped."""
        message = f"event: {event}\ndata: {json.dumps(content)}\n\n".encode()  # JSON has no line breaks in it
        for each in listeners:
            try:
                each.untold.put_nowait(message)
            except asyncio.QueueFull:
                self._drop(each)

    def close(self) -> None:
        """End all streams, and begin no other."""
        self.closed = True
        for each in list(self._all):
            self._drop(each)

    def _drop(self, listener: EventListener) -> None:
        self._all.discard(listener)
        while not listener.untold.empty():
            listener.untold.get_nowait()
        listener.untold.put_nowait(None)

    @contextmanager
    def listening(self, listener: EventListener) -> Iterator[None]:
        """Count a listener in as long as its stream lasts."""
        self._all.add(listener)
        self._new.append(listener)
        try:
            yield
        finally:
            self._all.discard(listener)

    def answer(self, request: Request) -> ASGIApp:
        """Begin a stream, or refuse it."""
        if self.closed or len(self._all) >= MOST_LISTENERS:
            why = "about to end" if self.closed else f"{MOST_LISTENERS} pages are open already"
            return Response(status_body(503, f"events: {why}"), 503, {"Retry-After": "5"}, "application/json")
        since = request.query_params.get("since", "")
        generation = int(since) if since.isdecimal() and len(since) < 16 else -1
        return Stream(
            self, EventListener(request.query_params.get("of", ""), generation, asked_of(request.query_params))
        )


class Stream:
    """The answer to one listener, as an ASGI application."""

    def __init__(self, listeners: EventListeners, listener: EventListener) -> None:
        self._listeners = listeners
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what there is to tell until either side ends it."""
        gone = asyncio.create_task(_gone(receive))
        try:
            async with asyncio.timeout(None) as patience:
                with self._listeners.listening(self._listener):
                    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                    await self._tell(gone, send, patience)
        except TimeoutError:
            if (abort := scope.get(ABORT)) is not None:
                abort()
        finally:
            gone.cancel()

    async def _tell(self, gone: asyncio.Task[None], send: Send, patience: asyncio.Timeout) -> None:
        clock = asyncio.get_running_loop().time
        message: bytes | None = b"retry: 2000\n\n"
        while message is not None:
            patience.reschedule(clock() + self._listeners.taking_seconds)
            await send({"type": "http.response.body", "body": message, "more_body": True})
            patience.reschedule(None)
            message = await self._next(gone)
        patience.reschedule(clock() + self._listeners.taking_seconds)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self, gone: asyncio.Task[None]) -> bytes | None:
        """Wait for the next message; a comment where there is none for long, None at the end."""
        coming = asyncio.create_task(self._listener.untold.get())
        try:
            await asyncio.wait({coming, gone}, timeout=COMFORT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return None
            return coming.result() if coming.done() else b": still here\n\n"
        finally:
            coming.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
