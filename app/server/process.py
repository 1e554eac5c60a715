# SPDX-License-Identifier: Apache-2.0
"""This process: its limit of open files, its C allocator, its signals, and the watchdog of its event loop."""

import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType

from app.telemetry.logs import event

TARGET_DESCRIPTORS = 4_096
"""Three listeners of 640 connections, and as many descriptors again for watches, logs and policies. Many systems start
processes with a limit of 1,024."""


def raise_descriptor_limit(target: int = TARGET_DESCRIPTORS) -> int:
    """Raise the soft limit to `target`, or to the hard limit if that is lower; return the limit then in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < target:
        with contextlib.suppress(OSError, ValueError):
            most = target if hard == resource.RLIM_INFINITY else min(hard, target)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt (glibc malloc.h M_TRIM_THRESHOLD, M_MMAP_THRESHOLD)."""
LARGE = 256 << 10
"""Bytes. Request bodies of this size and more are counted while they arrive (app/api/bodies.py)."""


def return_large_blocks() -> None:
    """Make glibc allocate large blocks outside the heap, where freed memory behind a live block cannot be returned.

    glibc raises its threshold to the largest block freed, up to 32 MiB, so that large request bodies then lie in the
    heap: after 50 minutes of attacks it held 356 MiB. Nothing happens on systems without glibc.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None)
            libc.mallopt(MMAP_THRESHOLD, LARGE)
            libc.mallopt(TRIM_THRESHOLD, LARGE)


SIGNALS = (signal.SIGTERM, signal.SIGINT)
HUNG = 1
"""Exit code if the event loop hangs at the end."""


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[], object], patience_seconds: float) -> Iterator[None]:
    """Call `stop` at the first signal; end the process at the second one, or `patience_seconds` after the first.

    Signal handlers of Python and a thread are used, because a blocked event loop runs neither handlers nor timers.
    Only the main thread may install signal handlers; in any other thread nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    timers: list[threading.Timer] = []

    def handle_signal(number: int, _frame: FrameType | None) -> None:
        if timers:
            os._exit(128 + number)  # the exit code that shells use for an end by signal
        timers.append(threading.Timer(patience_seconds, os._exit, (HUNG,)))
        timers[0].daemon = True
        timers[0].start()
        stop()

    previous = {number: signal.signal(number, handle_signal) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for timer in timers:
            timer.cancel()


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
        frame = sys._current_frames().get(thread)
        stack = "".join(traceback.format_stack(frame)[-FRAMES:]).rstrip() if frame else ""
        on_blocked()
        if time.monotonic() - logged_at >= QUIET_SECONDS:
            event("event loop blocked", logging.WARNING, over_seconds=limit_seconds, stack=stack, not_logged=not_logged)
            logged_at, not_logged = time.monotonic(), 0
        else:
            not_logged += 1
        while not loop_answered.wait(ASK_SECONDS) and not stopped.is_set():
            pass  # each block is reported once
