# SPDX-License-Identifier: Apache-2.0
"""Asks a Prometheus how the GPUs that pods hold are used, for policies, the web page, metrics and commands.

It is optional: unknown use denies no pod.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from app.admission.validators import IdleLimit, idle_limit
from app.cluster.prometheus import PrometheusClient, number, read_result, rows
from app.cluster.reflector import Clock
from app.knowledge.dcgm import DCGM, UsageMetrics
from app.nodes.model import SHARES, Node
from app.policy.compiled import PolicySet
from app.policy.schema_admission import IDLE_BELOW
from app.telemetry.logs import event, now
from app.telemetry.metrics import UseMetrics
from app.usage.queries import DAY, KNOWN_SHARE, Query, UseQueries, count_query
from app.usage.table import GPUUse, UseSummary, summary_of, with_sharing
from app.values.errors import SourceError
from app.world.state import State

POLL_SECONDS = 300.0
"""Idleness counts from a quarter of an hour on; a poll asks some fifteen queries (docs/reference/usage.md#polls)."""
FORGET_SECONDS = 900.0
"""After this time without a successful poll nothing is known of use any more: two failed polls change nothing."""
MOST_BELOWS = 8
"""Activities of policies that are counted by, the lowest of them. A guess; by more nothing is idle, and none denies."""


class UseSource(Protocol):
    """Where the use of GPUs is known from (PrometheusUse, DemoUsage)."""

    origin: str

    async def read(self, end: float, seconds: float, belows: tuple[float, ...]) -> GPUUse:
        """Read the use in the `seconds` before `end`. A unit counts as idle up to each of the activities `belows`.

        Raises SourceError.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


NOTHING_IDLE: Mapping[float, Mapping[str, tuple[float, ...]]] = {}


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


class UsagePoller:
    """Polls a source every five minutes, and keeps the summary of the last one.

    Without a source nothing is known of use, and a problem names the policies whose `admission.idle` is not judged.
    `state` has the nodes of the cluster, of which some share GPUs, and the pods that wait. `wall` gives the seconds
    since the epoch.
    """

    def __init__(
        self,
        source: UseSource | None,
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
        age = None if self._succeeded_at is None else self._clock.now() - self._succeeded_at
        fresh = age is not None and age < FORGET_SECONDS
        return UseReading(
            self._summary if fresh else None, age, self._problem, self._generation, asked=self._source is not None
        )

    @property
    def idle_seconds(self) -> Mapping[float, Mapping[str, tuple[float, ...]]]:
        """For how long units were idle for certain at the last poll, by activity and namespace (UseSummary)."""
        summary = self.reading().summary
        return summary.idle_seconds if summary else NOTHING_IDLE

    async def run(self) -> None:
        try:
            while True:
                await self.poll()
                await self._clock.sleep(POLL_SECONDS * (1 + self._clock.chance() / 10))
        except asyncio.CancelledError:  # after any other error it is run again, with the same connections
            if self._source is not None:
                await self._source.close()
            raise

    async def poll(self) -> None:
        if self._source is None:
            self._note(_not_judged(self._policies()))
            return
        limits = _limits(self._policies())
        # A day, unless a policy looks back further: use follows the hours of people, and a day has them all. A tenth
        # more, since the minutes in which an exporter was not seen do not count.
        seconds = max((DAY, *(limit.seconds / KNOWN_SHARE for limit in limits)))
        belows = tuple({IDLE_BELOW: None} | dict.fromkeys(sorted({limit.below for limit in limits})[:MOST_BELOWS]))
        shared = shared_nodes(self._state.nodes)
        try:
            use = await self._source.read(self._wall(), seconds, belows)
        except SourceError as error:
            self._note(str(error))
            return
        self._summary = await asyncio.to_thread(lambda: summary_of(with_sharing(use, shared), belows))
        self._succeeded_at = self._clock.now()
        self._generation += 1
        self._note(None)
        if self._metrics is not None:
            self._metrics.waiting_pods.set(len(self._state.waiting_pods()))
        self.measure()

    def measure(self) -> None:
        if self._metrics is not None and self._source is not None:
            reading = self.reading()
            self._metrics.use_read(reading.summary, reading.age_seconds)

    def _note(self, problem: str | None) -> None:
        """Log a problem, or its end, once."""
        if problem != self._problem and problem is not None:
            event("use of GPUs: error", 30, source=self._origin, error=problem)
        elif problem != self._problem:
            event("use of GPUs is read", source=self._origin)
        self._problem = problem

    @property
    def _origin(self) -> str:
        return self._source.origin if self._source is not None else "none"

    def status(self) -> dict[str, Any]:
        """Return the part of /statusz about the use of GPUs."""
        reading, summary = self.reading(), self._summary
        age = None if reading.age_seconds is None else int(reading.age_seconds)
        return {
            "source": self._origin,
            "age_seconds": age,
            "error": self._problem,
            "step_seconds": summary.step_seconds if summary else None,
            "problems": list(summary.problems) if summary else [],
        }


def _limits(policies: PolicySet) -> tuple[IdleLimit, ...]:
    """List what the policies in force ask about idle GPUs; a pod's policies may each set one of the two figures."""
    return tuple(idle_limit(idle) for policy in policies.policies if (idle := policy.spec.admission.idle))


def _not_judged(policies: PolicySet) -> str | None:
    """Return a sentence with the policies whose rule on idle GPUs cannot be judged without a source; None without."""
    names = [policy.name for policy in policies.policies if policy.spec.admission.idle]
    if not names:
        return None
    return f"admission.idle of {', '.join(names)} is not judged and refuses no pod: start serve with --prometheus URL"


def shared_nodes(nodes: Mapping[str, Node]) -> frozenset[str]:
    """Name the nodes on which pods share whole GPUs."""
    return frozenset(name for name, node in nodes.items() if node.node_class.sharing in SHARES)


QUERY_SECONDS = 120.0
"""Seconds for one query, which is Prometheus' own limit."""
ANSWER_BYTES = 64 << 20
"""Bytes of one answer: MOST_SERIES of usage/queries.py with 1,300 bytes of labels."""


class PrometheusUse:
    """A Prometheus, or a server with its API, that has the metrics of DCGM exporters.

    With `sizes` it is also asked for what only a smaller unit is chosen by.
    """

    def __init__(
        self, url: str, dcgm: DCGM, usage: UsageMetrics, token_file: Path | None = None, sizes: bool = False
    ) -> None:
        self._client = PrometheusClient(url, token_file)
        self.origin, self.close = self._client.origin, self._client.close
        self._dcgm = dcgm
        self._usage = usage
        self._sizes = sizes

    async def read(self, end: float, seconds: float, belows: tuple[float, ...]) -> GPUUse:
        """Read the use in the `seconds` before `end`.

        Raises SourceError.
        """
        warnings: dict[str, None] = {}
        body = await self._ask(count_query(self._dcgm, self._usage, int(seconds)), end)
        counted = rows(read_result(body, "vector"))
        series = int(number(counted[0].value[1]) or 0) if counted else 0
        asked = UseQueries(self._dcgm, self._usage, end, seconds, series, belows)
        for query in asked.queries(self._sizes):
            body = await self._ask(query.text, asked.time)
            warnings |= dict.fromkeys(await asyncio.to_thread(_take, asked, query, body))
        return await asyncio.to_thread(asked.use, tuple(warnings))

    async def _ask(self, query: str, time: float) -> bytes:
        params = {"query": query, "time": str(time)}
        return await self._client.ask("/api/v1/query", params, ANSWER_BYTES, QUERY_SECONDS)


def _take(asked: UseQueries, query: Query, body: bytes) -> list[str]:
    """Take in an answer, and return the start of its first warnings; what is no number is passed over."""
    answer = read_result(body, "vector")
    for row in rows(answer):
        if (value := number(row.value[1])) is not None:
            asked.add(query, row.metric, value)
    return [warning[:200] for warning in answer.warnings[:4]]
