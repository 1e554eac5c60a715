# SPDX-License-Identifier: Apache-2.0
"""The probes of `gpu-usher certs controller`: a listener in its own thread, with the limits of those of `serve`."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

from fastapi import FastAPI, Request, Response

from app.api.operations_routes import JSON, BareApp, answer_unknown_routes, on_loop
from app.api.wire import encode
from app.server.listener import make_server
from app.server.listeners import bind

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
