# SPDX-License-Identifier: Apache-2.0
"""One listener: an application, a bound socket, and a uvicorn server whose connections are bounded."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from app.api.loopback_hosts import RequireAllowedHost, is_loopback
from app.server.accepting import Acceptor
from app.server.connections import Connections
from app.server.protocol import GuardedProtocol
from app.server.status_answers import NO_SNIFFING

GRACE_SECONDS = 10
"""For requests in progress at shutdown; without it one silent TLS client delays the exit by 30 s."""


class BoundedServer(uvicorn.Server):
    """A uvicorn server that handles no signals, since several share one process, and accepts up to its limit."""

    def __init__(self, config: uvicorn.Config, sock: socket.socket, shared: Connections) -> None:
        super().__init__(config)
        self._sock, self._shared = sock, shared
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `should_exit`."""
        await super().serve(sockets or [self._sock])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept."""
        self._loop = asyncio.get_running_loop()
        await self.lifespan.startup()
        protocol = partial(
            GuardedProtocol,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            shared=self._shared,
        )
        self.servers: list[Any] = [
            Acceptor(sock, protocol, self._shared, self.config.ssl) for sock in sockets or [self._sock]
        ]
        self.started = True

    def last_answers(self) -> None:
        """Close each connection after its current answer; for later requests the protocol asks `Connections.draining`.

        May be called from another thread than that of the server's loop.
        """
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._last_answers)

    def _last_answers(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, GuardedProtocol):
                connection.last_answer()


def make_server(
    app: ASGIApp,
    sock: socket.socket,
    context: ssl.SSLContext | None = None,
    shared: Connections | None = None,
) -> BoundedServer:
    """Make the server of one listener; with `context` it speaks TLS."""
    config = uvicorn.Config(
        RequireAllowedHost(app) if is_loopback(sock.getsockname()[0]) else app,
        loop="none",
        http="httptools",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        headers=[(name.decode(), value.decode()) for name, value in (NO_SNIFFING,)],
        timeout_graceful_shutdown=GRACE_SECONDS,
        ssl_context_factory=(lambda _config, _default: context) if context else None,
    )
    return BoundedServer(config, sock, shared or Connections())
