# SPDX-License-Identifier: Apache-2.0
"""Cutting the bytes of a connection into pieces, none of which goes past the end of a request.

The parser takes all requests of what it is given, and makes something of each. Given one piece at a time, it has one
request in hand, and the rest stays bytes. What a request is the parser alone decides: it ends with an empty line, or
with its announced body. A cut too many does no harm.
"""

LINE_FEED, CARRIAGE_RETURN = 10, 13
MOST_BYTES = 64 << 10
"""Of a piece of a header or of chunks, so that their size is looked at before the next one is parsed."""


class Framing:
    """Where the next piece ends. It is told of a request's announced body, and of the request's end."""

    __slots__ = ("_body", "_open_line")

    def __init__(self) -> None:
        self._body = 0
        self._open_line = False

    def announced(self, length: int) -> None:
        """Take so many bytes to come, the header's end behind us, as one body."""
        self._body = length

    def ended(self) -> None:
        """Begin with a new request."""
        self._body = 0
        self._open_line = False

    def cut(self, data: bytes, start: int) -> int:
        """Give the end of the piece of `data` that begins at `start`."""
        if self._body:
            end = min(start + self._body, len(data))
            self._body -= end - start
            return end
        most = min(start + MOST_BYTES, len(data))
        end = self._empty_line(data, start, most)
        self._open_line = data[end - 1] in (LINE_FEED, CARRIAGE_RETURN)
        return end

    def _empty_line(self, data: bytes, start: int, most: int) -> int:
        """Give the end of the first line that may be empty, the one cut by the piece's beginning included."""
        if self._open_line:
            found = data.find(b"\n", start, min(start + 2, most))
            if found >= 0:
                return found + 1
        found = data.find(b"\n\r\n", start, most)
        return found + 3 if found >= 0 else most
