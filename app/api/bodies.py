# SPDX-License-Identifier: Apache-2.0
"""Reads request bodies with limits: 413 above the limit of the route, 503 if too many bytes are held in all."""

from collections.abc import Callable
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


ORDINARY_DIGITS = len(str(ORDINARY)) - 1
"""A body whose length has no more digits is ordinary, and below every limit."""


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

    def read(self, scope: Scope, receive: Receive, limit: Callable[[], int]) -> "CountedBody":
        """Return a body that is read on entering it.

        `limit` returns the most bytes, at least ORDINARY; it is asked only for larger bodies.
        """
        return CountedBody(self, scope, receive, limit)

    def count_small(self, size: int) -> None:
        """Count more bytes of a body that is not large. Raises WireError 503 if all such bodies are too many bytes."""
        if self._small_bytes + size > SMALL_BYTES_AT_ONCE:
            raise WireError(503, f"busy with {SMALL_BYTES_AT_ONCE >> 20} MiB of bodies")
        self._small_bytes += size

    def count_large(self, size: int, new: bool) -> None:
        """Count more bytes of a large body. Raises WireError 503 for too many large bodies or bytes of them."""
        if new and self._large >= LARGE_AT_ONCE:
            raise WireError(503, f"busy with {LARGE_AT_ONCE} bodies over {LARGE >> 20} MiB")
        if self._large_bytes + size > LARGE_BYTES_AT_ONCE:
            raise WireError(503, f"busy with {LARGE_BYTES_AT_ONCE >> 20} MiB of large bodies")
        self._large += new
        self._large_bytes += size

    def release(self, small: int, large: int) -> None:
        """Subtract the counted bytes of a body."""
        self._large -= large > 0
        self._large_bytes -= large
        self._small_bytes -= small


class CountedBody:
    """A body that is counted while it is being answered: read on entering, released on leaving.

    A class and not a generator, because every request passes here, and nearly all bodies come in one small part.
    """

    __slots__ = ("_large", "_limit", "_reader", "_receive", "_scope", "_small")

    def __init__(self, reader: BodyReader, scope: Scope, receive: Receive, limit: Callable[[], int]) -> None:
        self._reader, self._scope, self._receive, self._limit = reader, scope, receive, limit
        self._small = self._large = 0

    async def __aenter__(self) -> bytes:
        """Read the body.

        Raises WireError 413 above the limit, 503 for a third large body or too many bytes, 400 if the caller has gone.
        """
        announced = next((value for name, value in self._scope["headers"] if name == b"content-length"), b"")
        if announced.isdigit() and len(announced) > ORDINARY_DIGITS and int(announced[:20]) > (most := self._limit()):
            raise _too_large(most)
        part, more = await _next_part(self._receive)
        if not more and len(part) <= ORDINARY:
            return part
        try:
            return await self._read_on(part, more, self._limit())
        except BaseException:
            self._reader.release(self._small, self._large)
            raise

    async def __aexit__(self, *_error: object) -> None:
        """Release what was counted."""
        if self._small or self._large:
            self._reader.release(self._small, self._large)

    async def _read_on(self, part: bytes, more: bool, limit: int) -> bytes:
        """Read the parts after the first one."""
        buffer, first, size = BytesIO(), b"", 0
        while True:
            size += len(part)
            self._count(size, limit)
            if size == len(part):
                first = part  # as a rule the only part
            elif part:
                buffer.write(first)
                buffer.write(part)
                first = b""
            if not more:
                return first or buffer.getvalue()  # shares memory with the buffer: no second copy of a large body
            part, more = await _next_part(self._receive)

    def _count(self, size: int, limit: int) -> None:
        if size > limit:
            raise _too_large(limit)
        if ORDINARY < size <= LARGE:
            self._reader.count_small(size - self._small)
            self._small = size
        elif size > LARGE:
            self._reader.count_large(size - self._large, new=not self._large)
            self._large = size


async def _next_part(receive: Receive) -> tuple[bytes, bool]:
    """Return the next part of a body, and whether more follows. Raises WireError 400 if the caller has gone."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise WireError(400, "body: the client disconnected")
    return message.get("body", b""), message.get("more_body", False)


def _too_large(limit: int) -> WireError:
    return WireError(413, f"body: larger than {limit >> 20} MiB, wants at most that")
