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

from app.server.protocol import Connections

BACKLOG = 2_048
"""Length of the accept queue, as in uvicorn; the kernel takes at most net.core.somaxconn, 4,096 by default."""
ACCEPTS_PER_TURN = 64
HANDSHAKES_PER_TURN = 8
"""Connections accepted in one turn of the event loop, without and with TLS. Other callbacks of the loop run before
their handshakes do."""
PAUSE_SECONDS = 0.02
"""Until the next try of a full listener, or after `accept` failed, as a rule because no file descriptor is left."""
SEND_BUFFER = 64 << 10
"""Bytes of one connection that the kernel takes; Linux doubles the number for its own overhead. It would take up to
4 MiB (net.ipv4.tcp_wmem), also for a peer that reads nothing (docs/reference/listeners.md#connection-limits)."""


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
        self._closed = False
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._listen()

    def close(self) -> None:
        """Stop accepting; handshakes in progress may take `goodbye_seconds` more."""
        self._closed = True
        self._loop.remove_reader(self._sock.fileno())
        for task in list(self._shared.handshakes):
            self._loop.call_later(self._shared.limits.goodbye_seconds, task.cancel)

    async def wait_closed(self) -> None:
        """Wait until all handshakes in progress have ended."""
        if self._shared.handshakes:
            await asyncio.wait(list(self._shared.handshakes))

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def _pause(self) -> None:
        """Stop watching the socket for a time: it stays readable, so the loop would call us in every turn."""
        self._loop.remove_reader(self._sock.fileno())
        self._loop.call_later(PAUSE_SECONDS, self._listen)

    def _accept(self) -> None:
        """Accept some waiting connections; a full listener closes another one for the first of them."""
        if self._shared.free < 1 and not self._shared.make_room(self._loop.time()):
            self._pause()
            return
        for _ in range(
            min(max(self._shared.free, 1), HANDSHAKES_PER_TURN if self._tls_arguments else ACCEPTS_PER_TURN)
        ):
            try:
                accepted, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._pause()
                return
            self._start_handshake(accepted)

    def _start_handshake(self, accepted: socket.socket) -> None:
        started, shared = self._loop.time(), self._shared
        accepted.setblocking(False)
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # Linux lets none inherit it
        task = self._loop.create_task(self._connect(accepted, started))
        shared.handshakes[task] = (started, accepted)
        task.add_done_callback(lambda task: shared.handshakes.pop(task, None))

    async def _connect(self, accepted: socket.socket, started: float) -> None:
        """Give the connection its protocol once its TLS handshake is done. A failed handshake only closes its own
        connection."""
        try:
            await self._loop.connect_accepted_socket(self._protocol, accepted, **self._tls_arguments)
        except (OSError, ValueError):  # a TLS error of the peer, or the peer has closed already
            if self._tls_arguments and self._loop.time() - started >= self._shared.limits.handshake_seconds - 0.1:
                self._shared.on_closed("handshake")
