# SPDX-License-Identifier: Apache-2.0
"""The HTTP protocol of our listeners: uvicorn's on httptools, one request at a time, with limits for callers.

uvicorn alone keeps a silent or half-sent request open without end, accepts a header of 8 MB
(docs/reference/measurements.md#serving), and makes objects of all pipelined requests. Here a connection is in one
phase, which has a deadline; one clock of the listener closes what is overdue, and others when there is no room.
"""

import asyncio
import contextlib
import fcntl
import math
import select
import socket
import struct
import termios
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import httptools
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from app.api.allowed_callers import client_scope
from app.api.direct_routes import WRITE_ANSWER, Answer
from app.api.wire import status_body
from app.server.limits import KIB, Limits, Phase
from app.values.errors import WireError

NO_SNIFFING = (b"x-content-type-options", b"nosniff")
"""A header of every answer, so that a browser does not guess that an answer is a page or a script."""
MOST_BYTES = 64 << 10
"""Largest piece of a header or of chunks, so that their size is checked before the next piece is parsed."""
PIECES_PER_TURN = 256
"""Pieces parsed in one turn of the loop; they take 1 ms if they are chunks of a few bytes (measured)."""
TLS_BUFFER = 64 * KIB
"""Bytes per direction of a TLS connection. The event loop's own buffers are 512 and 256 KiB, 480 MiB in all."""
PROBES = (b"/livez", b"/readyz")
"""Paths answered also when too many requests are in progress, so that the kubelet does not restart a busy replica."""
FOLLOWS = "gpu-usher.follows"
"""Key of the ASGI scope that holds whether the connection has sent a request before."""
HEADER, BODY, ANSWER, IDLE, ENDING = Phase.Header, Phase.Body, Phase.Answer, Phase.Idle, Phase.Ending
"""Constants, because the lookup of an enumeration's member is slow and happens in every request."""


def piece_end(data: bytes, start: int, body_left: int) -> int:
    """Return the end of the piece of `data` to parse next, which never reaches behind the end of a request.

    `body_left` are the bytes left of a body of announced length. Elsewhere a request ends with an empty line, which may
    have begun in the last piece.
    """
    if body_left:
        return min(start + body_left, len(data))
    if data[start] in b"\r\n" and (end := data.find(b"\n", start, start + 2) + 1):
        return end
    most = min(start + MOST_BYTES, len(data))
    found = data.find(b"\n\r\n", start, most)
    return found + 3 if found >= 0 else most


