# SPDX-License-Identifier: Apache-2.0
"""Reads from a Prometheus how the GPUs that pods hold are used, for policies, the web page, metrics and commands.

It is optional: unknown use denies no pod.

A week of use is computed in a thread beside the event loop. Such a thread gives up the interpreter only after five
milliseconds (sys.getswitchinterval), and the loop waits for it after most reads and writes of a request. `pausing`
makes the thread rest by itself.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from app.admission.validators import IdleLimit, idle_limit
from app.cluster.prometheus import VECTOR, PrometheusClient, read_result
from app.cluster.reflector import Clock
from app.knowledge.dcgm import DCGM, UsageMetrics
from app.knowledge.products import WHOLE_MILLI
from app.nodes.model import SHARES, Node
from app.policy.compiled import PolicySet
from app.telemetry.logs import event, now
from app.telemetry.metrics import UseMetrics
from app.usage.history import MINUTE, UseHistory, with_sharing
from app.usage.reading import (
    DAY,
    HALF_MINUTE,
    HistoryBuilder,
    RangeQuery,
    count_query,
    range_queries,
    spans,
    window_seconds,
)
from app.usage.table import UseSummary, poll_window, summary_of
from app.values.computations import T
from app.values.errors import SourceError
from app.world.state import State

WORK_SECONDS = 0.0005
"""Computing between two rests, unless a single item takes longer: a fifth of what filter takes about 1,000 nodes."""
REST_SECONDS = 0.001
"""A rest. With WORK_SECONDS a thread takes a third of one core at most. A guess."""


def pausing(
    items: Iterable[T],
    clock: Callable[[], float] = time.perf_counter,
    rest: Callable[[float], None] = time.sleep,
) -> Iterator[T]:
    """Yield items, and rest when the work on them has taken WORK_SECONDS. For threads: the event loop must not rest."""
    began = clock()
    for item in items:
        yield item
        if clock() - began >= WORK_SECONDS:
            rest(REST_SECONDS)
            began = clock()


POLL_SECONDS = 300.0
"""Idleness is measured in quarters of an hour, and a poll asks nine range queries (docs/reference/usage.md#polls)."""
FORGET_SECONDS = 900.0
"""After this time without a successful poll nothing is known of use any more: two failed polls change nothing."""
MOST_BELOWS = 8
"""Activities of policies that are counted by, the lowest of them. A guess; by more nothing is idle, and none denies."""


class UseSource(Protocol):
    """Where histories come from (UsageHistory, DemoUsage)."""

    origin: str

    async def read(self, end: float, seconds: float, window: int | None = None) -> UseHistory:
        """Read the history before `end`.

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
    """Polls a source of histories every five minutes, and keeps the summary of the last one.

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
        # A day, unless a policy looks back further: use follows the hours of people, and a day has them all.
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
        window = summary.window_seconds if summary else None
        return {
            "source": self._origin,
            "age_seconds": age,
            "error": self._problem,
            "window_seconds": window,
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


def _held_units(nodes: Mapping[str, Node]) -> int:
    """Count the units of all nodes that are not free: about as many series as a poll reads at a time."""
    offered: int = sum(
        amount - min(amount, max(node.free.units.get(name, 0), 0))
        for node in nodes.values()
        for name, amount in node.node_class.offered
    )
    claimed = (milli for node in nodes.values() if not node.node_class.offered for milli in node.free.gpus or ())
    return offered + sum(milli < WHOLE_MILLI for milli in claimed)


def _summarize(history: UseHistory, nodes: Mapping[str, Node], belows: list[float]) -> UseSummary:
    return summary_of(with_sharing(history, shared_nodes(nodes), pausing), belows, pausing)


def shared_nodes(nodes: Mapping[str, Node]) -> frozenset[str]:
    """Name the nodes on which pods share whole GPUs."""
    return frozenset(name for name, node in nodes.items() if node.node_class.sharing in SHARES)


QUERY_SECONDS = 120.0
"""Seconds for one query, which is Prometheus' own limit."""
ANSWER_BYTES = 64 << 20
"""Bytes of one answer: 200,000 points of 25 bytes, and 50,000 series with 600 bytes of labels."""


class SeriesValues(msgspec.Struct):
    """One series of a range query: labels, and pairs of time and value."""

    metric: dict[str, str]
    values: list[tuple[float, str]]


class PrometheusUse:
    """A Prometheus, or a server with its API, that has the metrics of DCGM exporters.

    `pace` goes through series and holds, in a thread: `pausing` beside an event loop that answers requests.
    """

    def __init__(
        self,
        url: str,
        dcgm: DCGM,
        usage: UsageMetrics,
        token_file: Path | None = None,
        pace: Callable[[Iterable[Any]], Iterable[Any]] = iter,
    ) -> None:
        self._client = PrometheusClient(url, token_file)
        self.origin, self.close = self._client.origin, self._client.close
        self._dcgm = dcgm
        self._usage = usage
        self._pace = pace
        self._warnings: dict[str, None] = {}

    async def read(self, end: float, seconds: float, window: int | None = None) -> UseHistory:
        """Read the history of the `seconds` before `end`, both rounded to whole windows.

        `window` is their length in seconds; without it, that of `window_seconds` is taken.
        Raises SourceError.
        """
        end = end // MINUTE * MINUTE - HALF_MINUTE
        series = await self._count(end, int(seconds))
        length = window_seconds(seconds, series)
        window = window or length
        start = end - max(1, round(seconds / window)) * window
        builder = HistoryBuilder(self._dcgm, self._usage)
        for query in range_queries(self._dcgm, self._usage, window):
            for first, last in spans(start, end, window, series):
                params = {"query": query.text, "start": str(first), "end": str(last), "step": str(window)}
                body = await self._client.ask("/api/v1/query_range", params, ANSWER_BYTES, QUERY_SECONDS)
                await asyncio.to_thread(self._take, builder, query, body, start, window)
        return await asyncio.to_thread(builder.history, start, end, window, tuple(self._warnings), self._pace)

    async def _count(self, end: float, seconds: int) -> int:
        text = count_query(self._dcgm, self._usage, seconds)
        params = {"query": text, "time": str(end)}
        body = await self._client.ask("/api/v1/query", params, ANSWER_BYTES, QUERY_SECONDS)
        counts = [VECTOR.decode(raw) for raw in self._result(body, "vector")]
        return int(float(counts[0].value[1])) if counts else 0

    def _result(self, body: bytes, kind: str) -> list[msgspec.Raw]:
        answer = read_result(body, kind)
        self._warnings |= dict.fromkeys(warning[:200] for warning in answer.warnings[:4])
        return answer.data.result

    def _take(self, builder: HistoryBuilder, query: RangeQuery, body: bytes, start: float, window: int) -> None:
        for raw in self._pace(self._result(body, "matrix")):
            try:
                series = _MATRIX.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise SourceError(f"no series of a Prometheus: {str(error)[:200]}") from error
            builder.add(query, series.metric, _points(series.values, start, window))


def _points(values: list[tuple[float, str]], start: float, window: int) -> Iterator[tuple[int, float]]:
    """Yield the index of the window and the value of each point; what is no number is passed over."""
    for at, text in values:
        try:
            yield round((at - start) / window) - 1, float(text)
        except (ValueError, OverflowError):
            continue


_MATRIX: Any = msgspec.json.Decoder(SeriesValues)
