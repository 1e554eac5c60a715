# SPDX-License-Identifier: Apache-2.0
"""Clients of a running server that send slowly or never read, and what the metrics say became of them."""

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from starlette.types import ASGIApp

from app.server.limits import Limits
from app.server.listener import make_server
from app.server.listeners import bind
from app.server.protocol import Connections
from tests.api.sockets import TIMEOUT_SECONDS, answer, connect, post
from tests.running import Running

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = post()[:-40]


def closed_for(clients: Running, why: str) -> float:
    """Return the number of connections that were closed for this reason."""
    line = f'gpu_usher_closed_connections_total{{waiting_for="{why}"}} '
    matches = (row for row in clients.ops.get("/metrics").text.splitlines() if row.startswith(line))
    return float(next(matches, "0 0").split()[1])


def connect_without_reading(port: int | None, request: bytes) -> socket.socket:
    """Connect with a tiny receive window, send a request, and read nothing."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    sock.connect(("127.0.0.1", port or 0))
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        sock.sendall(request)
    return sock


def served(port: int | None, ca: Path | None, request: bytes = b"") -> int:
    """Send a request over a connection of its own; return the status, or 0 without an answer in the bounded time."""
    with contextlib.suppress(OSError), connect(port, ca) as sock:
        sock.sendall(request or post())
        return answer(sock)[0]
    return 0


@contextlib.contextmanager
def serving(
    app: ASGIApp,
    limits: Limits = Limits(),  # noqa: B008  # frozen
    context: ssl.SSLContext | None = None,
) -> Iterator[int]:
    """Serve an application on a port of its own; requests that still run at the end are cancelled."""
    sock = bind("127.0.0.1", 0, "--port")
    server = make_server(app, sock, context, Connections(limits))
    server.config.timeout_graceful_shutdown = 0
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(TIMEOUT_SECONDS)


@contextlib.contextmanager
def repeating(act: Callable[[], object], pause: float) -> Iterator[None]:
    """Repeat an action in a thread for as long as the block lasts."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(pause):
            act()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(TIMEOUT_SECONDS)


def ended(sock: socket.socket, act: Callable[[], object], pause: float, seconds: float) -> bool:
    """Repeat an action until the peer ends the connection; return whether it did within the bound."""
    sock.settimeout(pause)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            act()
            if not sock.recv(65536):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False
