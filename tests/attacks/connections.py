# SPDX-License-Identifier: Apache-2.0
"""Attacks on the connections: pipelined requests, peers that do not read, slow senders, half headers and handshakes."""

import contextlib
import socket
import time
from collections.abc import Callable
from functools import partial

from tests.attacks.target import Attack, Crowd, Target, open_plain, open_tls, receive_all, receive_some, send_some

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
ONE_GET = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
PIPELINE = GET * 8_000
"""280 kB: the event loop read up to 256 KiB at once, and parsed all of it."""
BODY_HEAD = b"POST /mutate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n"
TRICKLERS = 530
"""More than the 512 requests that a listener takes in hand."""
DEAF = 200
HALF_HEADERS = 600
TRICKLE_SECONDS = 0.7
"""Between two bytes of a trickling body, far below any limit on the silence between two pieces."""


def pipeline(connect: Callable[[Target], socket.socket | None], count: int, reads: bool, target: Target) -> None:
    """Send pipelined requests on so many connections as fast as they are taken; `reads`: take the answers."""
    crowd = Crowd(count, partial(connect, target))
    offset: dict[socket.socket, int] = {}

    def push(sock: socket.socket) -> bool:
        start = offset.get(sock, 0)
        with contextlib.suppress(BlockingIOError, OSError):
            sock.setblocking(False)
            sent = sock.send(PIPELINE[start:])
            offset[sock] = (start + sent) % len(PIPELINE)
        return receive_all(sock) if reads else send_some(sock, b"")

    for _ in target.turns():
        crowd.refill()
        crowd.for_each(push)
    crowd.close()


def ask_and_never_read(connect: Callable[[Target], socket.socket | None], request: bytes, target: Target) -> None:
    """Keep connections that send requests while the kernel takes them, and never read an answer."""
    crowd = Crowd(DEAF, partial(connect, target))
    for _ in target.turns():
        for sock in crowd.refill(20):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        crowd.for_each(lambda sock: send_some(sock, request))
    crowd.close()


def trickle_bodies(connect: Callable[[Target], socket.socket | None], target: Target) -> None:
    """Announce a body on each of many connections, and send it one byte per 0.7 s."""
    crowd, last = Crowd(TRICKLERS, partial(connect, target)), 0.0
    for _ in target.turns():
        for sock in crowd.refill():
            send_some(sock, BODY_HEAD)
        if time.monotonic() - last >= TRICKLE_SECONDS:
            last = time.monotonic()
            crowd.for_each(lambda sock: receive_some(sock) and send_some(sock, b" "))
    crowd.close()


def trickle_headers(connect: Callable[[Target], socket.socket | None], start: bytes, target: Target) -> None:
    """Send `start`, then one byte of a header per 0.7 s, on each of many connections."""
    crowd, last = Crowd(HALF_HEADERS, partial(connect, target)), 0.0
    for _ in target.turns():
        for sock in crowd.refill():
            send_some(sock, start)
        if time.monotonic() - last >= TRICKLE_SECONDS:
            last = time.monotonic()
            crowd.for_each(lambda sock: receive_some(sock) and send_some(sock, b"a"))
    crowd.close()


def send_once(connect: Callable[[Target], socket.socket | None], start: bytes, count: int, target: Target) -> None:
    """Send `start` on so many connections, each opened again once the replica ends it."""
    crowd = Crowd(count, partial(connect, target))
    for _ in target.turns():
        for sock in crowd.refill():
            send_some(sock, start)
        crowd.for_each(receive_some)
    crowd.close()


def plain_tls(target: Target) -> socket.socket | None:
    """Connect to the TLS port, and leave the handshake out."""
    return open_plain(target.tls)


def plain_ops(target: Target) -> socket.socket | None:
    """Connect to the operations port."""
    return open_plain(target.ops)


HALF_HEADER = b"GET /livez HTTP/1.1\r\nX: "
CLIENT_HELLO_START = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The start of a TLS record with a ClientHello of 512 bytes, whose rest never comes."""
TRAILER = (
    b"POST /mutate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: " + b"a" * 16_000
)
"""The parser keeps a header line, a trailer's too, until its end."""
CONNECTION_ATTACKS = (
    Attack("pipelined-tls", "1 TLS reader pipelines GET /", partial(pipeline, open_tls, 1, True)),
    Attack("pipelined-ops", "1 reader pipelines GET / on the ops port", partial(pipeline, plain_ops, 1, True)),
    Attack("pipelined-tls-deaf", "15 TLS peers pipeline, read nothing", partial(pipeline, open_tls, 15, False)),
    Attack("pipelined-ops-deaf", "15 peers pipeline on ops, read nothing", partial(pipeline, plain_ops, 15, False)),
    Attack("reconnecting-ops", "50 peers ask GET / on ops, each time anew", partial(send_once, plain_ops, ONE_GET, 50)),
    Attack("deaf-ops", "200 peers ask /metrics, read nothing", partial(ask_and_never_read, plain_ops, METRICS)),
    Attack("deaf-tls", "200 TLS peers ask, read nothing", partial(ask_and_never_read, open_tls, GET)),
    Attack("trickled-bodies-tls", "530 TLS bodies, 1 byte per 0.7 s", partial(trickle_bodies, open_tls)),
    Attack("trickled-bodies-ops", "530 ops bodies, 1 byte per 0.7 s", partial(trickle_bodies, plain_ops)),
    Attack("half-headers-tls", "600 TLS headers, 1 byte per 0.7 s", partial(trickle_headers, open_tls, HALF_HEADER)),
    Attack(
        "half-headers-ops", "600 ops headers behind an answer", partial(trickle_headers, plain_ops, GET + HALF_HEADER)
    ),
    Attack(
        "trailers-tls",
        "200 TLS bodies in chunks whose trailer never ends",
        partial(ask_and_never_read, open_tls, TRAILER),
    ),
    Attack("handshakes-silent", "1,000 connections without a ClientHello", partial(send_once, plain_tls, b"", 1_000)),
    Attack(
        "handshakes-half",
        "1,000 with half a ClientHello",
        partial(send_once, plain_tls, CLIENT_HELLO_START, 1_000),
    ),
)
