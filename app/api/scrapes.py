# SPDX-License-Identifier: Apache-2.0
"""The text of /metrics, rendered for each scrape up to a rate that no Prometheus exceeds."""

import time
from collections.abc import Callable

RENDERS_PER_SECOND = 20.0
"""Texts rendered per second; one takes some milliseconds, and a Prometheus scrapes every 15 s."""
BURST = 20.0
"""Texts rendered in a burst: several Prometheus servers and a person."""


class MetricsText:
    """Returns the text; above the rate it returns the last one again, whose bytes all callers share.

    `clock` returns monotonic seconds.
    """

    def __init__(self, render: Callable[[], bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._render, self._clock = render, clock
        self._left, self._at = BURST, clock()
        self._text = b""

    def latest(self) -> bytes:
        """Return the current text, or a recent one."""
        now = self._clock()
        self._left = min(BURST, self._left + (now - self._at) * RENDERS_PER_SECOND)
        self._at = now
        if self._left >= 1.0 or not self._text:
            self._left -= 1.0
            self._text = self._render()
        return self._text
