# SPDX-License-Identifier: Apache-2.0
"""The ends of the pieces that the framer passes on: never behind the end of a request, however the bytes arrive."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.server.protocol import MOST_BYTES, piece_end
from tests.fuzz.requests import Seen, cut, oracle, streams

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n12345"
CHUNKED = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n"
CONNECT = b"CONNECT a:1 HTTP/1.1\r\n\r\n"
STREAMS = {
    "requests without a body": GET * 3,
    "announced bodies": POST * 3,
    "chunks with a trailer": CHUNKED * 3,
    "all kinds": GET + POST + CHUNKED + GET + CHUNKED + POST,
    "empty lines before and between": b"\r\n\r\n" + GET + b"\r\n" + POST + b"\r\n\r\n" + GET,
    "a body of empty lines": b"POST / HTTP/1.1\r\nContent-Length: 8\r\n\r\n\r\n\r\n\r\n\r\n" + GET,
    "chunks of empty lines": CHUNKED.replace(b"3\r\nabc", b"4\r\n\r\n\r\n") * 2,
    "bytes behind the announced body": POST + b"6789",
    "half a header behind a request": POST + b"GET /livez HTTP/1.1\r\nX: ",
    "HTTP/1.0": GET.replace(b"1.1", b"1.0") * 2,
    "no HTTP": b"\x16\x03\x01 hello\r\n\r\n" + GET,
    "bare line feeds": GET.replace(b"\r", b"") * 2,
    "another protocol's words behind CONNECT": CONNECT + GET,
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS.keys())
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 18])
def test_pieces_give_the_requests_that_single_bytes_give(stream: bytes, size: int) -> None:
    assert cut(stream, [size] * len(stream)) == oracle(stream)


@given(streams(), st.lists(st.integers(1, 200), max_size=20))
@settings(max_examples=400)
def test_strange_streams_give_the_requests_that_single_bytes_give(stream: bytes, sizes: list[int]) -> None:
    assert cut(stream, sizes) == oracle(stream)


def test_oracle_sees_each_request_and_where_it_ends() -> None:
    assert oracle(GET + POST) == Seen([(b"GET", b"/", b""), (b"POST", b"/", b"12345")], [27, 70], False)


def test_announced_body_is_one_piece() -> None:
    assert piece_end(b"a" * 300_000, 0, 1 << 20) == 300_000


def test_piece_of_a_header_is_bounded() -> None:
    assert piece_end(b"a" * (MOST_BYTES + 1), 0, 0) == MOST_BYTES
