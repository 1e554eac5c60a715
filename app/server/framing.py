# SPDX-License-Identifier: Apache-2.0
"""Splits the bytes of a connection into pieces, none of which reaches past the end of a request.

The HTTP parser reads all requests in the bytes that it is given and makes objects of them. Given one piece at a time,
it has one request in hand, and later requests stay bytes. Only the parser decides what a request is; a request ends
with an empty line or with the body of the announced length. An unneeded split does no harm.
"""

LINE_FEED, CARRIAGE_RETURN = 10, 13
MOST_BYTES = 64 << 10
"""Largest piece of a header or of chunks, so that their size is checked before the next piece is parsed."""


class Framing:
    """Finds the end of the next piece, from the announced length of a request's body and from empty lines."""

    __slots__ = ("_body", "_open_line")

    def __init__(self) -> None:
        self._body = 0
        self._open_line = False

    def expect_body(self, length: int) -> None:
        """Treat the next `length` bytes after the header as one body."""
        self._body = length

    def begin_request(self) -> None:
        """Expect the header of a new request."""
        self._body = 0
        self._open_line = False

    def piece_end(self, data: bytes, start: int) -> int:
        """Return the end of the piece of `data` that begins at `start`."""
        if self._body:
            end = min(start + self._body, len(data))
            self._body -= end - start
            return end
        most = min(start + MOST_BYTES, len(data))
        end = self._empty_line(data, start, most)
        self._open_line = data[end - 1] in (LINE_FEED, CARRIAGE_RETURN)
        return end

    def _empty_line(self, data: bytes, start: int, most: int) -> int:
        """Return the end of the first empty line, also of one begun in the previous piece; `most` if there is none."""
        if self._open_line:
            index = data.find(b"\n", start, min(start + 2, most))
            if index >= 0:
                return index + 1
        index = data.find(b"\n\r\n", start, most)
        return index + 3 if index >= 0 else most
