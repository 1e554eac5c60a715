# SPDX-License-Identifier: Apache-2.0
"""A second look at a pod that no node is offered to, where memory of shared GPUs is lacking (INTERFACES §8).

Only we count that memory, so kube-scheduler takes our word for it. It asks again when a pod goes, often before our own
watch has told us, and a pod refused then waits for its five-minute flush where nothing else happens in the cluster.
So we wait a moment for our view, seldom enough: the scheduler has one loop.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from app.api.backend import Backend
from app.api.decisions import Decision
from app.reasons import Code

WAIT_SECONDS = 0.5
"""A quarter of the scheduler's httpTimeout; that a deletion reaches us by then is a guess."""
APART_SECONDS = 10.0
"""Between two waits, of whatever pods: a twentieth of the scheduler's time at most. A pod for which others were evicted
always waits: we are asked about its node only once the scheduler has seen a share go there, so it is seldom in vain."""
LOOK_SECONDS = 0.01


def lacks_memory(decision: Decision) -> bool:
    """Tell whether no node was offered, and on one at least memory was the reason."""
    return decision.kept == 0 and Code.GPUMemoryBudgetExceeded in decision.reasons


class SecondLooks:
    """When to look again; `clock`: seconds, monotonic."""

    def __init__(self, backend: Backend, clock: Callable[[], float] = time.monotonic) -> None:
        self._backend = backend
        self._clock = clock
        self._not_before = float("-inf")

    async def news(self, decision: Decision) -> AsyncIterator[None]:
        """Come back at each change of the view while waiting may help."""
        begun = self._clock()
        if not lacks_memory(decision) or self._backend.shadow:
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
