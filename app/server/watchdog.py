# SPDX-License-Identifier: Apache-2.0
"""The watchdog: a thread that logs where the event loop stands when it has not come round for a while (fault 41)."""

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
"""Between two questions to the loop; guess, 10 wake-ups a second."""
QUIET_SECONDS = 10.0
"""Between two stacks in the log; guess."""
FRAMES = 12
"""Innermost frames of a stack; the outer ones are the server's, always the same."""


@contextlib.contextmanager
def watching(blocked: Callable[[], object] = lambda: None, limit_seconds: float = BLOCKED_SECONDS) -> Iterator[None]:
    """Watch the running event loop for as long as the block lasts. `blocked` hears of each time, from the thread."""
    loop, over = asyncio.get_running_loop(), threading.Event()
    args = (loop, threading.get_ident(), over, blocked, limit_seconds)
    thread = threading.Thread(target=_watch, args=args, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _watch(
    loop: asyncio.AbstractEventLoop,
    thread: int,
    over: threading.Event,
    blocked: Callable[[], object],
    limit_seconds: float,
) -> None:
    said, unsaid = -QUIET_SECONDS, 0
    while not over.wait(ASK_SECONDS):
        answered = threading.Event()
        try:
            loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # the loop is closed
            return
        if answered.wait(limit_seconds) or over.is_set():
            continue
        stack = _stack(thread)
        blocked()
        if time.monotonic() - said >= QUIET_SECONDS:
            event("event loop blocked", logging.WARNING, over_seconds=limit_seconds, stack=stack, not_logged=unsaid)
            said, unsaid = time.monotonic(), 0
        else:
            unsaid += 1
        while not answered.wait(ASK_SECONDS) and not over.is_set():
            pass  # one block is told once


def _stack(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    lines = traceback.format_stack(frame)[-FRAMES:] if frame else []
    return "".join(lines).rstrip()
