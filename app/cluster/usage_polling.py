# SPDX-License-Identifier: Apache-2.0
"""Polls how the GPUs that pods hold are used, for policies, the web page and metrics. Optional: unknown use denies no
pod (F145).
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from app.admission.validators import IdleLimit, idle_limit
from app.cluster.pausing import pausing
from app.cluster.reflector import Clock
from app.cluster.state import State
from app.nodes.model import SHARES, WHOLE_MILLI, Node
from app.policy.compiled import PolicySet
from app.telemetry.logs import event, now
from app.telemetry.use_metrics import UseMetrics
from app.usage.history import History, with_sharing
from app.usage.summary import UseSummary, poll_window, summary_of
from app.values.errors import SourceError

POLL_SECONDS = 300.0
"""Idleness is told in quarters of an hour, and a poll asks nine range queries (docs/reference/usage.md#polls)."""
FORGET_SECONDS = 900.0
"""After this time without a successful poll nothing is known of use any more: two failed polls change nothing."""
DAY = 86_400.0
"""Seconds that are read, unless a policy looks back further: use follows the hours of people; a day has them all."""
MOST_BELOWS = 8
"""Activities of policies that are counted by, the lowest of them. A guess; by more nothing is idle, and none denies."""


class IdleSource(Protocol):
    """Where histories come from (UsageHistory, DemoUsage)."""

    origin: str

    async def read(self, end: float, seconds: float, window: int | None = None) -> History:
        """Read the history before `end`.

        Raises SourceError.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


@dataclass(frozen=True, slots=True)
class UseReading:
    """What is known of use now.

    `summary` is that of the last poll that succeeded, None before one, and after FORGET_SECONDS without another.
    `age_seconds` is the time since then, `problem` why the last poll failed; None for none. `generation` counts the
    polls that succeeded. `asked` is whether anybody is asked at all.
    """

    summary: UseSummary | None = None
    age_seconds: float | None = None
    problem: str | None = None
    generation: int = 0
    asked: bool = True


NOBODY_ASKED = UseReading(asked=False)
"""The reading of a service without a source."""


class UsagePoller:
    """Polls a source of histories every five minutes, and keeps the summary of the last one.

    `state` has the nodes of the cluster, of which some share GPUs, and the pods that wait. `wall` gives the seconds
    since the epoch.
    """

    def __init__(
        self,
        source: IdleSource,
        policies: Callable[[], PolicySet],
        state: State,
        metrics: UseMetrics | None = None,
        clock: Clock | None = None,
        wall: Callable[[], float] = lambda: now().timestamp(),
    ) -> None:
        self._source = source
        self._policies = policies
        self._state = state
        self._metrics = metrics
        self._clock = clock or Clock()
        self._wall = wall
        self._summary: UseSummary | None = None
        self._generation = 0
        self._succeeded_at: float | None = None
        self._problem: str | None = None

    def reading(self) -> UseReading:
        """Return what is known of use now."""
        age = None if self._succeeded_at is None else self._clock.now() - self._succeeded_at
        fresh = age is not None and age < FORGET_SECONDS
        return UseReading(self._summary if fresh else None, age, self._problem, self._generation)

    def count(self, namespace: str, seconds: float, below: float) -> int:
        """Count the units of a namespace that were idle for certain at the last poll; 0 where nothing is known."""
        summary = self.reading().summary
        return summary.idle_count(namespace, seconds, below) if summary else 0

    async def run(self) -> None:
        """Poll until cancelled."""
        try:
            while True:
                await self.poll()
                await self._clock.sleep(POLL_SECONDS * (1 + self._clock.chance() / 10))
        except asyncio.CancelledError:  # after any other error it is run again, with the same connections
            await self._source.close()
            raise

    async def poll(self) -> None:
        """Poll once."""
        limits = _limits(self._policies())
        seconds = max((DAY, *(limit.seconds for limit in limits)))
        belows = sorted({limit.below for limit in limits})[:MOST_BELOWS]
        nodes = dict(self._state.nodes)
        try:
            window = poll_window(_held_units(nodes), seconds)
            history = await self._source.read(self._wall(), seconds, window)
        except SourceError as error:
            self._note(str(error))
            return
        self._summary = await asyncio.to_thread(_summarize, history, nodes, belows)
        self._succeeded_at = self._clock.now()
        self._generation += 1
        self._note(None)
        if self._metrics is not None:
            self._metrics.waiting_pods.set(len(self._state.waiting_pods()))
        self.measure()

    def measure(self) -> None:
        """Set the metrics of use."""
        if self._metrics is not None:
            reading = self.reading()
            self._metrics.use_read(reading.summary, reading.age_seconds)

    def _note(self, problem: str | None) -> None:
        """Log a problem, or its end, once."""
        if problem != self._problem and problem is not None:
            event("use of GPUs: error", 30, source=self._source.origin, error=problem)
        elif problem != self._problem:
            event("use of GPUs is read", source=self._source.origin)
        self._problem = problem

    def status(self) -> dict[str, Any]:
        """Return the part of /statusz about the use of GPUs."""
        reading, summary = self.reading(), self._summary
        age = None if reading.age_seconds is None else int(reading.age_seconds)
        window = summary.window_seconds if summary else None
        return {
            "source": self._source.origin,
            "age_seconds": age,
            "error": self._problem,
            "window_seconds": window,
            "problems": list(summary.problems) if summary else [],
        }


def _limits(policies: PolicySet) -> tuple[IdleLimit, ...]:
    """List what the policies in force ask about idle GPUs; a pod's policies may each set one of the two figures."""
    return tuple(idle_limit(idle) for policy in policies.policies if (idle := policy.spec.admission.idle))


def _held_units(nodes: Mapping[str, Node]) -> int:
    """Count the units of all nodes that are not free: about as many series as a poll reads at a time."""
    offered: int = sum(
        amount - min(amount, max(node.free.units.get(name, 0), 0))
        for node in nodes.values()
        for name, amount in node.node_class.offered
    )
    claimed = (milli for node in nodes.values() if not node.node_class.offered for milli in node.free.gpus or ())
    return offered + sum(milli < WHOLE_MILLI for milli in claimed)


def _summarize(history: History, nodes: Mapping[str, Node], belows: list[float]) -> UseSummary:
    return summary_of(with_sharing(history, shared_nodes(nodes), pausing), belows, pausing)


def shared_nodes(nodes: Mapping[str, Node]) -> frozenset[str]:
    """Name the nodes on which pods share whole GPUs."""
    return frozenset(name for name, node in nodes.items() if node.node_class.sharing in SHARES)
