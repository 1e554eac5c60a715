# SPDX-License-Identifier: Apache-2.0
"""A listener in a thread and on an event loop of its own: its callers do not wait for what the main loop does."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from app.server.listener import BoundedServer
from app.server.protocol import FOLLOWS

T = TypeVar("T")
ANSWER_SECONDS = 0.5
"""For the main loop to come to a question of ours; a quarter of what our manifests give a readiness probe."""
PAUSE_SECONDS = 0.0002
"""Before a request, after WORK_SECONDS. A thread that does I/O gives the interpreter away too shortly for another to
wake up in time, and has it again first: beside one client that pipelined on the operations port the p99 of admissions
was 1.8 s without a pause (docs/decisions/0031-serve-operations-from-a-thread-of-their-own.md)."""
WORK_SECONDS = 0.0005
"""The thread answers requests for so long between two pauses. Cheap requests share one: with a pause before each, a
probe beside 200 callers of /metrics took up to 0.5 s."""
TURN_SECONDS = 0.001
"""Between two requests that follow others on their connections; the event loop's timers go by whole milliseconds."""


def asking(
    loop: asyncio.AbstractEventLoop, seconds: float = ANSWER_SECONDS
) -> Callable[[Callable[[], T]], Awaitable[T]]:
    """Make a function that has others called on a loop. It raises TimeoutError where that does not come to it."""

    async def ask(call: Callable[[], T]) -> T:
        async def run() -> T:
            return call()

        return await asyncio.wait_for(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), loop)), seconds)

    return ask


def making_way(app: ASGIApp) -> ASGIApp:
    """Wrap an application so that its thread sleeps between requests, in which time the main loop runs.

    A connection's first request is served at once; those that follow have a turn each, one at a time, whatever their
    number. The kubelet opens a connection for each probe, and so waits for nobody who pipelines.
    """
    slept = 0.0
    turn = asyncio.Lock()

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal slept
        if scope.get(FOLLOWS):
            async with turn:
                await asyncio.sleep(TURN_SECONDS)
        elif time.monotonic() - slept > WORK_SECONDS:
            time.sleep(PAUSE_SECONDS)  # the whole thread is to sleep, not this request alone
            slept = time.monotonic()
        await app(scope, receive, send)

    return serve


async def serve_aside(server: BoundedServer, name: str) -> None:
    """Serve until the server is told to end; `name` is that of the thread."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
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
        except BaseException as raised:  # noqa: BLE001  # the main loop hears of all
            error = raised
        loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        server.should_exit = True
        await ended
        raise
