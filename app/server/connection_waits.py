# SPDX-License-Identifier: Apache-2.0
"""How long a connection waits, for what, and how it ends: the half of the protocol that looks at the clock."""

import asyncio
import select
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from app.server.connection_timer import Deadline
from app.server.connections import Connections
from app.server.limits import Phase
from app.server.status_answers import refusal
from app.server.unsent_output import taken, unread

BODY, IDLE = Phase.Body, Phase.Idle
"""Members of an enumeration are looked up slowly, and these in each request."""


class WaitingProtocol(HttpToolsProtocol):
    """A connection that waits only so long, and gives way to others."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        shared: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._shared, self._limits = shared, shared.limits
        self._deadline = Deadline(self.loop, self._late)
        self._phase = Phase.Silent
        self._began = self.since = self._slow_since = 0.0
        self._arrived = 0
        self._taken: int | None = None
        self._timed = False
        """Whether the body in hand has its deadline."""
        self._resting = False
        """Whether the deadline is that of an idle connection, too far away for a request."""

    # What the other connections ask.

    def give_way(self, why: str) -> None:
        """End at once, and be counted."""
        self._shared.leave(self)
        self._shared.closed(why)
        self._deadline.stop()
        self.transport.abort()

    def behind(self, now: float) -> float:
        """Give the seconds for which the body has come too slowly."""
        if self._phase is not Phase.Body or self.flow.read_paused or self.transport.is_closing():
            return 0.0
        elapsed = now - self.since
        return elapsed if self._arrived < self._limits.body_rate * elapsed else 0.0

    # Phases.

    def _enter(self, phase: Phase, seconds: float) -> None:
        """Wait so long for what the phase names."""
        self._phase = phase
        self.since = now = self.loop.time()
        self._deadline.move(now + seconds)

    def _wait_for_header(self) -> None:
        """A request has begun. Who was silent until now has waited since then."""
        since = self.since if self._phase is Phase.Silent else self.loop.time()
        self._shared.idle.pop(self, None)
        self._shared.newcomers[self] = None
        self._enter(Phase.Header, self._limits.header_seconds)
        self._began, self.since = self.since, since

    def _wake(self) -> None:
        """A request comes to an idle connection: look again soon, whatever it waits for then."""
        self._resting = False
        self._deadline.move(self.loop.time() + self._limits.answer_seconds)

    def _begin_request(self) -> None:
        """A request's header is whole; nothing is timed yet, since its body is here as a rule."""
        if self._phase is IDLE:
            self._shared.idle.pop(self, None)
            self._began = 0.0
        else:
            self._shared.newcomers.pop(self, None)
        self._phase = BODY
        self._timed = False

    def _wait_for_body(self) -> None:
        """Some of a request's body is still to come."""
        if self._timed:
            return
        self._timed = True
        limits = self._limits
        self._arrived = 0
        self._shared.bodies[self] = None
        self._enter(Phase.Body, min(limits.body_seconds, limits.request_seconds))
        self._began = self._began or self.since

    def _late(self, now: float) -> None:
        """What we waited for did not come in time."""
        match self._phase:
            case Phase.Body:
                self._look_at_body(now)
            case Phase.Answer | Phase.Idle:
                self._look_at_output(now)
            case Phase.Refused:
                self._close()
            case Phase.Closing:
                self.transport.abort()
            case _:
                self.give_way(self._phase.value)

    def _look_at_body(self, now: float) -> None:
        limits, left = self._limits, self._began + self._limits.request_seconds - now
        if not self.flow.read_paused:  # else it is us who do not read
            if self._arrived < limits.body_rate * (now - self.since) or left <= 0:
                self.give_way(self._phase.value)
                return
        else:
            left = limits.body_seconds
        self.since, self._arrived = now, 0
        self._deadline.move(now + min(limits.body_seconds, left))

    def _look_at_output(self, now: float) -> None:
        """End the connection if its peer took nothing of what waits for it since the last look, or all too slowly."""
        if not unread(self.transport):
            self._taken = None
            self._wait_on(now)
            return
        before, self._taken = self._taken, taken(self.transport)
        if before is None:
            self._slow_since = now
        elif self._taken == before or now - self._slow_since > self._limits.request_seconds:
            self.give_way("answer")
            return
        self._deadline.move(now + self._limits.answer_seconds)

    def _wait_on(self, now: float) -> None:
        """All is taken: wait for our answer, the next request, or the end."""
        end = self.since + self._limits.keep_alive_seconds
        if self.transport.is_closing():
            self.transport.abort()
        elif self._phase is Phase.Answer:
            self._deadline.move(now + self._limits.answer_seconds)
        elif now >= end:
            self._close()
        else:
            self._resting = True
            self._deadline.move(end)

    # The end.

    def last_answer(self) -> None:
        """Make the answer in hand, if there is one, the connection's last."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def _refuse(self, status: int, message: str = "") -> None:
        """Answer what is no request we take, and close; an answer that has begun cannot be taken back."""
        if status == 431:
            message = f"header: larger than {self._limits.header_bytes >> 10} KiB, wants at most that"
            self._shared.closed("header_size")
        self._shared.idle.pop(self, None)
        self._shared.newcomers.pop(self, None)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # else it would answer behind our refusal
            cycle.message_event.set()
            if cycle.response_started:
                self._phase = Phase.Closing
                self.transport.abort()
                return
        self.transport.write(refusal(status, message))
        self._enter(Phase.Refused, self._limits.goodbye_seconds)

    def _close(self) -> None:
        """Close, and do not wait for ever for the peer to take what is written."""
        self.transport.close()
        self._enter(Phase.Closing, self._limits.goodbye_seconds)

    def _bytes_wait(self) -> bool:
        """Tell whether the kernel holds bytes of this connection that the loop has not read yet."""
        sock = self.transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN)
        return any(events == select.POLLIN for _, events in poll.poll(0))  # with POLLHUP or POLLERR: the peer is gone
