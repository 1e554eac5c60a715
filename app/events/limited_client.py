# SPDX-License-Identifier: Apache-2.0
"""The API server's client for Events: every request is counted, and the next is put off until the limit allows it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from app.cluster.apiserver import MERGE, ApiServer
from app.events.planning import BURST, RATE, TokenBucket
from app.values.json_members import Object


class LimitedClient:
    """Requests of an ApiServer within RATE and BURST. The caller awaits `wait_for_turn` before each step.

    A step may be several requests, of which only the first was waited for; the next step then waits for them all.
    """

    def __init__(
        self,
        server: ApiServer,
        clock: Callable[[], float] = time.monotonic,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._server = server
        self._clock = clock
        self._rest = rest
        self._bucket = TokenBucket(BURST, clock())

    async def wait_for_turn(self, end: float) -> bool:
        """Wait until the limit allows a request; return False at once where this is not before the second `end`."""
        now = self._clock()
        self._bucket = self._bucket.refilled(now, RATE, BURST)
        seconds = self._bucket.seconds_to_next(RATE)
        if now + seconds >= end:
            return False
        if seconds:
            await self._rest(seconds)
        return True

    async def read(self, path: str) -> Object | None:
        """Read an object; None if it does not exist. Raises ApiError."""
        self._count()
        return await self._server.read(path)

    async def create(self, path: str, document: Mapping[str, Any]) -> Object:
        """Create an object in the list at a path. Raises ApiError."""
        self._count()
        return await self._server.create(path, document)

    async def merge(self, path: str, change: Mapping[str, Any]) -> Object:
        """Change fields of an object by a merge patch. Raises ApiError."""
        self._count()
        return await self._server.patch(path, change, MERGE)

    def _count(self) -> None:
        self._bucket = self._bucket.taken()
