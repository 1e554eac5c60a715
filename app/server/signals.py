# SPDX-License-Identifier: Apache-2.0
"""Signal handling: the first SIGTERM or SIGINT starts a graceful end, the second ends the process at once."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

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
