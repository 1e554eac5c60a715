# SPDX-License-Identifier: Apache-2.0
"""The health of a watch: when it was last heard, whether it is stale, and how long to wait before the next try.

Times are seconds of a monotonic clock, which callers pass in.
"""

from dataclasses import dataclass

LOST_SECONDS = 30.0
"""Without an open stream for this long the kind is stale (docs/reference/listeners.md#staleness)."""
SILENT_SECONDS = 150.0
"""An open stream without any event for this long is stale; bookmarks come about once a minute."""
READ_SECONDS = 120.0
"""A stream silent for this long is closed and opened again, because a half-open connection stays silent."""
SETTLED_SECONDS = 60.0
"""After a stream that lasted this long, the back-off starts afresh."""
FIRST_DELAY_SECONDS = 0.8
LONGEST_DELAY_SECONDS = 30.0


@dataclass(slots=True)
class StreamHealth:
    """The times of one stream: when it was opened (`since`, None if closed), lost, and last `heard`."""

    lost: float
    heard: float
    since: float | None = None

    def established(self, now: float) -> None:
        """Note that a stream is open."""
        self.since = self.heard = now

    def received(self, now: float) -> None:
        """Note an event or a bookmark."""
        self.heard = now

    def ended(self, now: float) -> float:
        """Note that the stream ended; return how long it lasted, 0 if there was none."""
        lifetime = 0.0 if self.since is None else now - self.since
        if self.since is not None:
            self.since, self.lost = None, now
        return lifetime

    def stale(self, now: float) -> bool:
        """Tell whether the watched objects may be outdated."""
        if self.since is None:
            return now - self.lost >= LOST_SECONDS
        return now - self.heard >= SILENT_SECONDS

    def age(self, now: float) -> float:
        """Return the seconds since the last event."""
        return max(0.0, now - self.heard)


class BackOff:
    """Delays between tries: doubled up to a limit, with random extra so that replicas do not reconnect together.

    As in client-go, the extra only lengthens a delay, by up to its own length: at most six tries in 30 s.
    """

    def __init__(self) -> None:
        self._next = FIRST_DELAY_SECONDS

    def delay(self, lifetime: float, chance: float) -> float:
        """Return the seconds to wait after a stream that lasted `lifetime` seconds. `chance` is random, 0 to 1."""
        if lifetime >= SETTLED_SECONDS:
            self._next = FIRST_DELAY_SECONDS
            return 0.0
        seconds = min(self._next * (1 + chance), LONGEST_DELAY_SECONDS)
        self._next = min(self._next * 2, LONGEST_DELAY_SECONDS)
        return seconds
