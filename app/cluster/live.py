# SPDX-License-Identifier: Apache-2.0
"""A live cluster: one reflector a kind, what they amount to together, and a check of them against the API server."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from app.cluster.apiserver import ApiServer
from app.cluster.listing import Unreadable
from app.cluster.policy_watch import PolicyBook
from app.cluster.reflector import Clock, Reflector
from app.cluster.state import State
from app.cluster.stream_health import BackOff
from app.cluster.watched_kinds import DRA_GROUP, POLICY_GROUP, core_kinds, dra_kinds, policy_kinds
from app.policy.crd import VERSION
from app.telemetry.logs import event
from app.telemetry.metrics import Metrics
from app.values.errors import ApiError

COMPARE_SECONDS = 600.0
"""CACHE-10; what a watch loses for good is found within ten minutes, and listed again."""
SETTLE_SECONDS = 0.05
ASK_AGAIN_SECONDS = 30.0
"""Between two questions whether GPUPolicy is installed by now; one answer is some 200 bytes."""
DRA_VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Versions of resource.k8s.io that the reader of slices knows; v1 since Kubernetes 1.34."""
NOT_SYNCED = "gpu-usher: not synced yet"
STALE = "gpu-usher: node cache is stale"
"""Constant texts: kube-scheduler shows them as they are, and ages are metrics
(docs/reference/listeners.md#staleness)."""


class LiveCluster:
    """Follows a cluster into a State and a PolicyBook. `on_synced` is called once, when the first lists are in."""

    def __init__(
        self,
        server: ApiServer,
        state: State,
        book: PolicyBook,
        metrics: Metrics,
        namespace: str,
        on_synced: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._server = server
        self._state = state
        self._metrics = metrics
        self._clock = clock or Clock()
        self._on_synced = on_synced
        self._book = book
        self._awaited: tuple[Reflector, ...] | None = None
        self.reflectors = [self._reflector(kind) for kind in core_kinds(state, book, namespace)]

    def _reflector(self, kind: Any) -> Reflector:
        return Reflector(kind, self._server, self._metrics, self._clock)

    async def run(self) -> None:
        """Follow, for ever."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for reflector in self.reflectors:
                    tasks.create_task(reflector.run())
                tasks.create_task(self._settle())
                tasks.create_task(self._compare())
                await self._discover(tasks)
        finally:
            await self._server.close()

    async def _discover(self, tasks: asyncio.TaskGroup) -> None:
        """Follow what a cluster may or may not serve; GPUPolicy may be installed at any time (F131).

        Only what is there at the start is waited for: what comes later must not make a ready service unready.
        """
        dra, ours = await asyncio.gather(self._served(DRA_GROUP, DRA_VERSIONS), self._served(POLICY_GROUP, (VERSION,)))
        self._follow(tasks, dra_kinds(self._state, dra) if dra else ())
        self._follow(tasks, policy_kinds(self._book) if ours else ())
        self._awaited = tuple(self.reflectors)
        while not ours:
            await self._clock.sleep(ASK_AGAIN_SECONDS)
            ours = await self._served(POLICY_GROUP, (VERSION,))
            self._follow(tasks, policy_kinds(self._book) if ours else ())

    def _follow(self, tasks: asyncio.TaskGroup, kinds: Iterable[Any]) -> None:
        for reflector in map(self._reflector, kinds):
            self.reflectors.append(reflector)
            tasks.create_task(reflector.run())

    async def _served(self, group: str, versions: Iterable[str]) -> str | None:
        """Find out in which of these versions, best first, the cluster serves a group of kinds; None if in none."""
        back_off = BackOff()
        while True:
            try:
                answer = msgspec.json.decode(await self._server.get(group, {}))
                served = {each.get("version") for each in answer.get("versions", [])}
                return next((each for each in versions if each in served), None)
            except (ApiError, msgspec.DecodeError) as error:
                if isinstance(error, ApiError) and error.status in (403, 404):
                    return None
            await self._clock.sleep(back_off.delay(0.0, self._clock.chance()))

    @property
    def synced(self) -> bool:
        """Whether all that decides was listed once; a kind that the API server refuses us is not waited for."""
        if self._awaited is None:
            return False
        return all(each.synced or (each.refusal is not None and not each.kind.needed) for each in self._awaited)

    async def _settle(self) -> None:
        while not self.synced:
            await self._clock.sleep(SETTLE_SECONDS)
        self._on_synced()

    def unready(self) -> str | None:
        """Say why scheduling questions cannot be answered now, as a constant text; None if they can."""
        if not self.synced:
            return NOT_SYNCED
        now = self._clock.now()
        return STALE if any(each.pulse.stale(now) for each in self._needed()) else None

    def _needed(self) -> Iterable[Reflector]:
        return (each for each in self.reflectors if each.kind.needed)

    def health(self) -> dict[str, Any]:
        """Give each kind's part of /readyz."""
        now = self._clock.now()
        return {
            each.kind.name: {
                "synced": each.synced,
                "objects": len(each.known),
                "age_seconds": int(each.pulse.age(now)),
                **({"stale": True} if each.pulse.stale(now) else {}),
                **({"error": each.refusal} if each.refusal else {}),
            }
            for each in self.reflectors
        }

    def measure(self) -> None:
        """Set the gauges."""
        now = self._clock.now()
        for each in self.reflectors:
            self._metrics.cache_age.labels(each.kind.name).set(each.pulse.age(now))
            self._metrics.cache_objects.labels(each.kind.name).set(len(each.known))

    async def _compare(self) -> None:
        """Compare every kind with the API server, time and again."""
        while True:
            await self._clock.sleep(COMPARE_SECONDS * (1 + self._clock.chance() / 10))
            for each in self.reflectors:
                if each.synced and not each.refusal:
                    await self._compare_one(each)

    async def _compare_one(self, reflector: Reflector) -> None:
        try:
            drift = await reflector.compare()
        except (ApiError, Unreadable) as error:
            event(f"{reflector.kind.name} not compared with the API server", 30, error=str(error))
            return
        if drift:
            event(f"{reflector.kind.name} differ from the API server's list, listing again", 40, objects=drift)
