# SPDX-License-Identifier: Apache-2.0
"""What a connection needs of its transport: answers without an application, such as 503 to a request beyond the limit,
the bytes that wait in the kernel, and the end of a connection.
"""

import asyncio
import contextlib
import fcntl
import select
import socket
import struct
import termios
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.api.wire import status_body

NO_SNIFFING = (b"x-content-type-options", b"nosniff")
"""A header of every answer, so that a browser does not guess that an answer is a page or a script."""
Headers = list[tuple[bytes, bytes]]
_HEADERS = b"content-type: application/json\r\n%b: %b\r\nconnection: close\r\n" % NO_SNIFFING


LENGTH_AND_END = b"content-length: %d\r\n\r\n"
LENGTH_AND_CLOSE = b"connection: close\r\n" + LENGTH_AND_END


class AnswerHeads:
    """The first bytes of JSON answers by status, made again whenever uvicorn has renewed the date in its headers."""

    def __init__(self) -> None:
        self._headers: Headers = []
        self._by_status: dict[int, bytes] = {}

    def of(self, status: int, headers: Headers) -> bytes:
        """Return the status line and all headers but the length; `headers` are those of every answer of the server."""
        if headers is not self._headers:
            self._headers, self._by_status = headers, {}
        head = self._by_status.get(status)
        if head is None:
            pairs = [*headers, (b"content-type", b"application/json")]
            lines = [b"%b: %b\r\n" % pair for pair in pairs]
            head = self._by_status[status] = b"".join([STATUS_LINE[status], *lines])
        return head


def error_response(status: int, message: str) -> bytes:
    """Return the complete HTTP answer to an invalid request, after which the connection is closed."""
    body = status_body(status, message)
    return b"".join([STATUS_LINE[status], _HEADERS, b"content-length: %d\r\n\r\n" % len(body), body])


def busy_app(requests: int, on_shed: Callable[[], object]) -> ASGIApp:
    """Make the application that answers 503 without closing the connection; `on_shed` is called for every request."""
    body = status_body(503, f"busy with {requests} requests")
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]

    async def answer_busy(_scope: Scope, _receive: Receive, send: Send) -> None:
        on_shed()
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer_busy


ACKNOWLEDGED = 120
"""Offset of tcpi_bytes_acked in Linux's struct tcp_info, 64 bits (linux/tcp.h)."""


SEND_BUFFER = 64 << 10
"""Bytes of one connection that the kernel takes; Linux doubles the number for its own overhead. It would take up to
4 MiB (net.ipv4.tcp_wmem), also for a peer that reads nothing (docs/reference/listeners.md#connection-limits)."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends a reset, and the kernel drops what is not sent yet (socket(7))."""


def abort(transport: asyncio.Transport) -> None:
    """Close at once.

    Where the peer has not taken all bytes, reset the connection: otherwise the kernel keeps them for another one or two
    minutes, in memory that counts as ours.
    """
    if unacknowledged_bytes(transport):
        with contextlib.suppress(OSError, AttributeError):
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    transport.abort()


def unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Count the bytes written that the peer has not acknowledged; only our own buffers where the kernel cannot tell."""
    return transport.get_write_buffer_size() + _bytes_in_kernel(transport.get_extra_info("socket"))


def acknowledged_bytes(transport: asyncio.Transport) -> int:
    """Return a number that grows when the peer takes bytes: those acknowledged, or else minus those not yet taken."""
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError, struct.error):
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, ACKNOWLEDGED + 8)
        return int(struct.unpack_from("=Q", info, ACKNOWLEDGED)[0])
    return -unacknowledged_bytes(transport)


def _bytes_in_kernel(sock: socket.socket | None) -> int:
    """Read SIOCOUTQ of the socket, which equals TIOCOUTQ (tcp(7)); 0 where that is not supported."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if sock is not None:
            return int(struct.unpack("=i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    return 0


def input_waits(sock: socket.socket | None) -> bool:
    """Tell whether the kernel holds bytes from the peer that the loop has not read yet."""
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return any(events == select.POLLIN for _, events in poll.poll(0))  # POLLHUP or POLLERR: the peer has closed
