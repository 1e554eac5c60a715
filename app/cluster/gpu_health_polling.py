# SPDX-License-Identifier: Apache-2.0
"""Polls the health of GPUs and passes it to the state. Optional: unknown health never blocks a pod."""

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
from app.world.state import State

POLL_SECONDS = 30.0
"""dcgm-exporter collects every 30 s by default (--collect-interval), so polling more often shows nothing new."""
FORGET_SECONDS = 180.0
"""After this time without a successful poll all health is forgotten: up to five failed ones change nothing."""


class HealthSource(Protocol):
    """Where samples come from. `origin` is its address, for logs and /statusz."""

    origin: str

    async def poll(self) -> PollResult:
        """Read all samples once.

        Raises SourceError.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


def find_source(settings: Settings, dcgm: DCGM) -> HealthSource | None:
    """Return the source that the settings name; None if they name none.

    Raises BadInput.
    """
    if settings.prometheus and settings.dcgm_exporters:
        raise BadInput("--prometheus, --dcgm-exporters: got both, wants one of them")
    if settings.prometheus_token_file and not settings.prometheus:
        raise BadInput("--prometheus-token-file: got no --prometheus, wants one to send the token to")
    if settings.prometheus:
        return Prometheus(settings.prometheus, dcgm, settings.prometheus_token_file)
    return Exporters(settings.dcgm_exporters, dcgm) if settings.dcgm_exporters else None


async def poll_once(source: HealthSource, knowledge: Knowledge) -> dict[str, Health]:
    """Poll a source once, for a command: counters have no earlier values, and every XID counts as new.

    Raises SourceError.
    """
    try:
        polled = await source.poll()
    finally:
        await source.close()
    return evaluate_poll(polled.samples, PollMemory(), knowledge, 0.0)[1]


class HealthPoller:
    """Polls a source, and puts changed health into the state. `health` is the last known health by node."""

    def __init__(
        self,
        source: HealthSource,
        state: State,
        knowledge: Knowledge,
        metrics: Metrics,
        clock: Clock | None = None,
        poll_seconds: float = POLL_SECONDS,
        forget_seconds: float = FORGET_SECONDS,
    ) -> None:
        self.health: dict[str, Health] = {}
        self._source = source
        self._state = state
        self._knowledge = knowledge
        self._metrics = metrics
        self._clock = clock or Clock()
        self._poll_seconds = poll_seconds
        self._forget_seconds = forget_seconds
        self._memory = PollMemory()
        self._last_result: str | None = None
        self._problem: str | None = None
        self._succeeded_at: float | None = None

    async def run(self) -> None:
        try:
            while True:
                await self.poll()
                await self._clock.sleep(self._poll_seconds * (1 + self._clock.chance() / 10))
        finally:
            await self._source.close()

    async def poll(self) -> None:
        """Poll once, and publish the changes."""
        try:
            polled = await self._source.poll()
        except SourceError as error:
            self._note("error", str(error))
            if self._succeeded_at is None or self._clock.now() - self._succeeded_at >= self._forget_seconds:
                await self._publish({})
            return
        now = self._clock.now()
        self._memory, health = await asyncio.to_thread(
            evaluate_poll, polled.samples, self._memory, self._knowledge, now
        )  # takes most of a second for 5,000 nodes, so it runs in a thread
        self._succeeded_at = now
        if not polled.samples:
            self._note("empty", polled.problem or "it has none of DCGM's health metrics")
        else:
            self._note("partial" if polled.problem else "success", polled.problem)
        await self._publish(health)

    async def _publish(self, health: dict[str, Health]) -> None:
        names = [name for name in self.health.keys() | health.keys() if self.health.get(name) != health.get(name)]
        self.health = health
        for index, name in enumerate(sorted(names)):
            self._state.put_health(name, health.get(name))
            if index % SLICE_OBJECTS == SLICE_OBJECTS - 1:
                await asyncio.sleep(0)

    def _note(self, result: str, problem: str | None) -> None:
        """Count a poll, and log its result if it differs from that of the poll before."""
        self._metrics.health_polls.labels(result).inc()
        self._problem = problem
        if result == self._last_result:
            return
        self._last_result = result
        if problem is None:
            event("health of GPUs is read", source=self._source.origin)
        else:
            event(f"health of GPUs: {result}", 30, source=self._source.origin, error=problem)

    def age(self) -> float | None:
        """Return the seconds since the last successful poll; None if there was none."""
        return None if self._succeeded_at is None else max(0.0, self._clock.now() - self._succeeded_at)

    def measure(self) -> None:
        age = self.age()
        self._metrics.health_age.set(float("inf") if age is None else age)
        for state, count in self._totals().items():
            self._metrics.health_nodes.labels(state).set(count)

    def _totals(self) -> dict[str, int]:
        nodes = self.health.values()
        return {"ill": sum(node.ill > 0 for node in nodes), "ailing": sum(node.ailing > 0 for node in nodes)}

    def status(self) -> dict[str, Any]:
        """Return the part of /statusz about GPU health."""
        age = self.age()
        return {
            "source": self._source.origin,
            "age_seconds": None if age is None else int(age),
            "error": self._problem,
            "nodes": {"known": len(self.health), **self._totals()},
        }
