# SPDX-License-Identifier: Apache-2.0
"""The HTTP protocol of our listeners: uvicorn's on httptools, one request at a time, with limits for callers.

uvicorn alone keeps a silent or half-sent request open without end, accepts a header of 8 MB
(docs/reference/measurements.md#serving), and makes objects of all pipelined requests.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from app.api.allowed_callers import client_scope
from app.api.direct_routes import WRITE_ANSWER, Answer
from app.server.connections import Connections, WaitingProtocol
from app.server.limits import KIB, Phase
from app.server.transports import LENGTH_AND_CLOSE, LENGTH_AND_END, input_waits
from app.values.errors import WireError

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


PIECES_PER_TURN = 256
"""Pieces parsed in one turn of the loop; they take 1 ms if they are chunks of a few bytes (measured)."""
SILENT, HEADER, BODY, ANSWER, IDLE = Phase.Silent, Phase.Header, Phase.Body, Phase.Answer, Phase.Idle
"""Constants, because the lookup of an enumeration's member is slow and happens in every request."""
STOPPED = (ANSWER, Phase.Refused, Phase.Closing)
"""Phases in which no bytes are parsed."""


class HeldFlow(FlowControl):
    """Flow control that stops reading while bytes of later requests are held."""

    holding = False

    def resume_reading(self) -> None:
        """Read on, unless bytes are held."""
        if self.read_paused and not self.holding:
            super().resume_reading()


PROBES = (b"/livez", b"/readyz")
"""Paths answered also when too many requests are in progress, so that the kubelet does not restart a busy replica."""
FOLLOWS = "gpu-usher.follows"
"""Key of the ASGI scope that holds whether the connection has sent a request before."""
TLS_BUFFER = 64 * KIB
"""Bytes per direction of a TLS connection. The event loop's own buffers are 512 and 256 KiB, 480 MiB in all."""


