# SPDX-License-Identifier: Apache-2.0
"""Callers of a running server: what they send slowly or never take, and what the metrics say became of them."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from starlette.types import ASGIApp

from app.server.connections import Connections
from app.server.limits import Limits
from app.server.listener import make_server
from app.server.listeners import bind
from tests.api.sockets import TIMEOUT_SECONDS, answer, connect, post
from tests.running import Running

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = post()[:-40]


def closed_for(clients: Running, why: str) -> float:
    """Read how many connections were closed for this."""
    line = f'gpu_usher_closed_connections_total{{waiting_for="{why}"}} '
    matches = (row for row in clients.ops.get("/metrics").text.splitlines() if row.startswith(line))
    return float(next(matches, "0 0").split()[1])


def deaf(port: int | None, asked: bytes) -> socket.socket:
    """Connect with a tiny window, ask, and read nothing."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    sock.connect(("127.0.0.1", port or 0))
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        sock.sendall(asked)
    return sock


def served(port: int | None, ca: Path | None, asked: bytes = b"") -> int:
    """Ask over a connection of its own; gives the status, 0 where there was none in the bounded time."""
    with contextlib.suppress(OSError), connect(port, ca) as sock:
        sock.sendall(asked or post())
        return answer(sock)[0]
    return 0


@contextlib.contextmanager
def serving(app: ASGIApp, limits: Limits = Limits()) -> Iterator[int]:  # noqa: B008  # frozen
    """Serve an application on a port of its own; what is still in hand at the end is cancelled."""
    sock = bind("127.0.0.1", 0, "--port")
    server = make_server(app, sock, shared=Connections(limits))
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
    """Do something again and again, in a thread, as long as the block lasts."""
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
    """Act until the peer ends the connection; tells whether it did within the bound."""
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