class GuardedProtocol(HttpToolsProtocol):
    """One connection of a listener: it parses one request, and then waits for its answer."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], *, shared: "Connections"
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._shared, self._limits, self._served = shared, shared.limits, self.app
        self.phase, self.since, self.due = HEADER, 0.0, math.inf
        self._held, self._held_from = b"", 0
        self._header_bytes = self._body_left = 0
        self._in_body = False

    # Phases.

    def enter(self, phase: Phase, seconds: float = math.inf) -> None:
        """Enter `phase`, which may last `seconds`."""
        phases = self._shared.phases
        phases[self.phase].pop(self, None)
        phases[phase][self] = None
        self.phase, self.since = phase, self.loop.time()
        self.due = self.since + seconds

    def overdue(self, now: float) -> None:
        """Act on the phase whose deadline has passed."""
        if self.phase is BODY and self.flow.read_paused:  # the delay is ours
            self.due = now + self._limits.request_seconds
        elif self.phase is not IDLE or unread_bytes(self.transport):
            self.reset(ANSWER.value if self.phase is IDLE else self.phase.value)
        elif now < (end := self.since + self._limits.keep_alive_seconds):
            self.due = end
        else:
            self._close()

    def reset(self, reason: str) -> None:
        """Close at once, and count the closed connection under `reason`.

        Where the peer has not taken all bytes, the kernel would keep them for another one or two minutes, in memory
        that counts as ours; SO_LINGER without time drops them (socket(7)).
        """
        if reason != ENDING.value:
            self._shared.on_closed(reason)
        self._shared.remove(self)
        if unread_bytes(self.transport):
            with contextlib.suppress(OSError, AttributeError):
                linger = struct.pack("ii", 1, 0)
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.transport.abort()

    def _close(self) -> None:
        self.transport.close()
        self.enter(ENDING, self._limits.goodbye_seconds)

    def _await_next_request(self) -> None:
        """Wait for the next request; a held one is parsed once the peer takes our answers."""
        self.enter(IDLE, self._limits.request_seconds)
        self._parse_held()

    # Called by the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._client_scope = client_scope(transport)
        if self.scheme == "https":
            transport.set_write_buffer_limits(TLS_BUFFER)
            transport.set_read_buffer_limits(TLS_BUFFER)  # type: ignore[attr-defined]
        self.enter(HEADER, self._limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._held = b""
        self._shared.remove(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.phase is ANSWER:
            self.due = self.loop.time() + self._limits.request_seconds
        self._shared.output_blocked(self, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._shared.blocked.pop(self, None)
        if self.phase is ANSWER:
            self.due = math.inf
        else:
            self._parse_held()

    def data_received(self, data: bytes) -> None:
        if self._held or self.phase is ANSWER or self.flow.write_paused:
            self._hold(self._held[self._held_from :] + data, 0)
        elif self.phase is not ENDING:
            self._parse(data, 0)

    # Reading.

    def _parse(self, data: bytes, start: int) -> None:
        """Parse up to the end of a request, from `start`; bytes behind it are held until the request is answered."""
        size = len(data)
        for _ in range(PIECES_PER_TURN):
            end = piece_end(data, start, self._body_left)
            if self._body_left:
                self._body_left -= end - start
            self._header_bytes += end - start
            try:
                self.parser.feed_data(data if end - start == size else data[start:end])
            except httptools.HttpParserUpgrade:
                self._unsupported_upgrade_warning()
                end = size  # the rest is in another protocol
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
            else:
                if self._header_bytes > self._limits.header_bytes:
                    self._refuse(431)
            start = end
            if start == size or self.phase is ANSWER or self.phase is ENDING or self.flow.write_paused:
                break
        else:
            self.loop.call_soon(self._parse_held)
        self._hold(data, start)
        if self._in_body and self.phase is not BODY and self.phase is not ENDING:
            self.enter(BODY, self._limits.request_seconds)
        elif self.phase is IDLE and self._header_bytes:
            self.enter(HEADER, self._limits.header_seconds)

    def _hold(self, data: bytes, start: int) -> None:
        """Hold the bytes from `start` and stop reading; read on if there are none."""
        if self.phase is ENDING or start >= len(data):
            if self._held:
                self._held = b""
                if not self.flow.read_paused:
                    self.transport.resume_reading()
        elif len(data) - start > self._limits.held_bytes and self.phase is ANSWER:
            self.reset("room")
        else:
            self._held, self._held_from = data, start
            self.transport.pause_reading()
            self.flow.read_paused = False  # otherwise the application would resume it when it reads the body

    def _parse_held(self) -> None:
        """Parse held bytes, if the phase allows it."""
        if self._held and self.phase not in (ANSWER, ENDING) and not self.flow.write_paused:
            self._parse(self._held, self._held_from)

    # Called by the parser.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope.update(self._client_scope)  # type: ignore[typeddict-item]
        self.scope[FOLLOWS] = self.cycle is not None  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        self._header_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if self._header_bytes > self._limits.header_bytes:
            raise WireError(431, "header: too large")  # stops the parser; send_400_response then answers
        self._header_bytes = 0
        self._body_left = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        busy = len(self.tasks) >= self._limits.requests and self.url.partition(b"?")[0] not in PROBES
        shed = busy and not self._shared.drop_oldest(BODY, self.loop.time() - self._limits.stalled_seconds)
        self.app = self._shared.busy_app if shed else self._served
        super().on_headers_complete()
        self.scope[WRITE_ANSWER] = partial(self._write_answer, self.cycle)  # type: ignore[literal-required]
        self._in_body = True
        if self._shared.draining():
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Do as uvicorn; bytes between two pieces of a body count as header bytes."""
        self._header_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_body, self._header_bytes, self._body_left = False, 0, 0
        if self.cycle.response_complete:  # answered before its body was complete
            self.enter(IDLE, self._limits.request_seconds)
        else:
            self.enter(ANSWER)

    # Called by uvicorn.

    def send_400_response(self, msg: str) -> None:
        self._refuse(431 if self._header_bytes > self._limits.header_bytes else 400, msg)

    def _refuse(self, status: int, message: str = "") -> None:
        """Answer a request that cannot be served with an error, and close. An answer that has begun is cut off."""
        if status == 431:
            message = f"header: larger than {self._limits.header_bytes >> 10} KiB, wants at most that"
            self._shared.on_closed("header_size")
        self.enter(ENDING, self._limits.goodbye_seconds)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # otherwise the application's answer would follow our error
            cycle.message_event.set()
            if cycle.response_started:
                self.reset(ENDING.value)
                return
        self.transport.write(error_response(status, message))

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._held = b""
            self.enter(ENDING, self._limits.request_seconds)
            return
        self.flow.resume_reading()
        if self.phase is ANSWER:
            self._await_next_request()

    def shutdown(self) -> None:
        """Close an idle connection, unless a request is arriving: that one is answered first."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False
        arriving = self._header_bytes or self._held or input_waits(self.transport.get_extra_info("socket"))
        if self.phase is ENDING or (self.phase in (HEADER, IDLE) and not arriving):
            self._close()

    def _write_answer(self, cycle: RequestResponseCycle, answer: Answer) -> bool:
        """Write a whole answer, as the `send` of uvicorn's cycle does in two parts; False while output is paused."""
        if self.flow.write_paused:
            return False
        if cycle.disconnected:
            return True
        cycle.response_started = cycle.response_complete = True
        cycle.keep_alive = cycle.keep_alive and not answer.close
        headers = self.server_state.default_headers
        if len(answer.body) > TLS_BUFFER:  # a TLS transport does not say that it holds the first of them
            self._shared.output_blocked(self, len(answer.body))
        self.transport.write(json_response(answer.status, answer.body, headers, close=not cycle.keep_alive))
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        return True