class GuardedProtocol(WaitingProtocol):
    """One connection of a listener: it parses one request, and then waits for its answer."""

    flow: HeldFlow

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        shared: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop, shared=shared)
        self._framing = Framing()
        self._held, self._held_from = b"", 0
        self._header_bytes = 0
        self._served = self.app
        self._client_scope: Mapping[str, Any] = {}

    # Called by the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = HeldFlow(transport)
        self._client_scope = client_scope(transport)
        if self.scheme == "https":
            transport.set_write_buffer_limits(TLS_BUFFER)
            transport.set_read_buffer_limits(TLS_BUFFER)  # type: ignore[attr-defined]
        self._shared.connections.add(self)
        self._shared.awaiting_header[self] = None
        self._enter(SILENT, self._limits.silent_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.stop()
        self._held = b""
        self._shared.remove(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._shared.output_blocked(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._shared.output_flows(self)
        if self._phase is IDLE:
            self._parse_held()

    # Called by the parser.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope.update(self._client_scope)  # type: ignore[typeddict-item]
        self.scope[FOLLOWS] = self.cycle is not None  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        size = len(self.url)
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            if name == b"content-length":
                self._framing.expect_body(int(value))
        self._header_bytes = size
        if size > self._limits.header_bytes:
            raise WireError(431, "header: too large")  # stops the parser; send_400_response then answers
        self._header_bytes = 0
        self.app = self._served if self._may_start() else self._shared.busy_app
        super().on_headers_complete()
        self.scope[WRITE_ANSWER] = partial(self._write_answer, self.cycle)  # type: ignore[literal-required]
        self._begin_request()
        if self._shared.draining():
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Do as uvicorn without its check for upgrades; bytes between two pieces of a body count as header bytes."""
        self._header_bytes = 0
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        """Do as uvicorn, and wait for our answer; the deadline that is set already covers that wait."""
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()
        self._header_bytes = 0
        self._framing.begin_request()
        if self._timed:
            self._shared.bodies.pop(self, None)
        self._phase = ANSWER

    # Reading.

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._phase is Phase.Refused:
            return
        if self._resting:
            self._leave_idle()
        self._arrived += len(data)
        if self._held or self._phase is ANSWER or (self.flow.write_paused and self._phase is IDLE):
            self._hold(self._held[self._held_from :] + data, 0)
        else:
            self._parse_request(data, 0)

    def _parse_request(self, data: bytes, start: int) -> None:
        """Parse up to the end of a request, from `start`; bytes behind it are held until the request is answered."""
        size, piece_end, parse = len(data), self._framing.piece_end, self._parse
        for _ in range(PIECES_PER_TURN):
            end = piece_end(data, start)
            try:
                more = parse(data if end - start == size else data[start:end])
            except httptools.HttpParserUpgrade:
                self._unsupported_upgrade_warning()
                end, more = size, False  # the rest is in another protocol
            start = end
            if start == size or not more:
                break
        else:
            self.loop.call_soon(self._parse_held)
        if start < size or self.flow.holding:
            self._hold(data, start)
        self._enter_next_phase()

    def _parse(self, piece: bytes) -> bool:
        """Parse a piece, and tell whether the next one may be parsed at once.

        Raises HttpParserUpgrade after a request to switch to another protocol.
        """
        self._header_bytes += len(piece)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        else:
            if self._header_bytes > self._limits.header_bytes:
                self._refuse(431)
        return self._phase not in STOPPED

    def _enter_next_phase(self) -> None:
        """Enter the phase that follows, once everything that can be parsed is parsed."""
        phase = self._phase
        if phase is ANSWER:
            if (
                self.cycle.response_complete and not self.transport.is_closing()
            ):  # answered before its body was complete
                self._await_next_request()
        elif phase is BODY:
            self._wait_for_body()
        elif phase is Phase.Refused:
            self._hold(b"", 0)
        elif phase is not HEADER and phase is not Phase.Closing:
            self._wait_for_header()

    def _hold(self, data: bytes, start: int) -> None:
        """Hold the bytes from `start` and stop reading; read on if there are none."""
        if start < len(data):
            self._held, self._held_from, self.flow.holding = data, start, True
            self.flow.pause_reading()
            self._shared.set_held_bytes(self, len(data))
        else:
            self._held, self._held_from, self.flow.holding = b"", 0, False
            self._shared.set_held_bytes(self, 0)
            if self._phase is not BODY or len(self.cycle.body) <= HIGH_WATER_LIMIT:  # else uvicorn resumes
                self.flow.resume_reading()

    def _parse_held(self) -> None:
        """Parse held bytes, if the phase allows it."""
        stopped = self.transport.is_closing() or self._phase in STOPPED
        if self._held and not stopped:
            self._parse_request(self._held, self._held_from)

    def _await_next_request(self) -> None:
        """Wait for the next request; a held one is parsed once the peer takes our answers."""
        self._phase = IDLE
        self.since = self.loop.time()
        if not self._held:
            self._shared.add_idle(self)
        elif not self.flow.write_paused:
            self._parse_held()

    # Called by uvicorn.

    def send_400_response(self, msg: str) -> None:
        self._refuse(431 if self._header_bytes > self._limits.header_bytes else 400, msg)

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._held = b""
            self._shared.set_held_bytes(self, 0)
            self._enter(ANSWER, self._limits.answer_seconds)
            return
        self.flow.resume_reading()
        if self._phase is ANSWER:
            self._await_next_request()

    def shutdown(self) -> None:
        """Close an idle connection, unless a request is arriving: that one is answered first."""
        self.last_answer()
        unread = self._held or input_waits(self.transport.get_extra_info("socket"))
        waiting = self._phase in (SILENT, IDLE) and not unread
        if waiting or self._phase is Phase.Refused:
            self._close()

    def _write_answer(self, cycle: RequestResponseCycle, answer: Answer) -> bool:
        """Write a whole answer, as the `send` of uvicorn's cycle does in two parts; False while output is paused."""
        if self.flow.write_paused:
            return False
        if cycle.disconnected:
            return True
        cycle.response_started = cycle.response_complete = True
        cycle.keep_alive = cycle.keep_alive and not answer.close
        head = self._shared.heads.of(answer.status, self.server_state.default_headers)
        end = LENGTH_AND_END if cycle.keep_alive else LENGTH_AND_CLOSE
        self.transport.write(b"".join((head, end % len(answer.body), answer.body)))
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        return True

    def _may_start(self) -> bool:
        """Tell whether a request may be processed; if too many are in progress, one with a slow body is closed."""
        if len(self.tasks) < self._limits.requests or self.url.partition(b"?")[0] in PROBES:
            return True
        return self._shared.drop_slow_body(self.loop.time(), self._limits.stalled_seconds)
