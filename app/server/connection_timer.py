# SPDX-License-Identifier: Apache-2.0
"""One timer a connection: it runs behind the due time, which moves with each request and costs nothing to move."""

import asyncio
import math
from collections.abc import Callable

TICK_SECONDS = 0.002
"""uvloop's clock and timers go by whole milliseconds."""


class Deadline:
    """Calls `late` once the loop's time is past `due`."""

    __slots__ = ("_late", "_loop", "_timer", "_when", "due")

    def __init__(self, loop: asyncio.AbstractEventLoop, late: Callable[[float], object]) -> None:
        self._loop, self._late = loop, late
        self._timer: asyncio.TimerHandle | None = None
        self._when = math.inf
        self.due = math.inf

    def move(self, due: float) -> None:
        """Be due at this time of the loop."""
        self.due = due
        if due < self._when:
            if self._timer is not None:
                self._timer.cancel()
            self._arm()

    def stop(self) -> None:
        """Never be due."""
        self.due = self._when = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._when = self.due
        self._timer = self._loop.call_at(self.due, self._look)

    def _look(self) -> None:
        self._timer, self._when = None, math.inf
        now = self._loop.time()
        if now >= self.due - TICK_SECONDS:
            self._late(now)
        elif self.due < math.inf:
            self._arm()
