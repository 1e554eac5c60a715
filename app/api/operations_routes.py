# SPDX-License-Identifier: Apache-2.0
"""The operations listener: probes, metrics and version, as plain HTTP for the kubelet and Prometheus."""

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from app import __version__
from app.api.backend import Backend
from app.api.readiness import Ask, Readiness, call_here
from app.api.scrapes import MetricsText
from app.api.tracing import Tracing, untraced
from app.api.wire import encode, status_body
from app.telemetry.metrics import Metrics

JSON = "application/json"


def create_ops_app(backend: Backend, metrics: Metrics, ask: Ask = call_here) -> FastAPI:
    """Build the application. `ask` calls a function on the event loop that holds the service's state."""
    app = BareApp()
    readiness = Readiness(backend, ask)

    async def ready(_request: Request) -> Response:
        health = await readiness.health()
        return Response(encode(health), 200 if health["ready"] else 503, media_type=JSON)

    async def startup(request: Request) -> Response:
        return Response(encode({"started": True}), media_type=JSON) if readiness.was_ready else await ready(request)

    def live(_request: Request) -> Response:
        alive = backend.alive()  # of the main loop, also if this one is another
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
