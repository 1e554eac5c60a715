# SPDX-License-Identifier: Apache-2.0
"""Request bodies, read whole or refused whole: 413 past the route's limit, 503 where too much is held."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO

from starlette.requests import ClientDisconnect, Request

from app.api.wire import ORDINARY
from app.values.errors import WireError

ADMISSION_LIMIT = 8 << 20
"""Bytes; etcd keeps objects to about 1.5 MiB, a review holds two (docs/reference/listeners.md#body-limits)."""
EXTENDER_LIMIT = 128 << 20
"""Bytes; 5,000 whole nodes are 102 MB (docs/reference/measurements.md#serving)."""
NODE_BYTES = 64 << 10
"""Of a whole node in an extender's body: three times what one of those 5,000 has."""
LARGE = 8 << 20
LARGE_AT_ONCE = 2
LARGE_BYTES_AT_ONCE = 144 << 20
"""Of the large ones: one of the largest, and a second of an ordinary fleet beside it. With all others, and answers with
as many whole nodes, they stay below the 512 MiB of the Deployment."""
SMALL_BYTES_AT_ONCE = 128 << 20
"""Of all bodies that are not large: a quarter of the Deployment's memory limit, 16 of the largest reviews.

Bodies up to ORDINARY bytes always find room: who sends others keeps none of them out, and 512 requests in hand are
128 MiB of them at most."""


def extender_limit(nodes: int) -> int:
    """Give the bytes that a question of the scheduler may have in a fleet of so many nodes.

    Names of 20,000 nodes fit into what any question may have; whole nodes come only as many as there are.
    """
    return min(EXTENDER_LIMIT, ADMISSION_LIMIT + NODE_BYTES * nodes)


class BodyReader:
    """Reads bodies, and counts the large ones in hand and the bytes of the others."""

    def __init__(self) -> None:
        self._large = 0
        self._large_bytes = 0
        self._small_bytes = 0

    @asynccontextmanager
    async def read(self, request: Request, limit: int) -> AsyncIterator[bytes]:
        """Read a body and hold it while it is answered.

        Raises WireError 413 past the limit, 503 for a third large body at once or where all together are too much, 400
        if the caller went away.
        """
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > limit:
            raise _too_large(limit)
        kept = BytesIO()
        first = b""
        size, small, large = 0, 0, 0
        try:
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                if ORDINARY < size <= LARGE:
                    self._take_small(size - small)
                    small = size
                elif size > LARGE:
                    self._take_large(size - large, new=not large)
                    large = size
                if size == len(part):
                    first = part  # the only one, as a rule
                elif part:
                    kept.write(first)
                    kept.write(part)
                    first = b""
            yield first or kept.getvalue()  # which is the buffer itself: no second copy of a large body
        except ClientDisconnect as error:
            raise WireError(400, "body: the caller went away") from error
        finally:
            self._large -= large > 0
            self._large_bytes -= large
            self._small_bytes -= small

    def _take_small(self, size: int) -> None:
        if self._small_bytes + size > SMALL_BYTES_AT_ONCE:
            raise WireError(503, f"busy with {SMALL_BYTES_AT_ONCE >> 20} MiB of bodies")
        self._small_bytes += size

    def _take_large(self, size: int, new: bool) -> None:
        if new and self._large >= LARGE_AT_ONCE:
            raise WireError(503, f"busy with {LARGE_AT_ONCE} bodies over {LARGE >> 20} MiB")
        if self._large_bytes + size > LARGE_BYTES_AT_ONCE:
            raise WireError(503, f"busy with {LARGE_BYTES_AT_ONCE >> 20} MiB of large bodies")
        self._large += new
        self._large_bytes += size


def _too_large(limit: int) -> WireError:
    return WireError(413, f"body: larger than {limit >> 20} MiB, wants at most that")
