# SPDX-License-Identifier: Apache-2.0
"""The pulse of a watch: when it was heard, whether what it told is stale, how long to wait before the next try.

Times are seconds of a monotonic clock, passed in.
"""

from dataclasses import dataclass

LOST_SECONDS = 30.0
"""No established stream for so long: stale (docs/reference/listeners.md#staleness)."""
SILENT_SECONDS = 150.0
"""An established stream that says nothing for so long: stale; bookmarks come about once a minute."""
READ_SECONDS = 120.0
"""A stream silent for so long is given up and opened again: a half-open connection says nothing for ever."""
SETTLED_SECONDS = 60.0
"""A stream that lived so long was a good one: the next try starts afresh (CACHE-03)."""
FIRST_DELAY_SECONDS = 0.8
LONGEST_DELAY_SECONDS = 30.0


@dataclass(slots=True)
class StreamHealth:
    """`since`: when the stream was established, None while there is none. `lost`: when it went. `heard`: last word."""

    lost: float
    heard: float
    since: float | None = None

    def established(self, now: float) -> None:
        """Note that a stream is open."""
        self.since = self.heard = now

    def beat(self, now: float) -> None:
        """Note an event or a bookmark."""
        self.heard = now

    def broke(self, now: float) -> float:
        """Note that the stream ended; gives how long it lived, 0 if there was none."""
        lived = 0.0 if self.since is None else now - self.since
        if self.since is not None:
            self.since, self.lost = None, now
        return lived

    def stale(self, now: float) -> bool:
        """Tell whether what the stream told must not be relied on."""
        if self.since is None:
            return now - self.lost >= LOST_SECONDS
        return now - self.heard >= SILENT_SECONDS

    def age(self, now: float) -> float:
        """Say how long ago it was heard."""
        return max(0.0, now - self.heard)


class BackOff:
    """Delays between tries: doubled up to a limit, lengthened by chance so that replicas do not knock together.

    As client-go does, chance only lengthens (by up to as much again): six tries in 30 s at most.
    """

    def __init__(self) -> None:
        self._next = FIRST_DELAY_SECONDS

    def delay(self, lived: float, chance: float) -> float:
        """Give the seconds to wait after a stream that lived so long. `chance`: 0 to 1."""
        if lived >= SETTLED_SECONDS:
            self._next = FIRST_DELAY_SECONDS
            return 0.0
        found = min(self._next * (1 + chance), LONGEST_DELAY_SECONDS)
        self._next = min(self._next * 2, LONGEST_DELAY_SECONDS)
        return found
