# SPDX-License-Identifier: Apache-2.0
"""Keeps the history of the use of GPUs that scrapes of DCGM exporters amount to, in memory and within bounds.

It begins with the process, and what was not seen stays unknown (docs/reference/usage.md#without-a-prometheus).
"""

import asyncio
import datetime as dt
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from app.cluster.pausing import pausing
from app.knowledge.dcgm import DCGM, UsageMetrics
from app.telemetry.logs import event, now
from app.usage.history import MINUTE, History, Hold
from app.usage.looks import (
    PACKED,
    SLOT_MINUTES,
    SLOT_SECONDS,
    Look,
    Slot,
    UseSample,
    looks_of,
    pack,
    windows_of,
    with_look,
)
from app.usage.queries import HOUR, MOST_SERIES, window_seconds
from app.usage.reading import HoldKey, UnitLabels, hold_of, sorted_holds
from app.values.errors import SourceError

KEPT_SECONDS = 7 * 86_400
"""Seconds for which slots are kept: `gpu-usher usage` looks back a week by default."""
MOST_SLOTS = 4_000_000
"""Slots of all holds together, of 20 bytes each: 5,900 GPUs for seven days. Beyond that the oldest are given up."""
MOST_POINTS = 250_000
"""Windows of all holds in one answer, which lies in the memory of the service, with 250 bytes each (measured)."""
SILENT_SECONDS = 180
"""After this time without an answer of any exporter a history cannot be read, as health is forgotten then."""
HOUR_SLOTS = HOUR // SLOT_SECONDS


@dataclass(slots=True)
class _Record:
    """What is kept of a hold: its past slots, packed one after another, and the one that is not over, by its number."""

    unit: UnitLabels
    shared: bool = False
    number: int = 0
    open: Slot = field(default_factory=Slot)
    past: bytearray = field(default_factory=bytearray)


