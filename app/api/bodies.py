# SPDX-License-Identifier: Apache-2.0
"""Reads request bodies with limits: 413 above the limit of the route, 503 if too many bytes are held in all."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO

from starlette.types import Receive, Scope

from app.api.wire import ORDINARY
from app.values.errors import WireError

ADMISSION_LIMIT = 8 << 20
"""Bytes. etcd limits objects to about 1.5 MiB, and a review holds two (docs/reference/listeners.md#body-limits)."""
EXTENDER_LIMIT = 128 << 20
"""Bytes. 5,000 whole nodes are 102 MB (docs/reference/measurements.md#serving)."""
NODE_BYTES = 64 << 10
"""Bytes of a whole node in an extender's body: three times those of a node in the measurement above."""
LARGE = 8 << 20
LARGE_AT_ONCE = 2
LARGE_BYTES_AT_ONCE = 144 << 20
"""Limits for bodies over LARGE bytes: one of the largest size and a second of an average fleet. With all other
bodies and answers with as many whole nodes they stay below the 512 MiB of the Deployment."""
SMALL_BYTES_AT_ONCE = 128 << 20
"""Bytes of all bodies that are not large: a quarter of the Deployment's memory limit, 16 of the largest reviews.

Bodies of up to ORDINARY bytes are not counted, so that larger ones never keep them out; 512 requests at once hold
128 MiB of them at most."""


def extender_limit(nodes: int) -> int:
    """Return the most bytes of a body that a scheduler may send for a fleet of `nodes` nodes.

    The names of 20,000 nodes always fit; whole nodes only as many as the fleet has.
    """
    return min(EXTENDER_LIMIT, ADMISSION_LIMIT + NODE_BYTES * nodes)


class BodyReader:
    """Reads bodies, and counts the large bodies in memory and the bytes of the others."""

    def __init__(self) -> None:
        self._large = 0
        self._large_bytes = 0
        self._small_bytes = 0

    @asynccontextmanager
    async def read(self, scope: Scope, receive: Receive, limit: int) -> AsyncIterator[bytes]:
        """Read a body, and count it while it is being answered.

        Raises WireError 413 above the limit, 503 for a third large body or too many bytes, 400 if the caller has gone.
        """
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if announced.isdigit() and int(announced[:20]) > limit:
            raise _too_large(limit)
        first, more = await _next_part(receive)
        if not more and len(first) <= min(limit, ORDINARY):  # as nearly all do
            yield first
            return
        buffer = BytesIO()
        part, size, small, large = first, 0, 0, 0
        try:
            while True:
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                if ORDINARY < size <= LARGE:
                    self._count_small(size - small)
                    small = size
                elif size > LARGE:
                    self._count_large(size - large, new=not large)
                    large = size
                if size == len(part):
                    first = part  # as a rule the only part
                elif part:
                    buffer.write(first)
                    buffer.write(part)
                    first = b""
                if not more:
                    break
                part, more = await _next_part(receive)
            yield first or buffer.getvalue()  # shares memory with the buffer: no second copy of a large body
        finally:
            self._large -= large > 0
            self._large_bytes -= large
            self._small_bytes -= small

    def _count_small(self, size: int) -> None:
        if self._small_bytes + size > SMALL_BYTES_AT_ONCE:
            raise WireError(503, f"busy with {SMALL_BYTES_AT_ONCE >> 20} MiB of bodies")
        self._small_bytes += size

    def _count_large(self, size: int, new: bool) -> None:
        if new and self._large >= LARGE_AT_ONCE:
            raise WireError(503, f"busy with {LARGE_AT_ONCE} bodies over {LARGE >> 20} MiB")
        if self._large_bytes + size > LARGE_BYTES_AT_ONCE:
            raise WireError(503, f"busy with {LARGE_BYTES_AT_ONCE >> 20} MiB of large bodies")
        self._large += new
        self._large_bytes += size


async def _next_part(receive: Receive) -> tuple[bytes, bool]:
    """Return the next part of a body, and whether more follows. Raises WireError 400 if the caller has gone."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise WireError(400, "body: the caller went away")
    return message.get("body", b""), message.get("more_body", False)


def _too_large(limit: int) -> WireError:
    return WireError(413, f"body: larger than {limit >> 20} MiB, wants at most that")
