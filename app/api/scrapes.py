# SPDX-License-Identifier: Apache-2.0
"""The text of /metrics: made anew for each scrape, unless there are more scrapes than any Prometheus makes."""

import time
from collections.abc import Callable

A_SECOND = 20.0
"""Texts made; one takes some milliseconds, and a Prometheus asks every 15 s."""
AT_ONCE = 20.0
"""So many after a rest: several Prometheuses, and a person who looks."""


class MetricsText:
    """Gives the text; beyond the rate the last one again, whose bytes all who ask share.

    `clock`: seconds, monotonic.
    """

    def __init__(self, render: Callable[[], bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._render, self._clock = render, clock
        self._left, self._at = AT_ONCE, clock()
        self._text = b""

    def latest(self) -> bytes:
        """Give the text of now, or that of a moment ago."""
        now = self._clock()
        self._left = min(AT_ONCE, self._left + (now - self._at) * A_SECOND)
        self._at = now
        if self._left >= 1.0 or not self._text:
            self._left -= 1.0
            self._text = self._render()
        return self._text
