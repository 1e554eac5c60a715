# SPDX-License-Identifier: Apache-2.0
"""The HTTP protocol of our listeners: uvicorn's on httptools, one request at a time, with limits for callers.

uvicorn alone keeps a silent or half-sent request open without end, accepts a header of 8 MB
(docs/reference/measurements.md#serving), and makes objects of all pipelined requests.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from app.api.answers import WRITE_ANSWER, Answer
from app.api.client_certificates import ABORT, client_scope
from app.server.connections import Connections
from app.server.limits import KIB, Phase
from app.server.request_reading import ANSWER, IDLE, SILENT, HeldFlow, ReadingProtocol
from app.server.socket_buffers import abort, input_waits
from app.server.status_answers import LENGTH_AND_CLOSE, LENGTH_AND_END
from app.values.errors import WireError

PROBES = (b"/livez", b"/readyz")
"""Paths answered also when too many requests are in progress, so that the kubelet does not restart a busy replica."""
FOLLOWS = "gpu-usher.follows"
"""Key of the ASGI scope that holds whether the connection has sent a request before."""
TLS_BUFFER = 64 * KIB
"""Bytes per direction of a TLS connection. The event loop's own buffers are 512 and 256 KiB, 480 MiB in all."""


class GuardedProtocol(ReadingProtocol):
    """One connection of a listener."""

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
        self._served = self.app
        self._client_scope: Mapping[str, Any] = {}

    # Called by the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = HeldFlow(transport)
        self._client_scope = {**client_scope(transport), ABORT: partial(abort, transport)}
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
