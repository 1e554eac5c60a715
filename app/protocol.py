# SPDX-License-Identifier: Apache-2.0
"""The HTTP protocol of our listeners: uvicorn's on httptools, with limits to how long and how much a caller may take.

uvicorn alone keeps a silent or half-sent request open without end, and takes a header of 8 MB (OPERATIONS §4.5).
"""

import asyncio
import math
import select
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from app.api.clients import client_scope
from app.api.wire import status_body
from app.errors import WireError

TICK_SECONDS = 0.002
"""uvloop's clock and timers go by whole milliseconds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how much a caller may take. The waits are those of OPERATIONS fault 24."""

    silent_seconds: float = 5.0
    """From the connection, its TLS settled, to the first byte."""
    header_seconds: float = 5.0
    """From a request's first byte to the end of its header, whatever trickles in between."""
    body_seconds: float = 5.0
    """Between two pieces of a body."""
    request_seconds: float = 30.0
    """For a whole request to arrive, or an answer to be taken: no webhook's timeoutSeconds may be longer."""
    stalled_seconds: float = 1.0
    """A body that paused this long gives way where we are full; guess, measured nowhere."""
    handshake_seconds: float = 10.0
    goodbye_seconds: float = 2.0
    """For the peer's close_notify; guess. The event loop's own 30 s would hold up our end (HA-04)."""
    header_bytes: int = 64 << 10
    """OPERATIONS fault 25."""
    requests: int = 512
    """In hand at once (HA-08)."""
    keep_alive_seconds: int = 90
    """Longer than the callers' idle connections live, so that they close them, not we (HA-04)."""


class Phase(Enum):
    """What a connection waits for; the values name closed connections in the metric."""

    Silent = "silent"
    """Its first byte ever."""
    Header = "header"
    Body = "body"
    Answer = "answer"
    """Ours, and after it the next request, which uvicorn's keep-alive timer watches."""
    Refused = "refused"
    """The end: who still sends cannot read our refusal after a reset, so that we take the rest, and drop it."""


@dataclass(frozen=True, slots=True)
class House:
    """What all connections of a listener share."""

    limits: Limits = Limits()
    draining: Callable[[], bool] = lambda: False
    """Whether each answer is its connection's last."""
    shed: Callable[[], object] = lambda: None
    """Hears of each request turned away."""
    closed: Callable[[str], object] = lambda _phase: None
    """Hears of each connection that lost our patience."""


class GuardedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        house: House,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._house, self._limits = house, house.limits
        self._served = self.app
        self._phase = Phase.Silent
        self._began = 0.0
        self._due = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._header_bytes = self._chunk = 0
        self._extras: Mapping[str, Any] = {}

    # What the transport calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._extras = client_scope(transport)
        self._enter(Phase.Silent)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = math.inf
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._phase is Phase.Refused:
            return
        if self._phase in (Phase.Silent, Phase.Answer):
            self._header_bytes = 0
            self._enter(Phase.Header)
        elif self._phase is Phase.Body:
            self._due = self._when_due()
        self._chunk = len(data)
        super().data_received(data)
        if self._phase is Phase.Header and not self.transport.is_closing():
            self._header_bytes += self._chunk
            if self._header_bytes > self._limits.header_bytes:
                self._refuse(431)

    # What the parser calls.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope.update(self._extras)  # type: ignore[typeddict-item]

    def on_headers_complete(self) -> None:
        self._header_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if self._header_bytes > self._limits.header_bytes:
            raise WireError(431, "header: too large")  # the parser stops, and send_400_response says so
        self.app = self._served if self._room() else self._turn_away
        super().on_headers_complete()
        self._enter(Phase.Body)
        if self._house.draining():
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._chunk = 0  # the rest of the chunk is the next request's, pipelined; its header counts from the next on
        self._enter(Phase.Answer)
        if self.cycle.response_complete and not self.transport.is_closing():  # answered early: uvicorn's timer is gone
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    # What uvicorn calls.

    def send_400_response(self, msg: str) -> None:
        self._refuse(431 if self._header_bytes > self._limits.header_bytes else 400, msg)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_in(self._limits.request_seconds)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_in(self._limits.goodbye_seconds)

    def last_answer(self) -> None:
        """Make the answer in hand, if there is one, the connection's last."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Close an idle connection, unless a request is on its way in: that one is answered first."""
        self.last_answer()
        answered = self.cycle is None or self.cycle.response_complete
        idle = self._phase in (Phase.Silent, Phase.Answer) and not self._bytes_wait()
        if (answered and idle) or self._phase is Phase.Refused:
            self.transport.close()

    # Ours.

    def _bytes_wait(self) -> bool:
        """Tell whether the kernel holds bytes of this connection that the loop has not read yet."""
        sock = self.transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN)
        return any(events == select.POLLIN for _, events in poll.poll(0))  # with POLLHUP or POLLERR: the peer is gone

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        if phase is not Phase.Body:
            self._began = self.loop.time()
        self._due = self._when_due()
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and self._due < math.inf:
            self._timer = self.loop.call_at(self._due, self._look)

    def _when_due(self) -> float:
        limits, now = self._limits, self.loop.time()
        match self._phase:
            case Phase.Silent:
                return now + limits.silent_seconds
            case Phase.Header:
                return now + limits.header_seconds
            case Phase.Body:
                return min(now + limits.body_seconds, self._began + limits.request_seconds)
            case Phase.Refused:
                return now + limits.goodbye_seconds
            case Phase.Answer:
                return math.inf

    def _look(self) -> None:
        """Close the connection if it is due. One timer runs behind the due time, which moves with each piece."""
        self._timer = None
        if self._due == math.inf or self.transport.is_closing():
            return
        now = self.loop.time()
        if self.flow.read_paused and self._phase is Phase.Body:  # it is us who do not read
            self._due = max(self._due, now + self._limits.body_seconds)
        if now < self._due - TICK_SECONDS:
            self._timer = self.loop.call_at(self._due, self._look)
            return
        if self._phase is Phase.Refused:
            self._close()
        else:
            self._give_up()

    def _give_up(self) -> None:
        self._house.closed(self._phase.value)
        self.transport.abort()

    def _abort_in(self, seconds: float) -> None:
        """Do not wait for ever for a closing connection's peer to take what is written."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _room(self) -> bool:
        """Tell whether a request can be taken in hand; where we are full, the longest stalled body gives way."""
        if len(self.tasks) < self._limits.requests:
            return True
        stalled = [each for each in self.connections if isinstance(each, GuardedProtocol) and each.stalled()]
        if not stalled:
            return False
        min(stalled, key=lambda each: each._due)._give_up()
        return True

    def stalled(self) -> bool:
        """Tell whether a body has stopped coming."""
        waits = self._limits.body_seconds - (self._due - self.loop.time())
        in_body = self._phase is Phase.Body and not self.transport.is_closing() and not self.flow.read_paused
        return in_body and waits >= self._limits.stalled_seconds

    async def _turn_away(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        self._house.shed()
        body = status_body(503, f"busy with {self._limits.requests} requests")
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _refuse(self, status: int, message: str = "") -> None:
        """Answer what is no request we take, and close."""
        if status == 431:
            message = f"header: larger than {self._limits.header_bytes >> 10} KiB, wants at most that"
            self._house.closed("header_size")
        body = status_body(status, message)
        lines = [STATUS_LINE[status], b"content-type: application/json\r\nconnection: close\r\n"]
        self.transport.write(b"".join([*lines, b"content-length: %d\r\n\r\n" % len(body), body]))
        self._enter(Phase.Refused)

    def _close(self) -> None:
        self.transport.close()
        self._abort_in(self._limits.goodbye_seconds)
