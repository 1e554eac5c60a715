# SPDX-License-Identifier: Apache-2.0
"""Follows a live cluster: one reflector per kind, their health, and comparisons with the API server's lists."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from app.cluster.apiserver import ApiServer
from app.cluster.listing import Unreadable
from app.cluster.policy_watch import PolicyBook
from app.cluster.reflector import BackOff, Clock, Reflector
from app.cluster.watched_kinds import (
    WatchedKind,
    core_kinds,
    dra_kinds,
    policy_kinds,
    taint_rule_kinds,
    topology_kinds,
)
from app.kube.api_kinds import API_KINDS, APIKind
from app.telemetry.logs import event
from app.telemetry.metrics import Metrics
from app.values.errors import FORBIDDEN, ApiError
from app.world.state import State

COMPARE_SECONDS = 600.0
"""Seconds between checks of the index: what a watch has lost is found within ten minutes, and listed again."""
SYNC_CHECK_SECONDS = 0.05
DISCOVERY_SECONDS = 30.0
"""Between two checks whether other kinds are installed; an answer is some 200 bytes."""
NOT_SYNCED = "gpu-usher: not synced yet"
STALE = "gpu-usher: node cache is stale"
"""Constant texts, because kube-scheduler shows them as they are; ages are in metrics
(docs/reference/listeners.md#staleness)."""


class LiveCluster:
    """Follows a cluster into a State and a PolicyBook, and `others` too.

    `on_synced` is called once, after the first lists.
    """

    def __init__(
        self,
        server: ApiServer,
        state: State,
        book: PolicyBook,
        metrics: Metrics,
        namespace: str,
        on_synced: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
        others: Iterable[WatchedKind[Any]] = (),
    ) -> None:
        self._server = server
        self._state = state
        self._metrics = metrics
        self._clock = clock or Clock()
        self._on_synced = on_synced
        self._book = book
        self._required: tuple[Reflector, ...] | None = None
        self.reflectors = [self._reflector(kind) for kind in (*core_kinds(state, book, namespace), *others)]

    def _reflector(self, kind: Any) -> Reflector:
        return Reflector(kind, self._server, self._metrics, self._clock)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for reflector in self.reflectors:
                    tasks.create_task(reflector.run())
                tasks.create_task(self._wait_until_synced())
                tasks.create_task(self._compare())
                await self._discover(tasks)
        finally:
            await self._server.close()

    async def _discover(self, tasks: asyncio.TaskGroup) -> None:
        """Follow the kinds that not every cluster serves; some may be installed at any time.

        Only kinds that exist at the start must be listed: a later one must not make a ready service unready.
        """
        dra_version, policy_version = await asyncio.gather(
            self._served_version(API_KINDS["ResourceSlice"]), self._served_version(API_KINDS["GPUPolicy"])
        )
        if dra_version:
            self._state.devices.dra.served_version = dra_version
            self._follow(tasks, dra_kinds(self._state, dra_version))
            rule_version = await self._served_kind(API_KINDS["DeviceTaintRule"])
            self._follow(tasks, taint_rule_kinds(self._state, rule_version) if rule_version else ())
        self._follow(tasks, policy_kinds(self._book, policy_version) if policy_version else ())
        self._required = tuple(self.reflectors)
        later: dict[str, Callable[[str], Iterable[Any]]] = {
            "NodeResourceTopology": partial(topology_kinds, self._state),
            **({} if policy_version else {"GPUPolicy": partial(policy_kinds, self._book)}),
        }
        while not self.synced:  # which pods are there when a NodeResourceTopology comes
            await self._clock.sleep(SYNC_CHECK_SECONDS)
        while later:
            for kind in tuple(later):
                if version := await self._served_version(API_KINDS[kind]):
                    self._follow(tasks, later.pop(kind)(version))
            await self._clock.sleep(DISCOVERY_SECONDS)

    def _follow(self, tasks: asyncio.TaskGroup, kinds: Iterable[Any]) -> None:
        for reflector in map(self._reflector, kinds):
            self.reflectors.append(reflector)
            tasks.create_task(reflector.run())

    async def _served_kind(self, kind: APIKind) -> str | None:
        """Return the preferred version in which the cluster serves a kind; None if it only has others of the group."""
        for version in kind.versions:
            resources = (await self._discovered(f"{kind.group_path}/{version}")).get("resources") or ()
            if any(resource.get("name") == kind.plural for resource in resources):
                return version
        return None

    async def _served_version(self, kind: APIKind) -> str | None:
        """Return the preferred of a kind's versions in which the cluster serves its API group; None if in none."""
        answer = await self._discovered(kind.group_path)
        served = {entry.get("version") for entry in answer.get("versions") or ()}
        return next((version for version in kind.versions if version in served), None)

    async def _discovered(self, path: str) -> Mapping[str, Any]:
        """Read what the API server serves under a path; empty if it serves nothing there."""
        back_off = BackOff()
        while True:
            try:
                return await self._server.read(path) or {}
            except ApiError as error:
                if error.status == FORBIDDEN:
                    return {}
            await self._clock.sleep(back_off.delay(0.0, self._clock.chance()))

    @property
    def synced(self) -> bool:
        """Whether every kind that must be listed was listed; an optional kind that is forbidden does not count."""
        if self._required is None:
            return False
        return all(
            reflector.synced or (reflector.refusal is not None and not reflector.kind.needed)
            for reflector in self._required
        )

    async def _wait_until_synced(self) -> None:
        while not self.synced:
            await self._clock.sleep(SYNC_CHECK_SECONDS)
        self._book.all_listed()
        self._on_synced()

    def cache_problem(self) -> str | None:
        """Return why the cache does not show the cluster now, as a constant text: not synced, or stale; else None."""
        if not self.synced:
            return NOT_SYNCED
        now = self._clock.now()
        return STALE if any(one.kind.needed and one.stream.stale(now) for one in self.reflectors) else None

    def health(self) -> dict[str, Any]:
        """Return the part of /readyz about each kind."""
        now = self._clock.now()
        return {
            reflector.kind.name: {
                "synced": reflector.synced,
                "objects": len(reflector.uids),
                "age_seconds": int(reflector.stream.age(now)),
                **({"stale": True} if reflector.stream.stale(now) else {}),
                **({"error": reflector.refusal} if reflector.refusal else {}),
            }
            for reflector in self.reflectors
        }

    def unreadable_policies(self) -> list[str]:
        """Return a message for each kind of policies that we may not read: those policies are not followed."""
        remedies = {"configmaps": "base", "gpupolicies": "components/crd"}
        return [
            f"{reflector.kind.name} cannot be read, and their edits are not taken: {reflector.refusal}: "
            f"apply deploy/{remedies[reflector.kind.name]}/rbac.yaml"
            for reflector in self.reflectors
            if reflector.kind.name in remedies and (reflector.refusal or "").startswith("403")
        ]

    def measure(self) -> None:
        now = self._clock.now()
        for reflector in self.reflectors:
            self._metrics.cache_age.labels(reflector.kind.name).set(reflector.stream.age(now))
            self._metrics.cache_objects.labels(reflector.kind.name).set(len(reflector.uids))

    async def _compare(self) -> None:
        """Compare every kind with the API server's list at intervals."""
        while True:
            await self._clock.sleep(COMPARE_SECONDS * (1 + self._clock.chance() / 10))
            for reflector in self.reflectors:
                if reflector.synced and not reflector.refusal:
                    await self._compare_one(reflector)

    async def _compare_one(self, reflector: Reflector) -> None:
        try:
            drift = await reflector.compare()
        except (ApiError, Unreadable) as error:
            event(f"{reflector.kind.name} not compared with the API server", 30, error=str(error))
            return
        if drift:
            event(f"{reflector.kind.name} differ from the API server's list, listing again", 40, objects=drift)
