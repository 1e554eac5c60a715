# SPDX-License-Identifier: Apache-2.0
"""Raw sockets against a running server, for half-sent requests and for what happens to the connection."""

import contextlib
import json
import select
import socket
import ssl
import time
from pathlib import Path

from tests.builders import pod, review

BODY = json.dumps(review(pod())).encode()
TIMEOUT_SECONDS = 60
"""Bound on every wait, large enough for a busy machine."""


def post(body: bytes = BODY, path: str = "/mutate", length: int | None = None, more: bytes = b"") -> bytes:
    """Write a request. `length` is its Content-Length, which is the true one by default."""
    content_length = len(body) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {content_length}\r\n".encode()
    return head + more + b"\r\n" + body


def connect(port: int | None, ca: Path | None = None) -> socket.socket:
    """Open a connection; with `ca` over TLS that trusts this CA."""
    plain = socket.create_connection(("127.0.0.1", port or 0), TIMEOUT_SECONDS)
    if ca is None:
        return plain
    return ssl.create_default_context(cafile=str(ca)).wrap_socket(plain, server_hostname="localhost")


def closed(sock: socket.socket) -> bool:
    """Wait until the peer closes the connection, and tell whether it did; what it sent before does not count."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        try:
            while sock.recv(65536):
                pass
        except TimeoutError:
            return False
    return True


def all_closed(socks: list[socket.socket], seconds: float = TIMEOUT_SECONDS) -> int:
    """Wait until the peer has closed all of these plain sockets, and return how many are still open."""
    poll, left, end = select.poll(), {sock.fileno(): sock for sock in socks}, time.monotonic() + seconds
    for number in left:
        poll.register(number, select.POLLIN)
    while left and time.monotonic() < end:
        for number, _ in poll.poll(200):
            with contextlib.suppress(ConnectionError):
                if left[number].recv(65536):
                    continue
            poll.unregister(number)
            del left[number]
    return len(left)


def answer(sock: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read one answer with a Content-Length: status, headers by lower-case name, body."""
    read = b""
    while b"\r\n\r\n" not in read:
        part = sock.recv(65536)
        if not part:
            raise ConnectionError(f"closed after {read!r}")
        read += part
    head, _, body = read.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers["content-length"]):
        body += sock.recv(65536)
    return int(status.split()[1]), headers, body
