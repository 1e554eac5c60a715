# SPDX-License-Identifier: Apache-2.0
"""An event loop that is really blocked: the log line about it, and the answers of the probes meanwhile."""

import asyncio
import logging
import threading
import time
from pathlib import Path

import pytest

from app.server.process import watch_event_loop
from tests.builders import make_service
from tests.controlplane.processes import wait_until
from tests.running import running


def block_the_loop(until: threading.Event) -> None:
    """Block the event loop, within bounds."""
    until.wait(20)


def test_blocked_loop_is_told_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    """Fault 41: the stack ends where the loop is blocked, so that the log names the function at fault."""
    heard = threading.Event()

    async def play() -> None:
        with watch_event_loop(heard.set, 0.05):
            await asyncio.sleep(0)
            block_the_loop(heard)
            await asyncio.sleep(0.3)  # the line is written after the call

    with caplog.at_level(logging.WARNING):
        asyncio.run(play())

    (stack,) = [str(record.__dict__) for record in caplog.records if "event loop blocked" in record.getMessage()]
    assert heard.is_set()
    assert "in block_the_loop" in stack
    assert "until.wait(20)" in stack


def test_loop_that_is_not_blocked_is_not_logged() -> None:
    late: list[float] = []

    async def play() -> None:
        with watch_event_loop(lambda: late.append(time.monotonic()), 5.0):
            for _ in range(30):
                await asyncio.sleep(0.01)

    asyncio.run(play())

    assert late == []


def test_probes_say_that_the_main_loop_is_blocked_while_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 41: /livez fails beyond the limit; /readyz answers, and says that the main loop could not be asked.

    See docs/reference/listeners.md#probes.
    """
    monkeypatch.setattr("app.cluster.core.HEARTBEAT_LIMIT_SECONDS", 2.0)
    over = threading.Event()
    with running(make_service(tmp_path)) as clients:
        before = [clients.ops.get(path).status_code for path in ("/livez", "/readyz")]
        clients.loop.call_soon_threadsafe(block_the_loop, over)
        try:
            busy = clients.ops.get("/readyz")
            wait_until("/livez fails", lambda: clients.ops.get("/livez").status_code == 503, 15)
            late = clients.ops.get("/readyz").status_code
        finally:
            over.set()
        wait_until("/livez is well again", lambda: clients.ops.get("/livez").status_code == 200, 60)
        after = clients.ops.get("/readyz")

    assert before == [200, 200]
    assert (busy.status_code, busy.json()["busy"], late) == (200, True, 503)
    assert (after.status_code, "busy" in after.json()) == (200, False)