TICK_SECONDS = 0.1
"""Interval at which the clock of a listener looks for connections whose deadline has passed."""
OLDEST_CHECKED = 16
"""The number of oldest handshakes that are searched for one whose bytes we have read; a search takes microseconds."""


class Connections:
    """The connections of one listener: their number, and which one is closed when there is no room.

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
        self.phases: dict[Phase, dict[GuardedProtocol, None]] = {phase: {} for phase in Phase}
        """Connections by phase; the first of each has been in it longest."""
        self.handshakes: dict[asyncio.Task[None], tuple[float, socket.socket]] = {}
        """TLS handshakes: the start of each, in seconds of the loop's clock, and its socket. The first is oldest."""
        self.blocked: dict[GuardedProtocol, int] = {}
        """Connections whose peer may not have taken an answer, the oldest first, and the bytes of it."""

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close connections whose deadline has passed, from now on."""
        loop.call_later(TICK_SECONDS, self.watch, loop)
        now = loop.time()
        for connections in self.phases.values():
            for connection in [connection for connection in connections if connection.due <= now]:
                connection.overdue(now)

    @property
    def free(self) -> int:
        """The number of connections that there is room for."""
        return self.limits.connections - len(self.handshakes) - sum(map(len, self.phases.values()))

    def remove(self, connection: GuardedProtocol) -> None:
        """Remove a connection that has ended."""
        self.phases[connection.phase].pop(connection, None)
        self.blocked.pop(connection, None)

    def output_blocked(self, connection: GuardedProtocol, size: int) -> None:
        """Note that an answer waits for its peer; the longest waiting is closed if too many bytes wait for peers."""
        blocked = {other: held for other, held in self.blocked.items() if unread_bytes(other.transport)}
        blocked.pop(connection, None)
        self.blocked = {**blocked, connection: size}
        for other in blocked:
            if sum(self.blocked.values()) <= self.limits.unread_bytes:
                break
            other.reset("room")

    def make_room(self, now: float) -> bool:
        """Close the least useful connection: a slow handshake, a silent or idle one, a slow reader, a slow sender."""
        newest, stalled = now - self.limits.newcomer_seconds, now - self.limits.stalled_seconds
        for task, (started, sock) in islice(self.handshakes.items(), OLDEST_CHECKED):
            if started < newest and not input_waits(sock):  # if its bytes wait in our buffer, we are the slow side
                del self.handshakes[task]
                task.cancel()
                self.on_closed("handshake")
                return True
        order = ((HEADER, newest), (IDLE, now), (ENDING, stalled), (BODY, stalled))
        return any(self.drop_oldest(phase, before) for phase, before in order)

    def drop_oldest(self, phase: Phase, before: float) -> bool:
        """Close the connection that has been longest in a phase, if it entered it before a time; tell whether."""
        oldest = next(iter(self.phases[phase]), None)
        if oldest is None or oldest.since > before:
            return False
        oldest.reset("room")
        return True


def json_response(status: int, body: bytes, headers: list[tuple[bytes, bytes]], *, close: bool) -> bytes:
    """Return a complete HTTP answer with a body of JSON."""
    last = b"connection: close\r\n" if close else b""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    length = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    return b"".join((STATUS_LINE[status], lines, last, length, body))


def error_response(status: int, message: str) -> bytes:
    """Return the complete HTTP answer to an invalid request, after which the connection is closed."""
    return json_response(status, status_body(status, message), [NO_SNIFFING], close=True)


def busy_app(requests: int, on_shed: Callable[[], object]) -> ASGIApp:
    """Make the application that answers 503 without closing the connection; `on_shed` is called for every request."""
    body = status_body(503, f"busy with {requests} requests")
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]

    async def answer_busy(_scope: Scope, _receive: Receive, send: Send) -> None:
        on_shed()
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer_busy


def unread_bytes(transport: asyncio.Transport) -> int:
    """Count the bytes written that the peer has not acknowledged; only our own buffers where the kernel cannot tell.

    SIOCOUTQ of a socket equals TIOCOUTQ (tcp(7)).
    """
    unread = transport.get_write_buffer_size()
    with contextlib.suppress(OSError, ValueError, AttributeError):
        queue = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
        unread += struct.unpack("=i", queue)[0]
    return unread


def input_waits(sock: socket.socket | None) -> bool:
    """Tell whether the kernel holds bytes from the peer that the loop has not read yet."""
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return any(events == select.POLLIN for _, events in poll.poll(0))  # POLLHUP or POLLERR: the peer has closed
