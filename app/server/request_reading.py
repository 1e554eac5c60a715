# SPDX-License-Identifier: Apache-2.0
"""Reading one request at a time: what is sent ahead of its turn stays bytes, and nothing more is read meanwhile."""

import asyncio
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.server import ServerState

from app.server.connection_waits import WaitingProtocol
from app.server.connections import Connections
from app.server.framing import Framing
from app.server.limits import Phase

MOST_PIECES = 256
"""Of what arrived, in one turn of the loop; they take 1 ms where each is a chunk of some bytes (measured)."""
SILENT, HEADER, BODY, ANSWER, IDLE = Phase.Silent, Phase.Header, Phase.Body, Phase.Answer, Phase.Idle
"""Members of an enumeration are looked up slowly, and these in each request."""
STOPPED = (ANSWER, Phase.Refused, Phase.Closing)
"""Phases in which nothing is parsed."""


class HeldFlow(FlowControl):
    """Reads nothing more while bytes of later requests wait for their turn."""

    holding = False

    def resume_reading(self) -> None:
        """Read on, unless something waits."""
        if self.read_paused and not self.holding:
            super().resume_reading()


class ReadingProtocol(WaitingProtocol):
    """A connection that parses one request, and then waits for its answer."""

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
        self._held, self._at = b"", 0
        self._header_bytes = 0

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._phase is Phase.Refused:
            return
        if self._resting:
            self._wake()
        self._arrived += len(data)
        if self._held or self._phase is ANSWER or (self.flow.write_paused and self._phase is IDLE):
            self._hold(self._held[self._at :] + data, 0)
        else:
            self._feed(data, 0)

    def _feed(self, data: bytes, at: int) -> None:
        """Parse up to the end of a request; what is behind it waits until that one is answered."""
        size, cut, parse = len(data), self._framing.cut, self._parse
        for _ in range(MOST_PIECES):
            end = cut(data, at)
            try:
                more = parse(data if end - at == size else data[at:end])
            except httptools.HttpParserUpgrade:
                self._unsupported_upgrade_warning()
                end, more = size, False  # what follows is another protocol's
            at = end
            if at == size or not more:
                break
        else:
            self.loop.call_soon(self._go_on)
        if at < size or self.flow.holding:
            self._hold(data, at)
        self._look_where_we_are()

    def _parse(self, piece: bytes) -> bool:
        """Parse a piece; tells whether the next one may follow at once.

        Raises HttpParserUpgrade behind a request for another protocol.
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

    def _look_where_we_are(self) -> None:
        """Wait for what is to come next, once all was parsed that can be."""
        phase = self._phase
        if phase is ANSWER:
            if self.cycle.response_complete and not self.transport.is_closing():  # before the body was whole
                self._rest()
        elif phase is BODY:
            self._wait_for_body()
        elif phase is Phase.Refused:
            self._hold(b"", 0)
        elif phase is not HEADER and phase is not Phase.Closing:
            self._wait_for_header()

    def _hold(self, data: bytes, at: int) -> None:
        """Keep what is behind `at`, and read nothing more meanwhile."""
        if at < len(data):
            self._held, self._at, self.flow.holding = data, at, True
            self.flow.pause_reading()
            self._shared.hold(self, len(data))
        else:
            self._held, self._at, self.flow.holding = b"", 0, False
            self._shared.hold(self, 0)
            if self._phase is not BODY or len(self.cycle.body) <= HIGH_WATER_LIMIT:  # else uvicorn resumes
                self.flow.resume_reading()

    def _go_on(self) -> None:
        """Take up what was held, where its turn has come."""
        stopped = self.transport.is_closing() or self._phase in STOPPED
        if self._held and not stopped:
            self._feed(self._held, self._at)

    def _rest(self) -> None:
        """Be ready for the next request; it is taken once the peer takes its answers."""
        self._phase = IDLE
        self.since = self.loop.time()
        if not self._held:
            self._shared.rest(self)
        elif not self.flow.write_paused:
            self._go_on()
