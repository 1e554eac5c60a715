# SPDX-License-Identifier: Apache-2.0
"""How the process ends: the first signal asks, the second does not; a handler that hangs cannot stay."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
HUNG = 1
"""Exit code where the loop hung."""


@contextlib.contextmanager
def stopping_on_signals(ask: Callable[[], object], patience_seconds: float) -> Iterator[None]:
    """Call `ask` at the first SIGTERM or SIGINT; end the process at the second, or where the block outlives patience.

    Plain signal handlers and a thread: a blocked event loop runs neither its own handlers nor its timers.
    Outside the main thread, which alone may have signal handlers, nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    last: list[threading.Timer] = []

    def heard(number: int, _frame: FrameType | None) -> None:
        if last:
            os._exit(128 + number)  # the shell's code for an end by signal
        last.append(threading.Timer(patience_seconds, os._exit, (HUNG,)))
        last[0].daemon = True
        last[0].start()
        ask()

    before = {number: signal.signal(number, heard) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for timer in last:
            timer.cancel()
