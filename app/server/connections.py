# SPDX-License-Identifier: Apache-2.0
"""The connections of one listener: their number, the bytes they hold, and which one is closed when there is no room.

Answers that need no application, such as 503 to a request beyond the limit, are made here as well.
"""

import asyncio
import contextlib
import fcntl
import select
import socket
import struct
import termios
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.api.wire import status_body
from app.server.limits import Limits

if TYPE_CHECKING:
    from app.server.connection_waits import WaitingProtocol

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


OLDEST_CHECKED = 16
"""The number of oldest bodies, or handshakes, that are searched for a slow one; a search takes some microseconds."""


class Connections:
    """The connections of one listener.

    `draining` tells whether answers are the last of their connections. `on_shed` is called for every request answered
    with 503, `on_closed` for every connection that is closed here, with what the connection waited for.
    """

    def __init__(
        self,
        limits: Limits = Limits(),  # noqa: B008  # frozen
        draining: Callable[[], bool] = lambda: False,
        on_shed: Callable[[], object] = lambda: None,
        on_closed: Callable[[str], object] = lambda _reason: None,
    ) -> None:
        self.limits, self.draining, self.on_closed = limits, draining, on_closed
        self.busy_app = busy_app(limits.requests, on_shed)
        self.heads = AnswerHeads()
        self.connections: set[WaitingProtocol] = set()
        self.handshakes: dict[asyncio.Task[None], tuple[float, socket.socket]] = {}
        """TLS handshakes: the start of each, in seconds of the loop's clock, and its socket. The first is oldest."""
        self.awaiting_header: dict[WaitingProtocol, None] = {}
        """Connections whose next header is not complete; the first has waited longest."""
        self.idle: dict[WaitingProtocol, None] = {}
        """Connections between two requests; the first has been idle longest."""
        self._held: dict[WaitingProtocol, int] = {}
        self._held_bytes = 0
        self._blocked: dict[WaitingProtocol, None] = {}
        self.bodies: dict[WaitingProtocol, None] = {}
        """Connections whose request body did not arrive at once; the first is the oldest."""
        self.on_place_free: Callable[[], object] = lambda: None
        """Called whenever a connection has ended."""

    @property
    def count(self) -> int:
        """The number of connections, those in their TLS handshake included."""
        return len(self.connections) + len(self.handshakes)

    @property
    def full(self) -> bool:
        """Whether the listener holds as many connections as it may."""
        return self.count >= self.limits.connections

    @property
    def over_limit(self) -> bool:
        """Whether the listener holds one connection too many, for which no other was closed yet."""
        return self.count > self.limits.connections

    def remove(self, connection: "WaitingProtocol") -> None:
        """Remove a connection that has ended."""
        self.connections.discard(connection)
        self.awaiting_header.pop(connection, None)
        self.idle.pop(connection, None)
        self.bodies.pop(connection, None)
        self._blocked.pop(connection, None)
        self.set_held_bytes(connection, 0)
        self.on_place_free()

    def add_idle(self, connection: "WaitingProtocol") -> None:
        """Note that a connection is idle; the one idle longest is closed if there are too many."""
        self.idle[connection] = None
        if len(self.idle) > self.limits.idle:
            next(iter(self.idle)).evict("idle")

    def set_held_bytes(self, connection: "WaitingProtocol", size: int) -> None:
        """Note the bytes of later requests that a connection holds; the largest holder is closed if the sum is high."""
        before = self._held.pop(connection, 0)
        self._held_bytes += size - before
        if size:
            self._held[connection] = size
            if self._held_bytes > self.limits.held_bytes:
                max(self._held, key=self._held.__getitem__).evict("room")

    def output_blocked(self, connection: "WaitingProtocol") -> None:
        """Note that a peer takes an answer slowly; the longest waiting is closed if too many bytes wait for peers."""
        self._blocked[connection] = None
        sizes = sum(blocked.transport.get_write_buffer_size() for blocked in self._blocked)
        if len(self._blocked) > 1 and sizes > self.limits.unread_bytes:
            min(self._blocked, key=lambda blocked: blocked.since).evict("answer")

    def output_flows(self, connection: "WaitingProtocol") -> None:
        """Note that a peer has taken most of the answer that waited for it."""
        self._blocked.pop(connection, None)

    def make_room(self, now: float) -> bool:
        """Make room for one more connection by closing another if need be; tell whether there is room."""
        return not self.full or (self._evict_one(now) and not self.full)

    def _evict_one(self, now: float) -> bool:
        """Close the least useful connection: a slow handshake, a silent or idle one, a slow reader, a slow sender."""
        if self._evict_handshake(now):
            return True
        waiting = next(iter(self.awaiting_header), None)
        if waiting is not None and waiting.since < now - self.limits.newcomer_seconds:
            waiting.evict("room")
            return True
        idle = next(iter(self.idle), None)
        if idle is not None:
            idle.evict("idle")
            return True
        blocked = next(iter(self._blocked), None)
        if blocked is not None and blocked.since < now - self.limits.stalled_seconds:
            blocked.evict("answer")
            return True
        return self.drop_slow_body(now, self.limits.newcomer_seconds)

    def _evict_handshake(self, now: float) -> bool:
        """Cancel one of the oldest handshakes, unless its bytes are waiting in our buffer: then we are the slow
        side."""
        for task, (started, sock) in islice(self.handshakes.items(), OLDEST_CHECKED):
            if started >= now - self.limits.settling_seconds:
                return False
            if not input_waits(sock):
                del self.handshakes[task]
                task.cancel()
                self.on_closed("handshake")
                return True
        return False

    def drop_slow_body(self, now: float, seconds: float) -> bool:
        """Close a connection whose body has been too slow for `seconds`; False if none of the oldest bodies is."""
        for connection in islice(self.bodies, OLDEST_CHECKED):
            if connection.seconds_too_slow(now) >= seconds:
                connection.evict("body")
                return True
        return False
