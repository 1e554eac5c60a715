# SPDX-License-Identifier: Apache-2.0
"""A history that is recorded look by look: what a look at the exporters shows, and the slots that looks are kept in.

A slot is fifteen minutes of one hold. It has a bit for each of its minutes, so that windows of any length, which begin
at any minute, count the same minutes of it as a Prometheus would.
"""

import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.knowledge.dcgm import DCGM, Measure, UsageMetrics
from app.kube.pod_limits import LONGEST_NAME
from app.usage.history import MINUTE, Window
from app.usage.queries import Figure
from app.usage.reading import HoldKey, UnitLabels, activity_row, hold_key, is_shared, unit_of_labels, window_of

SLOT_MINUTES = 15
"""Minutes of a slot: the shortest window of a history (WINDOWS of queries.py), and fewer than the bits of two bytes."""
SLOT_SECONDS = SLOT_MINUTES * MINUTE
PACKED = struct.Struct("<IHHfHHf")
"""A slot of the past, 20 bytes: its number, the minutes held and known, the sum of the activity in minutes, the highest
activity and extent, the most memory in MiB."""
SHARE_SCALE = 10_000
"""A share is kept in hundredths of a percent, rounded up: one percent, up to which a GPU is idle, is exact."""
UNKNOWN_SHARE, UNKNOWN_MEMORY = 0, -1.0
"""Below every known value: a share is kept as one more than its hundredths of a percent."""

UseSample = tuple[str, Mapping[str, str], float]
"""A metric, its labels, and a value, which may be any float."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at all exporters shows of a hold: its values by the name of the metric's row, none below zero."""

    unit: UnitLabels
    shared: bool
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Slot:
    """The slot of a hold that is not over yet: minutes as bits, and sums and peaks by the name of the metric's row."""

    held: int = 0
    known: Mapping[str, int] = field(default_factory=dict)
    sums: Mapping[str, float] = field(default_factory=dict)
    peaks: Mapping[str, float] = field(default_factory=dict)

    def figure(self, figure: Figure, name: str) -> float | None:
        """Give a figure as an answer of Prometheus would have it."""
        if figure is Figure.Known:
            return float(self.known.get(name, 0).bit_count())
        return (self.sums if figure is Figure.Sum else self.peaks).get(name)


def looks_of(samples: Iterable[UseSample], dcgm: DCGM, usage: UsageMetrics) -> Mapping[HoldKey, Look]:
    """Read one look at all exporters. Of several values of one GPU the highest counts.

    NaN and negative values say nothing, and a name longer than Kubernetes allows names no pod.
    """
    rows = {metric: row.name for row in usage.rows for metric in row.metrics}
    looks: dict[HoldKey, Look] = {}
    for metric, labels, value in samples:
        key = hold_key(labels, dcgm, usage)
        if key is None or max(map(len, key)) > LONGEST_NAME:
            continue
        if (look := looks.get(key)) is None:
            unit = UnitLabels(*(text[:LONGEST_NAME] for text in unit_of_labels(labels, dcgm, usage)))
            look = looks[key] = Look(unit, is_shared(labels, usage), {})
        if value >= 0:
            look.values[rows[metric]] = max(value, look.values.get(rows[metric], 0.0))
    return looks


def with_look(slot: Slot, look: Look, minute: int, usage: UsageMetrics) -> Slot:
    """Add a look in a minute of the slot: the first one of each minute counts in the sum, every one for the peak."""
    bit = 1 << minute
    known, sums, peaks = dict(slot.known), dict(slot.sums), dict(slot.peaks)
    for row in usage.rows:
        value = look.values.get(row.name)
        if value is None:
            continue
        peaks[row.name] = max(value, peaks.get(row.name, 0.0))
        if row.measure is Measure.Activity and not known.get(row.name, 0) & bit:
            known[row.name] = known.get(row.name, 0) | bit
            sums[row.name] = sums.get(row.name, 0.0) + min(value, row.full or value)
    return Slot(slot.held | bit, known, sums, peaks)


def pack(number: int, slot: Slot, usage: UsageMetrics, sliced: bool) -> bytes:
    """Write a slot as it is kept; `number` counts slots since the epoch, `sliced` tells that it is of an instance."""
    held = slot.held.bit_count()
    row = activity_row(held, slot.figure, usage, sliced)
    window = window_of(number, held, slot.figure, usage, sliced)
    memory = UNKNOWN_MEMORY if window.memory_mib is None else min(window.memory_mib, _MOST_FLOAT)
    known = slot.known[row.name] if row else 0
    shares = _packed_share(window.peak), _packed_share(window.extent)
    return PACKED.pack(number, slot.held, known, window.active, *shares, memory)


def windows_of(packed: bytes | bytearray, start: int, end: int, window_seconds: int) -> Iterator[Window]:
    """Yield the windows of a hold from its packed slots.

    A slot that lies in two windows counts in each by its minutes there, its sum in proportion, and its peaks in both: a
    GPU that worked in a part of a slot is not idle in the other.
    """
    windows: dict[int, _Tally] = {}
    for slot, held, known, active, *peaks in PACKED.iter_unpack(packed):
        opens = slot * SLOT_SECONDS - start
        first, last = opens // window_seconds, (opens + SLOT_SECONDS - 1) // window_seconds
        for number in range(first, last + 1):
            tally = windows.get(number)
            if tally is None:
                tally = windows[number] = _Tally()
            if first == last:
                tally.add(held.bit_count(), known.bit_count(), active, peaks)
                continue
            within = _bits_before((number + 1) * window_seconds - opens) & ~_bits_before(
                number * window_seconds - opens
            )
            if minutes := (held & within).bit_count():
                measured = (known & within).bit_count()
                tally.add(minutes, measured, active * measured / (known.bit_count() or 1), peaks)
    count = round((end - start) / window_seconds)
    return (tally.window(number) for number, tally in windows.items() if 0 <= number < count)


def _bits_before(seconds: int) -> int:
    """Give the bits of the minutes of a slot that begin before some seconds after its start."""
    return (1 << max(0, min(SLOT_MINUTES, -(-seconds // MINUTE)))) - 1


@dataclass(slots=True)
class _Tally:
    """The figures of a window as they come in, the peaks as they are packed."""

    held: int = 0
    known: int = 0
    active: float = 0.0
    peak: int = UNKNOWN_SHARE
    extent: int = UNKNOWN_SHARE
    memory: float = UNKNOWN_MEMORY

    def add(self, held: int, known: int, active: float, peaks: Sequence[Any]) -> None:
        """Add a part of a slot."""
        self.held += held
        self.known += known
        self.active += active
        self.peak = max(self.peak, peaks[0])
        self.extent = max(self.extent, peaks[1])
        self.memory = max(self.memory, peaks[2])

    def window(self, number: int) -> Window:
        """Make the window of what was added."""
        memory = None if self.memory < 0 else self.memory
        return Window(number, self.held, self.known, self.active, _share(self.peak), _share(self.extent), memory)


def _packed_share(share: float | None) -> int:
    return UNKNOWN_SHARE if share is None else 1 + math.ceil(round(share * SHARE_SCALE, 3))


def _share(packed: int) -> float | None:
    return None if packed == UNKNOWN_SHARE else (packed - 1) / SHARE_SCALE


_MOST_FLOAT = 3e38
"""Just below the largest number of four bytes."""
