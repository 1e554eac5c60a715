# SPDX-License-Identifier: Apache-2.0
"""The HTTP protocol of our listeners: uvicorn's on httptools, one request at a time, with limits to what callers take.

uvicorn alone keeps a silent or half-sent request open without end, takes a header of 8 MB (OPERATIONS §4.5), and makes
objects of all requests that it is sent ahead of their turn.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.server import ServerState

from app.api.clients import client_scope
from app.errors import WireError
from app.server.connections import Connections
from app.server.framing import Framing
from app.server.limits import KIB, Phase
from app.server.waiting import WaitingProtocol

PROBES = (b"/livez", b"/readyz")
"""Answered however many requests are in hand: the kubelet must not end a replica for being busy."""
MOST_PIECES = 256
"""Of what arrived, in one turn of the loop; they take 1 ms where each is a chunk of some bytes (measured)."""
TLS_BUFFER = 64 * KIB
"""Each way, of a TLS connection: the event loop's own are 512 and 256 KiB, 480 MiB for all connections."""


class HeldFlow(FlowControl):
    """Reads nothing more while bytes of later requests wait for their turn."""

    holding = False

    def resume_reading(self) -> None:
        """Read on, unless something waits."""
        if self.read_paused and not self.holding:
            super().resume_reading()


class GuardedProtocol(WaitingProtocol):
    """One connection."""

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
        self._served = self.app
        self._framing = Framing()
        self._held, self._at = b"", 0
        self._header_bytes = 0
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
        self._enter(Phase.Silent, self._limits.silent_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.stop()
        self._held = b""
        self._shared.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._phase is Phase.Refused:
            return
        self._arrived += len(data)
        if self._held or self._phase is Phase.Answer or (self.flow.write_paused and self._phase is Phase.Idle):
            self._hold(self._held[self._at :] + data, 0)
        else:
            self._feed(data, 0)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._shared.pile_up(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._shared.flow_again(self)
        if self._phase is Phase.Idle:
            self._go_on()

    # What the parser calls.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope.update(self._extras)  # type: ignore[typeddict-item]

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
        self._wait_for_body()
        if self._shared.draining():
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._header_bytes = 0  # what comes between two pieces of a body counts like a header
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._header_bytes = 0
        self._framing.ended()
        self._enter(Phase.Answer, self._limits.answer_seconds)

    # What uvicorn calls.

    def send_400_response(self, msg: str) -> None:
        self._refuse(431 if self._header_bytes > self._limits.header_bytes else 400, msg)

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._enter(Phase.Answer, self._limits.answer_seconds)
            return
        self.flow.resume_reading()
        if self._phase is Phase.Answer:
            self._rest()

    def shutdown(self) -> None:
        """Close an idle connection, unless a request is on its way in: that one is answered first."""
        self.last_answer()
        waiting = self._phase in (Phase.Silent, Phase.Idle) and not self._held and not self._bytes_wait()
        if waiting or self._phase is Phase.Refused:
            self._close()

    # Reading.

    def _feed(self, data: bytes, at: int) -> None:
        """Parse up to the end of a request; what is behind it waits until that one is answered."""
        size = len(data)
        for _ in range(MOST_PIECES):
            end = self._framing.cut(data, at)
            self._parse(data if end - at == size else data[at:end])
            at = end
            if self.transport.is_closing() or self._phase is Phase.Refused:
                at = size
            if at == size or self._phase is Phase.Answer:
                break
        else:
            self.loop.call_soon(self._go_on)
        self._hold(data, at)
        if self._phase is Phase.Answer:
            if self.cycle.response_complete and not self.transport.is_closing():  # before the body was whole
                self._rest()
        elif self._phase is Phase.Idle or self._phase is Phase.Silent:
            self._wait_for_header()

    def _parse(self, piece: bytes) -> None:
        self._header_bytes += len(piece)
        super().data_received(piece)
        if self._header_bytes > self._limits.header_bytes and self._phase is not Phase.Refused:
            self._refuse(431)

    def _hold(self, data: bytes, at: int) -> None:
        """Keep what is behind `at`, and read nothing more meanwhile."""
        if at < len(data):
            self._held, self._at, self.flow.holding = data, at, True
            self.flow.pause_reading()
            self._shared.hold(self, len(data))
        elif self.flow.holding:
            self._held, self._at, self.flow.holding = b"", 0, False
            self._shared.hold(self, 0)
            if self.cycle is None or len(self.cycle.body) <= HIGH_WATER_LIMIT:  # else uvicorn resumes
                self.flow.resume_reading()

    def _go_on(self) -> None:
        """Take up what was held, where its turn has come."""
        stopped = self.transport.is_closing() or self._phase in (Phase.Answer, Phase.Refused)
        if self._held and not stopped:
            self._feed(self._held, self._at)

    def _rest(self) -> None:
        """Be ready for the next request; it is taken once the peer takes its answers."""
        self._enter(Phase.Idle, self._limits.answer_seconds)
        if not self._held:
            self._shared.rest(self)
        elif not self.flow.write_paused:
            self._go_on()

    def _room(self) -> bool:
        """Tell whether a request can be taken in hand; where we are full, the slowest body gives way."""
        if len(self.tasks) < self._limits.requests or self.url.partition(b"?")[0] in PROBES:
            return True
        return self._shared.drop_slowest(self.loop.time())
