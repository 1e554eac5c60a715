# SPDX-License-Identifier: Apache-2.0
"""One listener: an application, a bound socket, and a uvicorn server whose connections are bounded.

The operations listener is served in a thread with its own event loop, so that probes do not wait for the main loop.
"""

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.allowed_callers import RequireAllowedHost, is_loopback
from app.server.accepting import Acceptor
from app.server.protocol import FOLLOWS, NO_SNIFFING, Connections, GuardedProtocol
from app.values.computations import T

GRACE_SECONDS = 10
"""For requests in progress at shutdown; without it one silent TLS client delays the exit by 30 s."""


class BoundedServer(uvicorn.Server):
    """A uvicorn server that handles no signals, since several share one process, and accepts up to its limit."""

    def __init__(self, config: uvicorn.Config, sock: socket.socket, shared: Connections) -> None:
        super().__init__(config)
        self._sock, self._shared = sock, shared

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `should_exit`."""
        await super().serve(sockets or [self._sock])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
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
        self._shared.watch(asyncio.get_running_loop())
        self.started = True


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


LOOP_SECONDS = 0.5
"""Time for the main loop to run a call of ours: a quarter of the timeout that our manifests give a readiness probe."""
PAUSE_SECONDS = 0.0002
"""Sleep before a request, once WORK_SECONDS have passed. A thread that does I/O releases the interpreter lock too
shortly for another thread to wake up and take it. Without a pause, the p99 of admissions was 1.8 s beside one client
that pipelined on the operations port (docs/decisions/0031-serve-operations-from-a-thread-of-their-own.md)."""
WORK_SECONDS = 0.0005
"""The thread answers requests for this long between two pauses. Cheap requests share one pause: with a pause before
every request, a probe beside 200 callers of /metrics took up to 0.5 s."""
LATER_REQUEST_SECONDS = 0.001
"""Sleep before each request of a connection but its first, over all connections together. It is the shortest sleep of
the event loop, whose timers have a resolution of 1 ms."""


def call_on_loop(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], T]], Awaitable[T]]:
    """Return a function that runs another one on `loop`. It raises TimeoutError after LOOP_SECONDS."""

    async def ask(call: Callable[[], T]) -> T:
        async def run() -> T:
            return call()

        answer = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), loop))
        return await asyncio.wait_for(answer, LOOP_SECONDS)

    return ask


def yield_to_main_loop(app: ASGIApp) -> ASGIApp:
    """Wrap an application so that its thread sleeps between requests, and the main loop runs meanwhile.

    The first request of a connection is served at once; later ones are served one at a time over all connections. The
    kubelet opens a new connection for each probe, so a probe never waits for a client that pipelines.
    """
    slept_at = 0.0
    turn = asyncio.Lock()

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal slept_at
        if scope.get(FOLLOWS):
            async with turn:
                await asyncio.sleep(LATER_REQUEST_SECONDS)
        elif time.monotonic() - slept_at > WORK_SECONDS:
            time.sleep(PAUSE_SECONDS)  # the whole thread sleeps, not only this request
            slept_at = time.monotonic()
        await app(scope, receive, send)

    return serve


async def serve_in_thread(server: BoundedServer, name: str) -> None:
    """Run `server` in a thread called `name` until its `should_exit` is set. Errors of the server are raised here."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def set_result(error: BaseException | None) -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=type(loop)) as runner:
                runner.run(server.serve())
        except BaseException as raised:  # noqa: BLE001  # every error is passed on to the main loop
            error = raised
        loop.call_soon_threadsafe(set_result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        server.should_exit = True
        await ended
        raise
