# SPDX-License-Identifier: Apache-2.0
"""An event loop that really stands still: what is logged of it, and what the probes say meanwhile."""

import asyncio
import logging
import threading
import time

import pytest

from app.watchdog import watching


def block_the_loop(until: threading.Event) -> None:
    """Stand still, within bounds."""
    until.wait(20)


def test_blocked_loop_is_told_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    """Fault 41: the stack ends where the loop stands, so that the log names the function to mend."""
    heard = threading.Event()

    async def play() -> None:
        with watching(heard.set, 0.05):
            await asyncio.sleep(0)
            block_the_loop(heard)
            await asyncio.sleep(0.3)  # the line is written after the call

    with caplog.at_level(logging.WARNING):
        asyncio.run(play())

    (stack,) = [str(record.__dict__) for record in caplog.records if "event loop blocked" in record.getMessage()]
    assert heard.is_set()
    assert "in block_the_loop" in stack
    assert "until.wait(20)" in stack


def test_loop_that_comes_round_is_not_told() -> None:
    told: list[float] = []

    async def play() -> None:
        with watching(lambda: told.append(time.monotonic()), 5.0):
            for _ in range(30):
                await asyncio.sleep(0.01)

    asyncio.run(play())

    assert told == []
