# SPDX-License-Identifier: Apache-2.0
"""Runs long work on the event loop in slices so short that scheduling is not delayed, one job at a time."""

import asyncio
import time
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager

from app.values.computations import T
from app.values.errors import WireError

SLICE_SECONDS = 0.001
"""CPU time between two rests: half of what is allowed, because a started step is finished. CPU time of the thread is
measured, because on a machine that stalls a slice of wall-clock time would end after one step, and a job of 5,000
steps would take 5,000 turns of a loop that is slow already."""
JOB_SECONDS = 20.0
"""For a job, its wait included; a slow one takes a second. Less than the 60 s that the command line waits."""
MOST_WAITING = 8
RETRY_SECONDS = 2
"""In the Retry-After header: an explanation takes up to a second with 5,000 nodes (tests/bench)."""


class TooManyJobs(WireError):
    """Too many jobs wait already: 429, with Retry-After."""

    def __init__(self, jobs: str) -> None:
        super().__init__(429, f"{MOST_WAITING} {jobs} are waiting already, try again in {RETRY_SECONDS} s")


class JobTimeout(WireError):
    """A job did not end in time: 503, which says whether it had started."""

    def __init__(self, jobs: str, seconds: float, started: bool) -> None:
        where = "it was still running" if started else "others were ahead of it"
        super().__init__(503, f"{jobs}: none within {seconds:g} s, {where}; try again, or ask for less")


class JobQueue:
    """Runs jobs one at a time, in the order they came. `jobs` names them in the error for too many.

    `seconds` limits a job, its wait included.
    """

    def __init__(self, jobs: str, seconds: float = JOB_SECONDS) -> None:
        self._jobs = jobs
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._waiting = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until the jobs before are done.

        Raises TooManyJobs if too many wait, and JobTimeout if the job does not end in time.
        """
        if self._waiting > MOST_WAITING:
            raise TooManyJobs(self._jobs)
        self._waiting += 1
        started = False
        try:
            async with asyncio.timeout(self._seconds) as deadline, self._turn:
                started = True
                yield
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise JobTimeout(self._jobs, self._seconds, started) from error
        finally:
            self._waiting -= 1


async def in_slices(steps: Generator[None, None, T]) -> T:
    """Run the steps of a job with rests between them, and return its result."""
    rested = time.thread_time()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if time.thread_time() - rested > SLICE_SECONDS:
            await asyncio.sleep(0)
            rested = time.thread_time()
