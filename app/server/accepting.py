# SPDX-License-Identifier: Apache-2.0
"""Accepting connections while there is room: the event loop's own servers accept without a bound.

Who finds no room waits in the kernel's queue, where it costs us nothing, until somebody has given way.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any

from app.server.connections import Connections

BACKLOG = 2_048
"""As uvicorn's; the kernel takes at most net.core.somaxconn, 4,096 by default."""
A_TURN = 64
HANDSHAKES_A_TURN = 8
"""Connections accepted in a turn of the loop: what else waits there has its turn before their handshakes."""
FULL_SECONDS = 0.05
"""Until we look again whether somebody can give way; a place that becomes free is taken at once."""
NO_DESCRIPTOR_SECONDS = 0.1
"""Until we try again after `accept` failed, for want of descriptors as a rule."""


class Acceptor:
    """Accepts on one socket, as long as it is open; uvicorn holds it as a server. `context` makes it speak TLS."""

    def __init__(
        self,
        sock: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        shared: Connections,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock, self._protocol, self._shared = sock, protocol, shared
        self._patience: dict[str, Any] = {}
        if context is not None:
            limits = shared.limits
            self._patience = {
                "ssl": context,
                "ssl_handshake_timeout": limits.handshake_seconds,
                "ssl_shutdown_timeout": limits.goodbye_seconds,
            }
        self._paused: asyncio.TimerHandle | None = None
        self._closed = self._full = False
        shared.left = self._place_free
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._listen()

    def close(self) -> None:
        """Accept nobody any more; handshakes in progress have as long as a goodbye."""
        self._closed = True
        self._pause(0.0)
        for task in list(self._shared.handshakes):
            self._loop.call_later(self._shared.limits.goodbye_seconds, task.cancel)

    async def wait_closed(self) -> None:
        """Wait for the end of the handshakes."""
        if self._shared.handshakes:
            await asyncio.wait(list(self._shared.handshakes))

    def _listen(self) -> None:
        self._paused, self._full = None, False
        if not self._closed:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def _pause(self, seconds: float) -> None:
        """Look away from the socket, which stays readable: the loop would call us in each of its turns."""
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
        """Accept some of those who wait; somebody gives way only to one who is there, so that we may be one over."""
        shared, now = self._shared, self._loop.time()
        for _ in range(HANDSHAKES_A_TURN if self._patience else A_TURN):
            if shared.over:
                shared.room(now)
            if shared.over:
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
            shared.room(now)
            self._take(accepted)

    def _take(self, accepted: socket.socket) -> None:
        began, shared = self._loop.time(), self._shared
        accepted.setblocking(False)
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._connect(accepted, began))
        shared.handshakes[task] = began
        task.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._shared.handshakes.pop(task, None)
        self._place_free()

    async def _connect(self, accepted: socket.socket, began: float) -> None:
        """Give a connection its protocol, TLS settled; what does not come to that is nobody's trouble but its own."""
        try:
            await self._loop.connect_accepted_socket(self._protocol, accepted, **self._patience)
        except (OSError, ValueError):  # of TLS: the peer's; else the peer is gone already
            if self._patience and self._loop.time() - began >= self._shared.limits.handshake_seconds - 0.1:
                self._shared.closed("handshake")
