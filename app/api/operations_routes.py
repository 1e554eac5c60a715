# SPDX-License-Identifier: Apache-2.0
"""The operations listener: probes, metrics and version, as plain HTTP for the kubelet and Prometheus.

/readyz is asked of the event loop that holds the state, or is the last answer if that loop is busy; /metrics is
rendered for each scrape up to a rate that no Prometheus exceeds.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from app import __version__
from app.api.tracing import Tracing, untraced
from app.api.wire import encode, status_body
from app.cluster.core import Core
from app.telemetry.metrics import Metrics
from app.values.json_members import JSON

Health = dict[str, Any]
Ask = Callable[[Callable[[], Health]], Awaitable[Health]]
"""Calls a function on the event loop that holds the state. Raises TimeoutError if that loop is busy too long."""


async def call_here(call: Callable[[], Health]) -> Health:
    """Call at once: the state is on this event loop."""
    return call()


class Readiness:
    """Returns the body of /readyz, and keeps the last one. `was_ready` is whether the service was ever ready."""

    def __init__(self, core: Core, ask: Ask = call_here) -> None:
        self._core, self._ask = core, ask
        self._last: Health = {"ready": False}
        self.was_ready = False

    async def health(self) -> Health:
        """Ask for the health. On a timeout the last answer holds, if the heartbeat is recent and no end has begun."""
        try:
            self._last = await self._ask(self._core.health)
        except TimeoutError:
            draining = self._core.draining
            ready = self._last["ready"] and not draining and self._core.alive()
            return {**self._last, "ready": ready, "draining": draining, "busy": True}
        self.was_ready = self.was_ready or self._last["ready"]
        return self._last


RENDERS_PER_SECOND = 20.0
"""Texts rendered per second; one takes some milliseconds, and a Prometheus scrapes every 15 s."""
BURST = 20.0
"""Texts rendered in a burst: several Prometheus servers and a person."""


class MetricsText:
    """Returns the text; above the rate it returns the last one again, whose bytes all callers share.

    `clock` returns monotonic seconds.
    """

    def __init__(self, render: Callable[[], bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._render, self._clock = render, clock
        self._left, self._at = BURST, clock()
        self._text = b""

    def latest(self) -> bytes:
        """Return the current text, or a recent one."""
        now = self._clock()
        self._left = min(BURST, self._left + (now - self._at) * RENDERS_PER_SECOND)
        self._at = now
        if self._left >= 1.0 or not self._text:
            self._left -= 1.0
            self._text = self._render()
        return self._text


def create_ops_app(core: Core, metrics: Metrics, ask: Ask = call_here) -> FastAPI:
    """Build the application. `ask` calls a function on the event loop that holds the service's state."""
    app = BareApp()
    readiness = Readiness(core, ask)

    async def ready(_request: Request) -> Response:
        health = await readiness.health()
        return Response(encode(health), 200 if health["ready"] else 503, media_type=JSON)

    async def startup(request: Request) -> Response:
        return Response(encode({"started": True}), media_type=JSON) if readiness.was_ready else await ready(request)

    def live(_request: Request) -> Response:
        alive = core.alive()  # of the main loop, also if this one is another
        return Response(encode({"alive": alive}), 200 if alive else 503, media_type=JSON)

    def version(_request: Request) -> Response:
        return Response(encode({"version": __version__}), media_type=JSON)

    scrapes = MetricsText(lambda: generate_latest(metrics.registry))

    def scrape(_request: Request) -> Response:
        return Response(scrapes.latest(), media_type=CONTENT_TYPE_LATEST)

    app.add_route("/readyz", ready)
    app.add_route("/startupz", startup)
    for path, handler in {"/livez": live, "/version": version, "/metrics": scrape}.items():
        app.add_route(path, on_loop(handler))
    answer_unknown_routes(app)
    return app


class BareApp(FastAPI):
    """An application without documentation pages, so that it answers only its listener's routes."""

    def __init__(self, tracing: Tracing | None = None) -> None:
        telemetry = tracing.telemetry if tracing is not None else untraced()
        super().__init__(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, telemetry=telemetry)


def answer_unknown_routes(app: FastAPI) -> None:
    """Answer unknown routes and methods with a Status whose message repeats the request."""

    async def not_found(request: Request, _error: Exception) -> Response:
        message = f"{request.method} {request.url.path[:200]}: no such route"
        return Response(status_body(404, message), 404, media_type=JSON)

    for status in (404, 405):
        app.add_exception_handler(status, not_found)


def on_loop(handler: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
    """Make a handler run on the event loop; a plain function would run in a thread and race with the state."""

    async def handle(request: Request) -> Response:
        return handler(request)

    return handle
