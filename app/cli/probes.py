# SPDX-License-Identifier: Apache-2.0
"""Runs the controllers of the command line, with HTTP probes for a kubelet."""

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Annotated, Protocol

import typer
from fastapi import FastAPI, Request, Response

from app.api.operations_routes import JSON, BareApp, answer_unknown_routes, on_loop
from app.api.wire import encode
from app.server.listener import make_server
from app.server.listeners import bind
from app.telemetry.logs import start_logging
from app.tls.kube_objects import KubeClient

Answer = Callable[[], tuple[bool, str]]
"""Returns whether all is well, and the problem if not."""


def probe_app(answers: dict[str, Answer]) -> FastAPI:
    """Build the application: each path answers 200 while all is well, else 503 and the problem."""
    app = BareApp()

    def handler(answer: Answer) -> Callable[[Request], Response]:
        def handle(_request: Request) -> Response:
            ok, problem = answer()
            return Response(encode({"ok": ok, "why": problem}), 200 if ok else 503, media_type=JSON)

        return handle

    for path, answer in answers.items():
        app.add_route(path, on_loop(handler(answer)))
    answer_unknown_routes(app)
    return app


@contextlib.contextmanager
def serve_probes(port: int | None, answers: dict[str, Answer]) -> Iterator[None]:
    """Serve probes on every address while the block runs; without a port nothing is served.

    Raises BadInput if the port cannot be bound.
    """
    if port is None:
        yield
        return
    sock = bind("::", port, "--probe-port")
    server = make_server(probe_app(answers), sock)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), name="probes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


ProbePort = Annotated[int | None, typer.Option(help="Port for /livez and /readyz; none by default.")]


class ClusterController(Protocol):
    """What keeps objects of a cluster as they should be: the certificates, or the ResourceClaimTemplates."""

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set."""
        ...

    def alive(self) -> tuple[bool, str]:
        """Tell whether it goes on, and the problem if not."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Tell whether the last turn succeeded, and the problem if not."""
        ...


def run_controller(controller: ClusterController, kube: KubeClient, probe_port: int | None) -> None:
    """Run a controller until SIGTERM or SIGINT, and close its client then."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    writer = start_logging(not sys.stderr.isatty())
    try:
        with serve_probes(probe_port, {"/livez": controller.alive, "/readyz": controller.ready}):
            controller.run(stop)
    finally:
        kube.close()
        writer.finish()
