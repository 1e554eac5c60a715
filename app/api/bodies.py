# SPDX-License-Identifier: Apache-2.0
"""Request bodies, read whole or refused whole: 413 past the route's limit, 503 where too many large ones are held."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from app.errors import WireError

ADMISSION_LIMIT = 8 << 20
"""Bytes; etcd keeps objects to about 1.5 MiB, a review holds two (INTERFACES §10, Body limits)."""
EXTENDER_LIMIT = 128 << 20
"""Bytes; 5,000 whole nodes are 102 MB (OPERATIONS §4.3)."""
LARGE = 8 << 20
LARGE_AT_ONCE = 2
MEDIUM = 1 << 18
"""Bytes; 5,000 names are 160 kB, most reviews 10 kB."""
MEDIUM_AT_ONCE = 16
"""Guess: 512 requests in hand, all others below MEDIUM, hold 256 MiB at most, besides the two LARGE ones."""
SHARES = ((MEDIUM, MEDIUM_AT_ONCE), (LARGE, LARGE_AT_ONCE))


class Bodies:
    """Reads bodies, and counts those in hand that are larger than most, by the size that they passed."""

    def __init__(self) -> None:
        self._held = dict.fromkeys((size for size, _ in SHARES), 0)

    @asynccontextmanager
    async def read(self, request: Request, limit: int) -> AsyncIterator[bytes]:
        """Read a body and hold it while it is answered.

        Raises WireError 413 past the limit, 503 for one large body too many, 400 if the caller went away.
        """
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > limit:
            raise _too_large(limit)
        parts: list[bytes] = []
        size, counted = 0, list[int]()
        try:
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                for passed, most in SHARES[len(counted) :]:
                    if size > passed:
                        self._take(passed, most)
                        counted.append(passed)
                parts.append(part)
            yield b"".join(parts) if len(parts) != 1 else parts[0]
        except ClientDisconnect as error:
            raise WireError(400, "body: the caller went away") from error
        finally:
            for passed in counted:
                self._held[passed] -= 1

    def _take(self, passed: int, most: int) -> None:
        if self._held[passed] >= most:
            raise WireError(503, f"busy with {most} bodies over {passed / (1 << 20):g} MiB")
        self._held[passed] += 1


def _too_large(limit: int) -> WireError:
    return WireError(413, f"body: larger than {limit >> 20} MiB, wants at most that")
