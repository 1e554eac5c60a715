# SPDX-License-Identifier: Apache-2.0
"""Repeats a filter decision without a node for reasons that may have ended already.

See docs/reference/sharing-and-memory.md#memory-budgets.

Only gpu-usher counts the memory of shared GPUs, and it refuses nodes that are being changed. kube-scheduler retries a
pod when another pod goes or when a label of a node changes, often before our own watch has the event. A pod refused
then waits for the scheduler's five-minute flush if nothing else happens in the cluster. So filter waits shortly for
the watch, and does so seldom, because the scheduler has one loop.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from app.api.decision_line import Decision
from app.cluster.core import Core
from app.values.reasons import Code

WAIT_SECONDS = 0.5
"""A quarter of the scheduler's httpTimeout; that a deletion arrives by then is a guess."""
APART_SECONDS = 10.0
"""Between two waits for any pods: at most a twentieth of the scheduler's time. A pod with a nominated node always
waits: the scheduler asks about that node only after it has seen a victim go, so the wait is seldom in vain."""
LOOK_SECONDS = 0.01


PASSING = frozenset({Code.GPUMemoryBudgetExceeded, Code.MIGReconfiguring, Code.DriverUpgrading})
"""Reasons that end through an event that kube-scheduler sees too, perhaps before us.

Required node affinity keeps it from asking about nodes that are being changed; if it asks, our view is behind.
"""


def may_have_ended(decision: Decision) -> bool:
    """Tell whether no node fits and at least one was refused for a reason of PASSING."""
    return decision.kept == 0 and not PASSING.isdisjoint(decision.reasons)


class RetryOnChange:
    """Decides when to repeat a decision; `clock` returns monotonic seconds."""

    def __init__(self, core: Core, clock: Callable[[], float] = time.monotonic) -> None:
        self._core = core
        self._clock = clock
        self._not_before = float("-inf")

    async def changes(self, decision: Decision) -> AsyncIterator[None]:
        """Yield at each change of the state, as long as waiting may help."""
        started = self._clock()
        if not may_have_ended(decision) or self._core.settings.shadow:
            return
        if not decision.nominated:
            if started < self._not_before:
                return
            self._not_before = started + APART_SECONDS
        generation = self._core.generation
        while self._clock() - started < WAIT_SECONDS:
            await asyncio.sleep(LOOK_SECONDS)
            if self._core.generation != generation:
                generation = self._core.generation
                yield
