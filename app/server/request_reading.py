# SPDX-License-Identifier: Apache-2.0
"""Reads one request at a time: pipelined requests stay bytes, and nothing more is read until their turn comes."""

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


class ReadingProtocol(WaitingProtocol):
    """A connection that parses one request and then waits for its answer."""

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
