# SPDX-License-Identifier: Apache-2.0
"""What all connections of a listener share: how many there are, what they hold, and who gives way to whom."""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from app.server.limits import Limits
from app.server.status_answers import turning_away

LOOKED_AT = 16
"""Bodies, the oldest first, among which one is looked for that is too slow: each search takes some microseconds."""


class BoundedConnection(Protocol):
    """A connection, as far as the others are concerned."""

    since: float
    """When it began to wait for what it waits for, by the loop's clock; seconds."""
    transport: asyncio.Transport

    def give_way(self, why: str) -> None:
        """End at once. `why`: what the metric says."""

    def behind(self, now: float) -> float:
        """Give the seconds for which the body has come too slowly; 0.0 where none comes, or fast enough."""

    def __hash__(self) -> int: ...


class Connections:
    """The connections of a listener. `draining`: whether each answer is its connection's last.

    `shed` hears of each request turned away, `closed` of each connection that was ended, by what it waited for.
    """

    def __init__(
        self,
        limits: Limits = Limits(),  # noqa: B008  # frozen
        draining: Callable[[], bool] = lambda: False,
        shed: Callable[[], object] = lambda: None,
        closed: Callable[[str], object] = lambda _why: None,
    ) -> None:
        self.limits, self.draining, self.closed = limits, draining, closed
        self.turn_away = turning_away(limits.requests, shed)
        self.members: set[BoundedConnection] = set()
        self.handshakes: dict[asyncio.Task[None], float] = {}
        """When each began; the first is the oldest."""
        self.newcomers: dict[BoundedConnection, None] = {}
        """Waited on for a request's first byte or the rest of its header; the first has waited longest."""
        self.idle: dict[BoundedConnection, None] = {}
        """Between two requests; the first has been so for longest."""
        self._held: dict[BoundedConnection, int] = {}
        self._held_bytes = 0
        self._unread: dict[BoundedConnection, None] = {}
        self.bodies: dict[BoundedConnection, None] = {}
        """That did not come whole at once; the first began first."""
        self.left: Callable[[], object] = lambda: None
        """Hears of each place that becomes free."""

    @property
    def count(self) -> int:
        """Count the connections, those in their handshake too."""
        return len(self.members) + len(self.handshakes)

    @property
    def full(self) -> bool:
        """Tell whether all places are taken."""
        return self.count >= self.limits.connections

    @property
    def over(self) -> bool:
        """Tell whether there are more connections than places: one, for which nobody gave way yet."""
        return self.count > self.limits.connections

    def leave(self, member: BoundedConnection) -> None:
        """Forget a connection."""
        self.members.discard(member)
        self.newcomers.pop(member, None)
        self.idle.pop(member, None)
        self.bodies.pop(member, None)
        self._unread.pop(member, None)
        self.hold(member, 0)
        self.left()

    def rest(self, member: BoundedConnection) -> None:
        """Keep an idle connection; the one that has been so for longest is closed where there are too many."""
        self.idle[member] = None
        if len(self.idle) > self.limits.idle:
            next(iter(self.idle)).give_way("idle")

    def hold(self, member: BoundedConnection, size: int) -> None:
        """Note how many bytes of later requests a connection holds; where all hold too many, the largest gives way."""
        before = self._held.pop(member, 0)
        self._held_bytes += size - before
        if size:
            self._held[member] = size
            if self._held_bytes > self.limits.held_bytes:
                max(self._held, key=self._held.__getitem__).give_way("room")

    def pile_up(self, member: BoundedConnection) -> None:
        """Note that a peer takes an answer slowly; where too much waits for all, the one that waits longest ends."""
        self._unread[member] = None
        sizes = sum(each.transport.get_write_buffer_size() for each in self._unread)
        if len(self._unread) > 1 and sizes > self.limits.unread_bytes:
            min(self._unread, key=lambda each: each.since).give_way("answer")

    def flow_again(self, member: BoundedConnection) -> None:
        """Note that a peer has taken most of what waited for it."""
        self._unread.pop(member, None)

    def room(self, now: float) -> bool:
        """Tell whether a connection more can be taken, after somebody gave way if need be."""
        return not self.full or (self._make_room(now) and not self.full)

    def _make_room(self, now: float) -> bool:
        """End whoever asks least: who never asked, who is between two requests, who takes or sends too slowly."""
        task, began = next(iter(self.handshakes.items()), (None, now))
        if task is not None and began < now - self.limits.settling_seconds:
            self.handshakes.pop(task)
            task.cancel()
            self.closed("handshake")
            return True
        newcomer = next(iter(self.newcomers), None)
        if newcomer is not None and newcomer.since < now - self.limits.newcomer_seconds:
            newcomer.give_way("room")
            return True
        idle = next(iter(self.idle), None)
        if idle is not None:
            idle.give_way("idle")
            return True
        deaf = next(iter(self._unread), None)
        if deaf is not None and deaf.since < now - self.limits.stalled_seconds:
            deaf.give_way("answer")
            return True
        return self.drop_slow_body(now, self.limits.newcomer_seconds)

    def drop_slow_body(self, now: float, seconds: float) -> bool:
        """End a connection whose body has been too slow for so long; False where none of the oldest is."""
        for member in islice(self.bodies, LOOKED_AT):
            if member.behind(now) >= seconds:
                member.give_way("body")
                return True
        return False
