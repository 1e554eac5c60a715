# SPDX-License-Identifier: Apache-2.0
"""Streams of HTTP requests, valid and strange, and two readers: one byte by byte, and one in pieces as our protocol
does."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

import httptools
from hypothesis import strategies as st

from app.server.protocol import piece_end

HEADS = (
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /livez HTTP/1.0\r\n\r\n",
    b"POST /mutate HTTP/1.1\r\nContent-Length: %d\r\n\r\n",
    b"POST /mutate HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\ncontent-length:   %d  \r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: %d\r\nContent-Length: 3\r\n\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\nContent-Length: %d\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n",
    b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: a\r\n b\r\n\r\n",
    b"GET / HTTP/1.1\nHost: a\n\n",
)
BODIES = (
    b"",
    b"{}",
    b"12345",
    b"\r\n\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"3\r\nabc\r\n0\r\n\r\n",
    b"4;x=y\r\n\r\n\r\n\r\n0\r\nX: y\r\n\r\n",
    b"0\r\n\r\n",
    b"fffffffffffffffff\r\n",
    b"00000\r\n\n",
)
BETWEEN = (b"", b"", b"", b"\r\n", b"\r\n\r\n", b"\n", b"\n\n", b"\r", b"\0", b"x")


@dataclass(slots=True)
class Seen:
    """What a reader saw: method, target and body of each whole request, where each ended, and whether the reader gave
    up."""

    requests: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    refused: bool = False


class Reader:
    """Record the parser's callbacks. The parser is configured as uvicorn does it."""

    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.body_left = 0
        self.seen = Seen()
        self.length = 0
        self._url = self._body = b""

    def on_message_begin(self) -> None:
        self._url = self._body = b""
        self.length = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-length":
            self.length = int(value)

    def on_headers_complete(self) -> None:
        self.body_left = self.length

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.seen.requests.append((self.parser.get_method(), self._url, self._body))
        self.body_left = 0

    def feed(self, piece: bytes, end: int) -> bool:
        """Parse a piece that ends at `end` of the stream, and tell whether to go on.

        Raises AssertionError if more than one request ends in the piece.
        """
        before = len(self.seen.requests)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            pass  # an upgrade stops the parser at the end of the request, where the piece ends too
        except httptools.HttpParserError:
            self.seen.refused = True
        ended = len(self.seen.requests) - before
        assert ended <= 1
        self.seen.ends += [end] * ended
        return not self.seen.refused


def oracle(stream: bytes) -> Seen:
    """Read byte by byte, so that the end of each request is certain."""
    reader = Reader()
    for at in range(len(stream)):
        if not reader.feed(stream[at : at + 1], at + 1):
            break
    return reader.seen


def cut(stream: bytes, sizes: list[int]) -> Seen:
    """Read as our protocol does: first pieces of these sizes, then the rest at once."""
    reader, start = Reader(), 0
    for size in [*sizes, len(stream)]:
        data, at = stream[start : start + size], 0
        while at < len(data):
            end = piece_end(data, at, reader.body_left)
            assert at < end <= len(data)
            reader.body_left -= min(end - at, reader.body_left)
            if not reader.feed(data[at:end], start + end):
                return reader.seen
            at = end
        start += len(data)
    return reader.seen


def stream_of(random: Random) -> bytes:
    """Write requests one after the other, sometimes with some bytes changed, lost or added."""
    parts = []
    for _ in range(random.randint(1, 5)):
        head, body = random.choice(HEADS), random.choice(BODIES)
        length = len(body) if random.random() < 0.8 else random.randint(0, 40)
        parts += [head % length if b"%d" in head else head, body, random.choice(BETWEEN)]
    stream = bytearray(b"".join(parts))
    for _ in range(random.choice((0, 0, 1, 3))):
        at = random.randrange(len(stream))
        changed: Any = random.choice((b"", b"\r", b"\n", b"\r\n\r\n", b"\0", stream[at : at + 9] * 2))
        stream[at : at + random.randint(0, 3)] = changed
    return bytes(stream)


def streams() -> st.SearchStrategy[bytes]:
    """Draw streams, each from a seed."""
    return st.integers(0, 1 << 40).map(lambda seed: stream_of(Random(seed)))
