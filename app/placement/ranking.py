# SPDX-License-Identifier: Apache-2.0
"""Ranking: the order of nodes by their totals, and the scheduler's integers that keep it.

See docs/reference/scores.md#scores-on-the-wire.
"""

import zlib
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

HIGHEST = 10
"""MaxExtenderPriority (k8s.io/kube-scheduler extender/v1 types.go)."""
RUNNER_UP = 9
"""Highest score of a node that is not the winner: the wire keeps the engine's own choice
(docs/reference/scores.md#scores-on-the-wire)."""
NAMES_KEPT = 1 << 14
"""Nodes whose place among equals is remembered: three times the largest fleet of the budgets, some 2 MB."""
LONGEST_KEPT = 253
"""Characters of a name that is remembered: no node has a longer one (a DNS subdomain), whoever asks about what."""
SPANS_KEPT = 64
"""Spans between the lowest and the highest total of a question whose steps are remembered: as many as demands are."""
TOTALS_KEPT = 4096
"""Totals of one span remembered; a fleet has some dozens at a time."""
ROUNDING = 1e-9
"""Further than this from an integer, double precision cannot have crossed it: the errors are some 1e-15."""


def order(value: float, name: str) -> tuple[float, tuple[int, str]]:
    """Give the sort key of a node: highest total, then lowest CRC-32 of the name, then the name.

    See docs/reference/scores.md#scores-on-the-wire.
    """
    return (-value, tie_break(name))


@lru_cache(NAMES_KEPT)
def tie_break(name: str) -> tuple[int, str]:
    """Give what decides between nodes of one total; the same names are asked about again and again."""
    return (zlib.crc32(name.encode()), name)


def first_in_order(names: Sequence[str], totals: Sequence[float]) -> int:
    """Find the position of the winner; only those with the highest total need their ties broken."""
    return _first(names, totals, max(totals))


def _first(names: Sequence[str], totals: Sequence[float], highest: float) -> int:
    tied = [totals.index(highest)]
    for _ in range(totals.count(highest) - 1):
        tied.append(totals.index(highest, tied[-1] + 1))
    longest = max(len(names[position]) for position in tied)
    breaks = tie_break if longest <= LONGEST_KEPT else tie_break.__wrapped__
    return min(tied, key=lambda position: breaks(names[position]))


def wire_scores(names: Sequence[str], totals: Sequence[float], ranked: bool) -> list[int]:
    """Turn totals into integers 0..10, one per node, the winner 10.

    Ranked: every other floor(9 x min-max). Proportional: round(10 x min-max), all 10 where all are equal.
    """
    low, high = min(totals), max(totals)
    if high == low:
        scores = [0 if ranked else HIGHEST] * len(totals)
    else:
        scores = _spans(low, high, ranked).steps(totals)
    if ranked:
        scores[_first(names, totals, high)] = HIGHEST
    return scores


class _Span:
    """The integers of the totals between two, computed once: the same few come back with every question."""

    def __init__(self, low: float, high: float, ranked: bool) -> None:
        self._low, self._high = low, high
        self._count, self._half = (RUNNER_UP, Fraction(0)) if ranked else (HIGHEST, Fraction(1, 2))
        self._known = {low: 0, high: self._count}

    def steps(self, totals: Sequence[float]) -> list[int]:
        """Give the integer of each total."""
        try:
            return list(map(self._known.__getitem__, totals))
        except KeyError:
            if len(self._known) > TOTALS_KEPT:
                self._known = {self._low: 0, self._high: self._count}
            self._known.update((each, self._step(each)) for each in set(totals) - self._known.keys())
            return list(map(self._known.__getitem__, totals))

    def _step(self, value: float) -> int:
        """Compute floor(count x (value - low) / (high - low) + half), exactly where rounding could cross an integer."""
        found = self._count * (value - self._low) / (self._high - self._low) + float(self._half)
        if abs(found - round(found)) > ROUNDING:
            return int(found)
        span = Fraction(self._high) - Fraction(self._low)
        return int(self._count * (Fraction(value) - Fraction(self._low)) / span + self._half)


_spans = lru_cache(SPANS_KEPT)(_Span)
