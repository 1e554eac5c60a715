# SPDX-License-Identifier: Apache-2.0
"""Accepts connections up to the limit of a listener; the event loop's own servers accept without a bound.

A connection beyond the limit waits in the kernel's accept queue, where it costs this process nothing, until another
connection is closed.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any

from app.server.connections import Connections
from app.server.transports import SEND_BUFFER

BACKLOG = 2_048
"""Length of the accept queue, as in uvicorn; the kernel takes at most net.core.somaxconn, 4,096 by default."""
ACCEPTS_PER_TURN = 64
HANDSHAKES_PER_TURN = 8
"""Connections accepted in one turn of the event loop, without and with TLS. Other callbacks of the loop run before
their handshakes do."""
FULL_SECONDS = 0.05
"""Until a full listener tries again to close a connection; a place that becomes free is used at once."""
NO_DESCRIPTOR_SECONDS = 0.1
"""Until the next try after `accept` failed, which happens as a rule because no file descriptor is left."""


class Acceptor:
    """Accepts connections on one socket. uvicorn holds it in its list of servers. With `context` it speaks TLS."""

    def __init__(
        self,
        sock: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        shared: Connections,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock, self._protocol, self._shared = sock, protocol, shared
        self._tls_arguments: dict[str, Any] = {}
        if context is not None:
            limits = shared.limits
            self._tls_arguments = {
                "ssl": context,
                "ssl_handshake_timeout": limits.handshake_seconds,
                "ssl_shutdown_timeout": limits.goodbye_seconds,
            }
        self._paused: asyncio.TimerHandle | None = None
        self._closed = self._full = False
        shared.on_place_free = self._place_free
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._listen()

    def close(self) -> None:
        """Stop accepting; handshakes in progress may take `goodbye_seconds` more."""
        self._closed = True
        self._pause(0.0)
        for task in list(self._shared.handshakes):
            self._loop.call_later(self._shared.limits.goodbye_seconds, task.cancel)

    async def wait_closed(self) -> None:
        """Wait until all handshakes in progress have ended."""
        if self._shared.handshakes:
            await asyncio.wait(list(self._shared.handshakes))

    def _listen(self) -> None:
        self._paused, self._full = None, False
        if not self._closed:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def _pause(self, seconds: float) -> None:
        """Stop watching the socket for a time: it stays readable, so the loop would call us in every turn."""
        if self._paused is not None:
            self._paused.cancel()
        elif self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
        self._paused = self._loop.call_later(seconds, self._listen)

    def _place_free(self) -> None:
        if self._full and self._paused is not None:
            self._paused.cancel()
            self._listen()

    def _accept(self) -> None:
        """Accept some waiting connections.

        A full listener closes another connection only after it has accepted one, so it may hold one over its limit.
        """
        shared, now = self._shared, self._loop.time()
        for _ in range(HANDSHAKES_PER_TURN if self._tls_arguments else ACCEPTS_PER_TURN):
            if shared.over_limit:
                shared.make_room(now)
            if shared.over_limit:
                self._pause(FULL_SECONDS)
                self._full = True
                return
            try:
                accepted, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._pause(NO_DESCRIPTOR_SECONDS)
                return
            shared.make_room(now)
            self._start_handshake(accepted)

    def _start_handshake(self, accepted: socket.socket) -> None:
        started, shared = self._loop.time(), self._shared
        accepted.setblocking(False)
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # Linux lets none inherit it
        task = self._loop.create_task(self._connect(accepted, started))
        shared.handshakes[task] = (started, accepted)
        task.add_done_callback(self._handshake_ended)

    def _handshake_ended(self, task: asyncio.Task[None]) -> None:
        self._shared.handshakes.pop(task, None)
        self._place_free()

    async def _connect(self, accepted: socket.socket, started: float) -> None:
        """Give the connection its protocol once its TLS handshake is done. A failed handshake only closes its own
        connection."""
        try:
            await self._loop.connect_accepted_socket(self._protocol, accepted, **self._tls_arguments)
        except (OSError, ValueError):  # a TLS error of the peer, or the peer has closed already
            if self._tls_arguments and self._loop.time() - started >= self._shared.limits.handshake_seconds - 0.1:
                self._shared.on_closed("handshake")
