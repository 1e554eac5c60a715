# SPDX-License-Identifier: Apache-2.0
"""Long work on the event loop, in slices short enough for scheduling not to notice; one such job at a time."""

import asyncio
import time
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import TypeVar

from app.errors import WireError

SLICE_SECONDS = 0.001
"""Of work between two rests; half of what is allowed, since a step that is begun is finished."""
MOST_WAITING = 8
RETRY_SECONDS = 2
"""An explanation takes up to a second where a service follows 5,000 nodes (tests/bench)."""

T = TypeVar("T")


class Busy(WireError):
    """Too many wait already: 429, with Retry-After."""

    def __init__(self, what: str) -> None:
        super().__init__(429, f"{MOST_WAITING} {what} are waited for already, ask again in {RETRY_SECONDS} s")


class Turns:
    """Lets one job after the other run, in the order they came. `what`: the jobs, for those who come too many."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._turn = asyncio.Lock()
        self._waiting = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for one's turn.

        Raises Busy where too many wait.
        """
        if self._waiting > MOST_WAITING:
            raise Busy(self._what)
        self._waiting += 1
        try:
            async with self._turn:
                yield
        finally:
            self._waiting -= 1


async def in_slices(steps: Generator[None, None, T]) -> T:
    """Take the steps of a job, and rest between."""
    rested = time.perf_counter()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        if time.perf_counter() - rested > SLICE_SECONDS:
            await asyncio.sleep(0)
            rested = time.perf_counter()
