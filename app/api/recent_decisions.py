# SPDX-License-Identifier: Apache-2.0
"""The last decisions, for people who watch: a bounded ring; what a request pays for it is one append."""

import datetime as dt
import time
from collections import deque
from dataclasses import dataclass, replace
from itertools import islice

from app.admission.decision_annotation import MOST_ACTIONS
from app.api.decision_line import Decision

KEPT = 500
"""Decisions; one is under 1 kB. A person reads no more than that of a live tail."""


@dataclass(frozen=True, slots=True)
class RecentDecision:
    """One decision. `number`: of all since the start; `seconds`: of the wall clock; `cpu_ns`: what it took."""

    number: int
    seconds: float
    verb: str
    decision: Decision
    cpu_ns: int

    @property
    def at(self) -> str:
        """Write the time of the day, in UTC, with milliseconds."""
        return f"{dt.datetime.fromtimestamp(self.seconds, dt.UTC):%H:%M:%S.%f}"[:-3] + "Z"


class RecentDecisions:
    """The last decisions. `total`: how many there were since the start."""

    def __init__(self) -> None:
        self.total = 0
        self._ring: deque[tuple[float, str, Decision, int]] = deque(maxlen=KEPT)

    def note(self, verb: str, decision: Decision, cpu_ns: int) -> None:
        """Take a decision in."""
        self.total += 1
        if len(decision.actions) > MOST_ACTIONS:
            more = f"and {len(decision.actions) - MOST_ACTIONS + 1} more"
            decision = replace(decision, actions=(*decision.actions[: MOST_ACTIONS - 1], more))
        self._ring.append((time.time(), verb, decision, cpu_ns))

    def since(self, number: int) -> list[RecentDecision]:
        """List the decisions after that many, as far as they are kept, the oldest first."""
        gone = self.total - len(self._ring)
        skipped = max(number - gone, 0)
        kept = islice(self._ring, skipped, None)
        return [RecentDecision(gone + skipped + index, *each) for index, each in enumerate(kept, 1)]
