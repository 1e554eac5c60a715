# SPDX-License-Identifier: Apache-2.0
"""The watchdog: a thread that logs the stack of the event loop when the loop is blocked."""

import asyncio
import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from app.telemetry.logs import event

BLOCKED_SECONDS = 0.25
"""A quarter of the shortest webhook timeout."""
ASK_SECONDS = 0.1
"""Interval of the checks, in seconds; a guess, 10 wake-ups per second."""
QUIET_SECONDS = 10.0
"""Shortest interval between two stacks in the log; a guess."""
FRAMES = 12
"""Innermost frames that are logged; the outer ones are the server's and always the same."""


@contextlib.contextmanager
def watch_event_loop(
    on_blocked: Callable[[], object] = lambda: None, limit_seconds: float = BLOCKED_SECONDS
) -> Iterator[None]:
    """Watch the running event loop while the block runs; the thread calls `on_blocked` once for each block."""
    loop, stopped = asyncio.get_running_loop(), threading.Event()
    args = (loop, threading.get_ident(), stopped, on_blocked, limit_seconds)
    thread = threading.Thread(target=_watch, args=args, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()


def _watch(
    loop: asyncio.AbstractEventLoop,
    thread: int,
    stopped: threading.Event,
    on_blocked: Callable[[], object],
    limit_seconds: float,
) -> None:
    logged_at, not_logged = -QUIET_SECONDS, 0
    while not stopped.wait(ASK_SECONDS):
        loop_answered = threading.Event()
        try:
            loop.call_soon_threadsafe(loop_answered.set)
        except RuntimeError:  # the loop is closed
            return
        if loop_answered.wait(limit_seconds) or stopped.is_set():
            continue
        stack = _stack_of(thread)
        on_blocked()
        if time.monotonic() - logged_at >= QUIET_SECONDS:
            event("event loop blocked", logging.WARNING, over_seconds=limit_seconds, stack=stack, not_logged=not_logged)
            logged_at, not_logged = time.monotonic(), 0
        else:
            not_logged += 1
        while not loop_answered.wait(ASK_SECONDS) and not stopped.is_set():
            pass  # each block is reported once


def _stack_of(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    lines = traceback.format_stack(frame)[-FRAMES:] if frame else []
    return "".join(lines).rstrip()
