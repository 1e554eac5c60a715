# SPDX-License-Identifier: Apache-2.0
"""The deadline of a connection. Moving it later costs nothing: the timer runs at the old time and is then set again."""

import asyncio
import math
from collections.abc import Callable

TICK_SECONDS = 0.002
"""Tolerance: uvloop's clock and timers have a resolution of 1 ms."""


class Deadline:
    """Calls `on_expiry` with the loop's time once that is past `due`; `due` is infinite while nothing is awaited."""

    __slots__ = ("_loop", "_on_expiry", "_timer", "_timer_due", "due")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_expiry: Callable[[float], object]) -> None:
        self._loop, self._on_expiry = loop, on_expiry
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = math.inf
        self.due = math.inf

    def move(self, due: float) -> None:
        """Set the deadline to `due`, a time of the loop's clock in seconds."""
        self.due = due
        if due < self._timer_due:
            if self._timer is not None:
                self._timer.cancel()
            self._arm()

    def stop(self) -> None:
        """Remove the deadline."""
        self.due = self._timer_due = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._timer_due = self.due
        self._timer = self._loop.call_at(self.due, self._check)

    def _check(self) -> None:
        self._timer, self._timer_due = None, math.inf
        now = self._loop.time()
        if now >= self.due - TICK_SECONDS:
            self._on_expiry(now)
        elif self.due < math.inf:
            self._arm()
