# SPDX-License-Identifier: Apache-2.0
"""The recent decisions that the web page shows: a bounded ring, to which a request appends once."""

import time
from collections import deque
from dataclasses import dataclass, replace
from itertools import islice

from app.admission.review import MOST_ACTIONS
from app.api.decision_line import Decision

MOST_DECISIONS = 500
"""Decisions in the ring; one is under 1 kB. Nobody reads more of a live list."""


@dataclass(frozen=True, slots=True)
class RecentDecision:
    """One decision. `number` counts from the start, `seconds` is Unix time, `cpu_ns` the CPU time of the answer."""

    number: int
    seconds: float
    verb: str
    decision: Decision
    cpu_ns: int


class RecentDecisions:
    """The recent decisions. `total` is their number since the start."""

    def __init__(self) -> None:
        self.total = 0
        self._ring: deque[tuple[float, str, Decision, int]] = deque(maxlen=MOST_DECISIONS)

    def note(self, verb: str, decision: Decision, cpu_ns: int) -> None:
        """Append a decision."""
        self.total += 1
        if len(decision.actions) > MOST_ACTIONS:
            more = f"and {len(decision.actions) - MOST_ACTIONS + 1} more"
            decision = replace(decision, actions=(*decision.actions[: MOST_ACTIONS - 1], more))
        self._ring.append((time.time(), verb, decision, cpu_ns))

    def since(self, number: int) -> list[RecentDecision]:
        """Return the decisions after the first `number` ones that are still in the ring, the oldest first."""
        gone = self.total - len(self._ring)
        skipped = max(number - gone, 0)
        entries = islice(self._ring, skipped, None)
        return [RecentDecision(gone + skipped + index, *entry) for index, entry in enumerate(entries, 1)]
