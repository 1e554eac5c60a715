# SPDX-License-Identifier: Apache-2.0
"""A second look at a pod that no node is offered to, where what refuses it may have ended already.

See docs/reference/sharing-and-memory.md#memory-budgets.

Only we count the memory of shared GPUs, and we refuse nodes that are being changed. kube-scheduler asks again when a
pod goes, or when the label that tells of a change is edited, often before our own watch has told us, and a pod refused
then waits for its five-minute flush where nothing else happens in the cluster. So we wait a moment for our view,
seldom enough: the scheduler has one loop.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from app.api.backend import Backend
from app.api.decision_line import Decision
from app.values.reasons import Code

WAIT_SECONDS = 0.5
"""A quarter of the scheduler's httpTimeout; that a deletion reaches us by then is a guess."""
APART_SECONDS = 10.0
"""Between two waits, of whatever pods: a twentieth of the scheduler's time at most. A pod for which others were evicted
always waits: we are asked about its node only once the scheduler has seen a share go there, so it is seldom in vain."""
LOOK_SECONDS = 0.01


PASSING = frozenset({Code.GPUMemoryBudgetExceeded, Code.MIGReconfiguring, Code.DriverUpgrading})
"""Reasons that end by what kube-scheduler sees too, perhaps before us.

Required node affinity keeps it from asking about nodes that are being changed, so our view is behind where we say so.
"""


def may_have_ended(decision: Decision) -> bool:
    """Tell whether no node was offered, and on one at least the reason is one that passes."""
    return decision.kept == 0 and not PASSING.isdisjoint(decision.reasons)


class RetryOnChange:
    """When to look again; `clock`: seconds, monotonic."""

    def __init__(self, backend: Backend, clock: Callable[[], float] = time.monotonic) -> None:
        self._backend = backend
        self._clock = clock
        self._not_before = float("-inf")

    async def news(self, decision: Decision) -> AsyncIterator[None]:
        """Come back at each change of the view while waiting may help."""
        begun = self._clock()
        if not may_have_ended(decision) or self._backend.shadow:
            return
        if not decision.nominated:
            if begun < self._not_before:
                return
            self._not_before = begun + APART_SECONDS
        seen = self._backend.generation
        while self._clock() - begun < WAIT_SECONDS:
            await asyncio.sleep(LOOK_SECONDS)
            if self._backend.generation != seen:
                seen = self._backend.generation
                yield
