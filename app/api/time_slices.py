# SPDX-License-Identifier: Apache-2.0
"""Long work on the event loop, in slices short enough for scheduling not to notice; one such job at a time."""

import asyncio
import time
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import TypeVar

from app.values.errors import WireError

SLICE_SECONDS = 0.001
"""Of work between two rests; half of what is allowed, since a step that is begun is finished. CPU time of the thread:
on a machine that stalls, a slice by the clock would be over after one step, and a job of 5,000 steps take 5,000 turns
of a loop that is slow already."""
JOB_SECONDS = 20.0
"""For a job, the wait for its turn included; a slow one takes a second. Less than the 60 s that the command waits."""
MOST_WAITING = 8
RETRY_SECONDS = 2
"""An explanation takes up to a second where a service follows 5,000 nodes (tests/bench)."""

T = TypeVar("T")


class TooManyJobs(WireError):
    """Too many wait already: 429, with Retry-After."""

    def __init__(self, what: str) -> None:
        super().__init__(429, f"{MOST_WAITING} {what} are waited for already, ask again in {RETRY_SECONDS} s")


class JobTimeout(WireError):
    """A job that was not done in time: 503, which says what it waited for."""

    def __init__(self, what: str, seconds: float, begun: bool) -> None:
        where = "it was being worked on" if begun else "it waited for its turn behind others"
        super().__init__(503, f"{what}: none within {seconds:g} s, {where}; ask again, or where less is asked for")


class JobQueue:
    """Lets one job after the other run, in the order they came. `what`: the jobs, for those who come too many.

    `seconds`: for a job, from its coming to its end.
    """

    def __init__(self, what: str, seconds: float = JOB_SECONDS) -> None:
        self._what = what
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._waiting = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for one's turn.

        Raises Busy where too many wait, and Late where the job is not done in time.
        """
        if self._waiting > MOST_WAITING:
            raise TooManyJobs(self._what)
        self._waiting += 1
        begun = False
        try:
            async with asyncio.timeout(self._seconds) as deadline, self._turn:
                begun = True
                yield
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise JobTimeout(self._what, self._seconds, begun) from error
        finally:
            self._waiting -= 1


async def in_slices(steps: Generator[None, None, T]) -> T:
    """Take the steps of a job, and rest between."""
    rested = time.thread_time()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        if time.thread_time() - rested > SLICE_SECONDS:
            await asyncio.sleep(0)
            rested = time.thread_time()