class ExporterHistory:
    """The use of GPUs, as a source of histories (IdleSource). `origin` are the exporters that are scraped.

    `wall` gives the seconds since the epoch. `on_unrecorded` is called with the number of holds in a look for which
    there was no room.
    """

    def __init__(
        self,
        origin: str,
        dcgm: DCGM,
        usage: UsageMetrics,
        on_unrecorded: Callable[[int], None] = lambda _: None,
        wall: Callable[[], float] = lambda: now().timestamp(),
    ) -> None:
        self.origin = origin
        self.usage = usage
        self._dcgm = dcgm
        self._on_unrecorded = on_unrecorded
        self._wall = wall
        self._lock = threading.Lock()  # looks and readers come in threads of their own
        self._records: dict[HoldKey, _Record] = {}
        self._slots = 0
        self._first_slot = 0
        self._minute: int | None = None
        self._since = 0
        self._unrecorded = 0

    def take(self, samples: Iterable[UseSample]) -> None:
        """Record one look at all exporters that have answered. A clock that was set back begins a new history."""
        looks = looks_of(samples, self._dcgm, self.usage)
        minute = int(self._wall() // MINUTE)
        with self._lock:
            if self._minute is None or minute < self._minute - 1:
                self._begin(minute)
            minute = self._minute = max(minute, self._minute or 0)
            self._forget_before(minute // SLOT_MINUTES - KEPT_SECONDS // SLOT_SECONDS)
            self._make_room(minute // SLOT_MINUTES, sum(key not in self._records for key in looks))
            self._unrecorded = sum(not self._record(key, look, minute) for key, look in looks.items())
        if self._unrecorded:
            self._on_unrecorded(self._unrecorded)

    def _begin(self, minute: int) -> None:
        if self._minute is not None:
            event("history of use begins anew: the clock was set back", 30, minutes=self._minute - minute)
        self._records.clear()
        self._slots, self._since, self._minute = 0, minute, minute
        self._first_slot = minute // SLOT_MINUTES

    def _record(self, key: HoldKey, look: Look, minute: int) -> bool:
        """Add what a look shows of a hold; tell whether there was room."""
        number = minute // SLOT_MINUTES
        record = self._records.get(key)
        if record is None:
            if len(self._records) >= MOST_SERIES:
                return False
            record = self._records[key] = _Record(look.unit, look.shared, number)
        elif record.number != number:
            record.past += pack(record.number, record.open, self.usage, bool(key[-1]))
            record.number, record.open = number, Slot()
            self._slots += 1
        record.shared |= look.shared
        record.open = with_look(record.open, look, minute % SLOT_MINUTES, self.usage)
        return True

    def _make_room(self, number: int, wanted: int) -> None:
        """Give up the oldest hours until the slots, and the holds with those that are wanted, are within the bounds."""
        while (len(self._records) + wanted > MOST_SERIES or self._slots > MOST_SLOTS) and self._first_slot < number:
            self._forget_before(min(number, self._first_slot + HOUR_SLOTS))

    def _forget_before(self, first_slot: int) -> None:
        """Forget the slots before a number, and the holds that have none left."""
        if first_slot <= self._first_slot:
            return
        self._first_slot = first_slot
        for key, record in list(self._records.items()):
            if record.number < first_slot:
                self._slots -= len(record.past) // PACKED.size
                del self._records[key]
            elif old := _size_before(record.past, first_slot):
                self._slots -= old // PACKED.size
                del record.past[:old]

    async def read(self, end: float, seconds: float, window: int | None = None) -> History:
        """Give the history of the `seconds` before `end`, both rounded to whole windows.

        `window` is their length in seconds; without it, that of `window_seconds` is taken. Raises SourceError.
        """
        if self._minute is None:
            raise SourceError("no exporter has answered yet")
        if (silent := self._wall() - self._minute * MINUTE) > SILENT_SECONDS + MINUTE:
            raise SourceError(f"no exporter has answered for {silent / MINUTE:.0f} minutes")
        return await asyncio.to_thread(self._read, int(end) // MINUTE * MINUTE, seconds, window)

    def _read(self, end: int, seconds: float, window: int | None) -> History:
        with self._lock:
            kept = list(self._copies(int((end - seconds) // SLOT_SECONDS)))
            problems = tuple(self._problems(end - seconds))
        window = window or window_seconds(seconds, len(kept), MOST_POINTS)
        start = end - max(1, round(seconds / window)) * window
        holds = (self._hold(key, copy, start, end, window) for key, copy in pausing(kept))
        return History(start, end, window, sorted_holds(holds), problems)

    def _copies(self, first_slot: int) -> Iterator[tuple[HoldKey, _Record]]:
        """Yield what is kept of the holds from a slot on, as it is now."""
        for key, record in self._records.items():
            if record.number >= first_slot:
                yield key, replace(record, past=record.past[_size_before(record.past, first_slot) :])

    def _hold(self, key: HoldKey, record: _Record, start: int, end: int, window: int) -> Hold:
        slots = record.past + pack(record.number, record.open, self.usage, bool(key[-1]))
        return hold_of(key, record.unit, record.shared, windows_of(slots, start, end, window))

    def _problems(self, start: float) -> Iterator[str]:
        """Say what is missing in a history."""
        since = MINUTE * max(self._since, self._first_slot * SLOT_MINUTES)
        if start < since:
            when = dt.datetime.fromtimestamp(since, dt.UTC)
            yield f"recorded since {when:%Y-%m-%d %H:%M} UTC by one replica of gpu-usher: what was before is unknown"
        if self._unrecorded:
            yield f"{self._unrecorded} pods' GPUs are not recorded: there is room for {MOST_SERIES}"

    async def close(self) -> None:
        """Do nothing: whoever scrapes the exporters has the connections."""


def _size_before(slots: bytearray, first_slot: int) -> int:
    """Give the size in bytes of the packed slots before a number."""
    positions = range(0, len(slots), PACKED.size)
    return PACKED.size * bisect_left(positions, first_slot, key=lambda at: PACKED.unpack_from(slots, at)[0])
