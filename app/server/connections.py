# SPDX-License-Identifier: Apache-2.0
"""The connections of one listener: their number, the bytes they hold, and which one is closed when there is no room.

Each has time limits: which phase it is in, how long it may stay there, and how it is closed. The bytes that wait in its
buffers, ours and the kernel's, tell whether the peer takes its answers.
"""

import asyncio
import math
import socket
from collections.abc import Callable
from itertools import islice
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from app.server.limits import Limits, Phase
from app.server.transports import (
    AnswerHeads,
    abort,
    acknowledged_bytes,
    busy_app,
    error_response,
    input_waits,
    unacknowledged_bytes,
)

TICK_SECONDS = 0.002
"""Tolerance: uvloop's clock and timers have a resolution of 1 ms."""


class Deadline:
    """Calls `on_expiry` with the loop's time once that is past `due`; `due` is infinite while nothing is awaited."""

    __slots__ = ("_loop", "_on_expiry", "_timer", "_timer_due", "due")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_expiry: Callable[[float], object]) -> None:
        self._loop, self._on_expiry = loop, on_expiry
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = math.inf
        self.due = math.inf

    def move(self, due: float) -> None:
        """Set the deadline to `due`, a time of the loop's clock in seconds."""
        self.due = due
        if due < self._timer_due:
            if self._timer is not None:
                self._timer.cancel()
            self._arm()

    def stop(self) -> None:
        self.due = self._timer_due = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._timer_due = self.due
        self._timer = self._loop.call_at(self.due, self._check)

    def _check(self) -> None:
        self._timer, self._timer_due = None, math.inf
        now = self._loop.time()
        if now >= self.due - TICK_SECONDS:
            self._on_expiry(now)
        elif self.due < math.inf:
            self._arm()


BODY, IDLE = Phase.Body, Phase.Idle
"""Constants, because the lookup of an enumeration's member is slow and happens in every request."""


class WaitingProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with a deadline for each phase; other connections may close it to make room."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        shared: "Connections",
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._shared, self._limits = shared, shared.limits
        self._deadline = Deadline(self.loop, self._deadline_passed)
        self._phase = Phase.Silent
        self._began = self.since = self._slow_since = 0.0
        self._arrived = 0
        self._acknowledged: int | None = None
        self._timed = False
        """Whether a deadline is set for the body of the current request."""
        self._resting = False
        """Whether the deadline is the keep-alive timeout, which is too far away for a request."""

    # Called for other connections.

    def evict(self, reason: str) -> None:
        """Close at once, and count the closed connection under `reason`."""
        self._shared.remove(self)
        self._shared.on_closed(reason)
        self._deadline.stop()
        abort(self.transport)

    def seconds_too_slow(self, now: float) -> float:
        """Return the seconds for which the body has arrived below the required rate; 0.0 if it has not."""
        if self._phase is not Phase.Body or self.flow.read_paused or self.transport.is_closing():
            return 0.0
        elapsed = now - self.since
        return elapsed if self._arrived < self._limits.body_rate * elapsed else 0.0

    # Phases.

    def _enter(self, phase: Phase, seconds: float) -> None:
        """Enter `phase`, which may last `seconds`."""
        self._phase = phase
        self.since = now = self.loop.time()
        self._deadline.move(now + seconds)

    def _wait_for_header(self) -> None:
        """Wait for the rest of a header. For a new connection the wait counts from when it was opened."""
        since = self.since if self._phase is Phase.Silent else self.loop.time()
        self._shared.idle.pop(self, None)
        self._shared.awaiting_header[self] = None
        self._enter(Phase.Header, self._limits.header_seconds)
        self._began, self.since = self.since, since

    def _leave_idle(self) -> None:
        """Replace the keep-alive timeout by a short one, because a request has arrived."""
        self._resting = False
        self._deadline.move(self.loop.time() + self._limits.answer_seconds)

    def _begin_request(self) -> None:
        """Note that a request's header is complete. No deadline is set yet: as a rule the body has arrived with it."""
        if self._phase is IDLE:
            self._shared.idle.pop(self, None)
            self._began = 0.0
        else:
            self._shared.awaiting_header.pop(self, None)
        self._phase = BODY
        self._timed = False

    def _wait_for_body(self) -> None:
        """Set a deadline for a request's body that has not arrived whole."""
        if self._timed:
            return
        self._timed = True
        limits = self._limits
        self._arrived = 0
        self._shared.bodies[self] = None
        self._enter(Phase.Body, min(limits.body_seconds, limits.request_seconds))
        self._began = self._began or self.since

    def _deadline_passed(self, now: float) -> None:
        """Act on the phase whose deadline has passed."""
        match self._phase:
            case Phase.Body:
                self._check_body_rate(now)
            case Phase.Answer | Phase.Idle:
                self._check_output(now)
            case Phase.Refused:
                self._close()
            case Phase.Closing:
                abort(self.transport)
            case _:
                self.evict(self._phase.value)

    def _check_body_rate(self, now: float) -> None:
        """Close the connection if its body arrives too slowly or the request has taken too long; else wait on."""
        limits, left = self._limits, self._began + self._limits.request_seconds - now
        if not self.flow.read_paused:  # if it is paused, the delay is ours
            if self._arrived < limits.body_rate * (now - self.since) or left <= 0:
                self.evict(self._phase.value)
                return
        else:
            left = limits.body_seconds
        self.since, self._arrived = now, 0
        self._deadline.move(now + min(limits.body_seconds, left))

    def _check_output(self, now: float) -> None:
        """Close the connection if its peer took no byte since the last check, or takes its answers too slowly."""
        if not unacknowledged_bytes(self.transport):
            self._acknowledged = None
            self._output_taken(now)
            return
        before, self._acknowledged = self._acknowledged, acknowledged_bytes(self.transport)
        if before is None:
            self._slow_since = now
        elif self._acknowledged == before or now - self._slow_since > self._limits.request_seconds:
            self.evict("answer")
            return
        self._deadline.move(now + self._limits.answer_seconds)

    def _output_taken(self, now: float) -> None:
        """Set the next deadline once the peer has taken all output: for our answer, the next request, or the end."""
        end = self.since + self._limits.keep_alive_seconds
        if self.transport.is_closing():
            abort(self.transport)
        elif self._phase is Phase.Answer:
            self._deadline.move(now + self._limits.answer_seconds)
        elif now >= end:
            self._close()
        else:
            self._resting = True
            self._deadline.move(end)

    # Closing.

    def last_answer(self) -> None:
        """Close the connection after the current answer, if there is one and its header is not yet sent."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def _refuse(self, status: int, message: str = "") -> None:
        """Answer a request that cannot be served with an error, and close. An answer that has begun is cut off."""
        if status == 431:
            message = f"header: larger than {self._limits.header_bytes >> 10} KiB, wants at most that"
            self._shared.on_closed("header_size")
        self._shared.idle.pop(self, None)
        self._shared.awaiting_header.pop(self, None)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # otherwise the application's answer would follow our error
            cycle.message_event.set()
            if cycle.response_started:
                self._phase = Phase.Closing
                abort(self.transport)
                return
        self.transport.write(error_response(status, message))
        self._enter(Phase.Refused, self._limits.goodbye_seconds)

    def _close(self) -> None:
        """Close, and wait at most `goodbye_seconds` for the peer to take what is written."""
        self.transport.close()
        self._enter(Phase.Closing, self._limits.goodbye_seconds)


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

    def remove(self, connection: WaitingProtocol) -> None:
        """Remove a connection that has ended."""
        self.connections.discard(connection)
        self.awaiting_header.pop(connection, None)
        self.idle.pop(connection, None)
        self.bodies.pop(connection, None)
        self._blocked.pop(connection, None)
        self.set_held_bytes(connection, 0)
        self.on_place_free()

    def add_idle(self, connection: WaitingProtocol) -> None:
        """Note that a connection is idle; the one idle longest is closed if there are too many."""
        self.idle[connection] = None
        if len(self.idle) > self.limits.idle:
            next(iter(self.idle)).evict("idle")

    def set_held_bytes(self, connection: WaitingProtocol, size: int) -> None:
        """Note the bytes of later requests that a connection holds; the largest holder is closed if the sum is high."""
        before = self._held.pop(connection, 0)
        self._held_bytes += size - before
        if size:
            self._held[connection] = size
            if self._held_bytes > self.limits.held_bytes:
                max(self._held, key=self._held.__getitem__).evict("room")

    def output_blocked(self, connection: WaitingProtocol) -> None:
        """Note that a peer takes an answer slowly; the longest waiting is closed if too many bytes wait for peers."""
        self._blocked[connection] = None
        sizes = sum(blocked.transport.get_write_buffer_size() for blocked in self._blocked)
        if len(self._blocked) > 1 and sizes > self.limits.unread_bytes:
            min(self._blocked, key=lambda blocked: blocked.since).evict("answer")

    def output_flows(self, connection: WaitingProtocol) -> None:
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
