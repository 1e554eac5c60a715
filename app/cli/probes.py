# SPDX-License-Identifier: Apache-2.0
"""Runs the controllers of the command line, with HTTP probes for a kubelet."""

import asyncio
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Protocol

import typer
from fastapi import FastAPI, Request, Response

from app.api.operations_routes import BareApp, answer_unknown_routes, on_loop
from app.api.wire import encode
from app.cluster.apiserver import ApiServer
from app.server.listener import make_server
from app.server.listeners import bind
from app.telemetry.logs import start_logging
from app.values.json_members import JSON

Answer = Callable[[], tuple[bool, str]]
"""Returns whether all is well, and the problem if not."""


def probe_app(answers: dict[str, Answer]) -> FastAPI:
    """Build the application: each path answers 200 while all is well, else 503 and the problem."""
    app = BareApp()
    for path, answer in answers.items():
        app.add_route(path, on_loop(partial(_respond, answer)))
    answer_unknown_routes(app)
    return app


def _respond(answer: Answer, _request: Request) -> Response:
    ok, problem = answer()
    return Response(encode({"ok": ok, "why": problem}), 200 if ok else 503, media_type=JSON)


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
    """What keeps objects of a cluster as they should be: the certificates, or the ResourceClaimTemplates.

    Without a finished turn for `stuck_seconds` it counts as stuck.
    """

    stuck_seconds: float

    async def try_turn(self) -> tuple[str | None, float]:
        """Take a turn; return its problem and the seconds to the next.

        The problem is empty after success, and None if the turn is to be taken again, so that the last one counts.
        """
        ...


class Turns:
    """Runs the turns of a controller, and answers a kubelet's probes. `clock` is a monotonic one."""

    def __init__(self, controller: ClusterController, clock: Callable[[], float] = time.monotonic) -> None:
        self._controller = controller
        self._clock = clock
        self._ended = clock()
        self._problem = "no run has completed yet"
        self.probes: dict[str, Answer] = {"/livez": self._alive, "/readyz": lambda: (not self._problem, self._problem)}

    async def run(self, stop: asyncio.Event) -> None:
        """Run turns until `stop` is set."""
        while not stop.is_set():
            problem, seconds = await self._controller.try_turn()
            self._problem = self._problem if problem is None else problem
            self._ended = self._clock()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), seconds)

    def _alive(self) -> tuple[bool, str]:
        """Tell whether turns end, even with errors: a restart does not help against an API server that fails."""
        silent = self._clock() - self._ended
        alive = silent < self._controller.stuck_seconds
        return alive, "" if alive else f"no run has completed for {silent:.0f} s"


def run_controller(controller: ClusterController, server: ApiServer, probe_port: int | None) -> None:
    """Run a controller until SIGTERM or SIGINT; then close its client."""
    turns = Turns(controller)

    async def run() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with server:
            await turns.run(stop)

    writer = start_logging(not sys.stderr.isatty())
    try:
        with serve_probes(probe_port, turns.probes):
            asyncio.run(run())
    finally:
        writer.finish()
