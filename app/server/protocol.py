# SPDX-License-Identifier: Apache-2.0
"""The HTTP protocol of our listeners: uvicorn's on httptools, one request at a time, with limits to what callers take.

uvicorn alone keeps a silent or half-sent request open without end, takes a header of 8 MB
(docs/reference/measurements.md#serving), and makes objects of all requests that it is sent ahead of their turn.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.server import ServerState

from app.api.client_certificates import client_scope
from app.server.connections import Connections
from app.server.limits import KIB, Phase
from app.server.request_reading import ANSWER, IDLE, SILENT, HeldFlow, ReadingProtocol
from app.values.errors import WireError

PROBES = (b"/livez", b"/readyz")
"""Answered however many requests are in hand: the kubelet must not end a replica for being busy."""
FOLLOWS = "gpu-usher.follows"
"""Key of the ASGI scope: whether the connection asked something before."""
TLS_BUFFER = 64 * KIB
"""Each way, of a TLS connection: the event loop's own are 512 and 256 KiB, 480 MiB for all connections."""


class GuardedProtocol(ReadingProtocol):
    """One connection."""

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
        self._extras: Mapping[str, Any] = {}

    # What the transport calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = HeldFlow(transport)
        self._extras = client_scope(transport)
        if self.scheme == "https":
            transport.set_write_buffer_limits(TLS_BUFFER)
            transport.set_read_buffer_limits(TLS_BUFFER)  # type: ignore[attr-defined]
        self._shared.members.add(self)
        self._shared.newcomers[self] = None
        self._enter(SILENT, self._limits.silent_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.stop()
        self._held = b""
        self._shared.leave(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._shared.pile_up(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._shared.flow_again(self)
        if self._phase is IDLE:
            self._go_on()

    # What the parser calls.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope.update(self._extras)  # type: ignore[typeddict-item]
        self.scope[FOLLOWS] = self.cycle is not None  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        size = len(self.url)
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            if name == b"content-length":
                self._framing.announced(int(value))
        self._header_bytes = size
        if size > self._limits.header_bytes:
            raise WireError(431, "header: too large")  # the parser stops, and send_400_response says so
        self._header_bytes = 0
        self.app = self._served if self._room() else self._shared.turn_away
        super().on_headers_complete()
        self._begin_request()
        if self._shared.draining():
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Do as uvicorn, which asks after upgrades too; what comes between two pieces counts like a header."""
        self._header_bytes = 0
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        """Do as uvicorn, and begin to wait for our answer: whatever deadline is set looks after it."""
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()
        self._header_bytes = 0
        self._framing.ended()
        if self._timed:
            self._shared.bodies.pop(self, None)
        self._phase = ANSWER

    # What uvicorn calls.

    def send_400_response(self, msg: str) -> None:
        self._refuse(431 if self._header_bytes > self._limits.header_bytes else 400, msg)

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._held = b""
            self._shared.hold(self, 0)
            self._enter(ANSWER, self._limits.answer_seconds)
            return
        self.flow.resume_reading()
        if self._phase is ANSWER:
            self._rest()

    def shutdown(self) -> None:
        """Close an idle connection, unless a request is on its way in: that one is answered first."""
        self.last_answer()
        waiting = self._phase in (SILENT, IDLE) and not self._held and not self._bytes_wait()
        if waiting or self._phase is Phase.Refused:
            self._close()

    # Ours.

    def _room(self) -> bool:
        """Tell whether a request can be taken in hand; where we are full, a slow body gives way."""
        if len(self.tasks) < self._limits.requests or self.url.partition(b"?")[0] in PROBES:
            return True
        return self._shared.drop_slow_body(self.loop.time(), self._limits.stalled_seconds)
