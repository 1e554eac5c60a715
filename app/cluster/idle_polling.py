# SPDX-License-Identifier: Apache-2.0
"""Polls which GPUs are idle, for the policies that ask about it. Optional: unknown use never denies a pod (F145)."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from app.admission.idle_guard import idle_limit
from app.cluster.pausing import pausing
from app.cluster.reflector import Clock
from app.nodes.model import SHARES, Node
from app.policy.compiled import PolicySet
from app.telemetry.clock import now
from app.telemetry.logs import event
from app.usage.history import History, with_sharing
from app.usage.table import idle_by_hold
from app.values.errors import SourceError

POLL_SECONDS = 300.0
"""Idleness is told in hours. A poll asks nine range queries for each time that policies name."""
FORGET_SECONDS = 900.0
"""After this time without a successful poll nothing is known to be idle any more."""
MOST_TIMES = 8
"""Times of policies that are polled, the first of them. A guess; more are unknown, and deny nothing."""


class IdleSource(Protocol):
    """Where histories come from (UsageHistory)."""

    origin: str

    async def read(self, end: float, seconds: float, window: int | None = None) -> History:
        """Read the history before `end`.

        Raises SourceError.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class IdlePoller:
    """Polls a source for what the policies in force ask, and counts idle GPUs by namespace.

    `nodes` gives the nodes of the cluster, of which some share GPUs. `wall` gives the seconds since the epoch.
    """

    def __init__(
        self,
        source: IdleSource,
        policies: Callable[[], PolicySet],
        nodes: Callable[[], Mapping[str, Node]],
        clock: Clock | None = None,
        wall: Callable[[], float] = lambda: now().timestamp(),
    ) -> None:
        self._source = source
        self._policies = policies
        self._nodes = nodes
        self._clock = clock or Clock()
        self._wall = wall
        self._counts: Mapping[tuple[float, float], Mapping[str, int]] = {}
        self._succeeded_at: float | None = None
        self._problem: str | None = None

    def count(self, namespace: str, seconds: float, below: float) -> int:
        """Count the GPUs of a namespace that were idle for certain at the last poll; 0 where nothing is known."""
        if self._succeeded_at is None or self._clock.now() - self._succeeded_at >= FORGET_SECONDS:
            return 0
        return self._counts.get((seconds, below), {}).get(namespace, 0)

    async def run(self) -> None:
        """Poll until cancelled."""
        try:
            while True:
                await self.poll()
                await self._clock.sleep(POLL_SECONDS * (1 + self._clock.chance() / 10))
        finally:
            await self._source.close()

    async def poll(self) -> None:
        """Poll once for each time that a policy names."""
        limits = {idle_limit(idle) for policy in self._policies().policies if (idle := policy.spec.admission.idle)}
        counts: dict[tuple[float, float], Mapping[str, int]] = {}
        try:
            for seconds in sorted({limit.seconds for limit in limits})[:MOST_TIMES]:
                history = await self._source.read(self._wall(), seconds, int(seconds))
                shared = shared_nodes(self._nodes())
                history = await asyncio.to_thread(with_sharing, history, shared, pausing)
                for below in {limit.below for limit in limits}:  # a pod's policies may each set one of the two
                    counts[seconds, below] = await asyncio.to_thread(idle_by_namespace, history, below)
        except SourceError as error:
            self._note(str(error))
            return
        self._counts, self._succeeded_at = counts, self._clock.now()
        self._note(None)

    def _note(self, problem: str | None) -> None:
        """Log a problem, or its end, once."""
        if problem != self._problem and problem is not None:
            event("use of GPUs: error", 30, source=self._source.origin, error=problem)
        elif problem != self._problem:
            event("use of GPUs is read", source=self._source.origin)
        self._problem = problem

    def status(self) -> dict[str, Any]:
        """Return the part of /statusz about the use of GPUs."""
        age = None if self._succeeded_at is None else int(self._clock.now() - self._succeeded_at)
        return {"source": self._source.origin, "age_seconds": age, "error": self._problem, "asked": len(self._counts)}


def idle_by_namespace(history: History, below: float) -> Mapping[str, int]:
    """Count by namespace the GPUs that were idle for certain in all of a history."""
    length = history.end - history.start
    idle = idle_by_hold(history, below, pausing)
    return Counter(history.holds[position].namespace for position, seconds in idle.items() if seconds >= length)


def shared_nodes(nodes: Mapping[str, Node]) -> frozenset[str]:
    """Name the nodes on which pods share whole GPUs."""
    return frozenset(name for name, node in nodes.items() if node.node_class.sharing in SHARES)
