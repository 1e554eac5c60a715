# SPDX-License-Identifier: Apache-2.0
"""The health of GPUs, asked for time and again, and told to the state. Optional: what is unknown never blocks (F72)."""

import asyncio
from typing import Any, Protocol

from app.cluster.exporters import Exporters
from app.cluster.prometheus import Prometheus
from app.cluster.reflector import SLICE_OBJECTS, Clock
from app.cluster.scrape import PollResult
from app.knowledge.dcgm import DCGM
from app.knowledge.tables import Knowledge
from app.nodes.gpu_health import Health, PollMemory, evaluate_poll
from app.settings import Settings
from app.telemetry.logs import event
from app.telemetry.metrics import Metrics
from app.values.errors import BadInput, SourceError

POLL_SECONDS = 30.0
"""dcgm-exporter collects every 30 s by default (--collect-interval), so that asking more often shows nothing new."""
FORGET_SECONDS = 180.0
"""Without a successful poll for so long all is forgotten. A judgement: five failed polls in a row are an outage."""


class HealthSink(Protocol):
    """Who is told."""

    def put_health(self, name: str, health: Health | None) -> None:
        """Take in the health of a node's GPUs; None: unknown. The node itself may not be known (yet)."""
        ...


class HealthSource(Protocol):
    """Where samples come from. `origin`: its address, for people."""

    origin: str

    async def poll(self) -> PollResult:
        """Ask once.

        Raises SourceError.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


def find_source(settings: Settings, dcgm: DCGM) -> HealthSource | None:
    """Choose the source that the settings name; None if they name none.

    Raises BadInput.
    """
    if settings.prometheus and settings.dcgm_exporters:
        raise BadInput("--prometheus, --dcgm-exporters: got both, wants one of them")
    if settings.prometheus_token_file and not settings.prometheus:
        raise BadInput("--prometheus-token-file: got no --prometheus, wants one to send the token to")
    if settings.prometheus:
        return Prometheus(settings.prometheus, dcgm, settings.prometheus_token_file)
    return Exporters(settings.dcgm_exporters, dcgm) if settings.dcgm_exporters else None


async def ask_once(source: HealthSource, knowledge: Knowledge) -> dict[str, Health]:
    """Ask a source a single time, for a command that answers and ends: counters have no past, and every XID is new.

    Raises SourceError.
    """
    try:
        polled = await source.poll()
    finally:
        await source.close()
    return evaluate_poll(polled.samples, PollMemory(), knowledge, 0.0)[1]


class HealthPoller:
    """Asks a source, and tells the sink of every node whose health changed. `known`: what it was told last."""

    def __init__(
        self,
        source: HealthSource,
        sink: HealthSink,
        knowledge: Knowledge,
        metrics: Metrics,
        clock: Clock | None = None,
        poll_seconds: float = POLL_SECONDS,
        forget_seconds: float = FORGET_SECONDS,
    ) -> None:
        self.known: dict[str, Health] = {}
        self._source = source
        self._sink = sink
        self._knowledge = knowledge
        self._metrics = metrics
        self._clock = clock or Clock()
        self._poll_seconds = poll_seconds
        self._forget_seconds = forget_seconds
        self._memory = PollMemory()
        self._result: str | None = None
        self._problem: str | None = None
        self._heard: float | None = None

    async def run(self) -> None:
        """Ask, for ever."""
        try:
            while True:
                await self.poll()
                await self._clock.sleep(self._poll_seconds * (1 + self._clock.chance() / 10))
        finally:
            await self._source.close()

    async def poll(self) -> None:
        """Ask once, and tell what changed."""
        try:
            polled = await self._source.poll()
        except SourceError as error:
            self._note("error", str(error))
            if self._heard is None or self._clock.now() - self._heard >= self._forget_seconds:
                await self._tell({})
            return
        now = self._clock.now()
        self._memory, found = await asyncio.to_thread(
            evaluate_poll, polled.samples, self._memory, self._knowledge, now
        )  # a fleet of 5,000 nodes takes most of a second: not on the event loop
        self._heard = now
        if not polled.samples:
            self._note("empty", polled.problem or "it has none of DCGM's health metrics")
        else:
            self._note("partial" if polled.problem else "success", polled.problem)
        await self._tell(found)

    async def _tell(self, found: dict[str, Health]) -> None:
        names = [name for name in self.known.keys() | found.keys() if self.known.get(name) != found.get(name)]
        self.known = found
        for index, name in enumerate(sorted(names)):
            self._sink.put_health(name, found.get(name))
            if index % SLICE_OBJECTS == SLICE_OBJECTS - 1:
                await asyncio.sleep(0)

    def _note(self, result: str, problem: str | None) -> None:
        """Count a poll; log where it ended otherwise than the one before it."""
        self._metrics.health_polls.labels(result).inc()
        self._problem = problem
        if result == self._result:
            return
        self._result = result
        if problem is None:
            event("health of GPUs is read", source=self._source.origin)
        else:
            event(f"health of GPUs: {result}", 30, source=self._source.origin, error=problem)

    def age(self) -> float | None:
        """Say how many seconds ago the last poll succeeded; None: none did."""
        return None if self._heard is None else max(0.0, self._clock.now() - self._heard)

    def measure(self) -> None:
        """Set the gauges."""
        age = self.age()
        self._metrics.health_age.set(float("inf") if age is None else age)
        for state, count in self._totals().items():
            self._metrics.health_nodes.labels(state).set(count)

    def _totals(self) -> dict[str, int]:
        told = self.known.values()
        return {"ill": sum(each.ill > 0 for each in told), "ailing": sum(each.ailing > 0 for each in told)}

    def status(self) -> dict[str, Any]:
        """Give our part of /statusz."""
        age = self.age()
        return {
            "source": self._source.origin,
            "age_seconds": None if age is None else int(age),
            "error": self._problem,
            "nodes": {"known": len(self.known), **self._totals()},
        }
