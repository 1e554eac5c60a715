# SPDX-License-Identifier: Apache-2.0
"""A reflector that follows a fake API server: what the tests of the reflector play on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from app.cluster.apiserver import ApiServer
from app.cluster.reflector import Clock, Reflector
from app.cluster.watched_kinds import WatchedKind
from app.kube.objects import Namespace
from app.telemetry.metrics import Metrics
from tests.cluster.fake_apiserver import FakeApi, fake_api, until

Test = Callable[["Scene"], Awaitable[None]]


class Scene:
    """A fake API server, and a reflector of its objects that keeps their labels by key in `index`."""

    def __init__(self, api: FakeApi, server: ApiServer, silence: float) -> None:
        self.api = api
        self.index: dict[str, dict[str, str]] = {}
        self.pauses: list[float] = []
        self.metrics = Metrics()
        self.time = 0.0
        kind: WatchedKind[Any] = WatchedKind(
            "things",
            "/things",
            Namespace,
            lambda found: found.metadata.labels or {},
            lambda key, _uid, labels: self.index.__setitem__(key, labels),
            lambda key, _uid: self.index.pop(key, None),  # type: ignore[arg-type]
        )
        clock = Clock(lambda: self.time, self._pause, lambda: 0.5, silence)
        self.reflector = Reflector(kind, server, self.metrics, clock)

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)

    async def following(self) -> None:
        """Wait until the reflector has an open watch."""
        await until("it watches", lambda: self.api.watched)

    async def agrees(self) -> None:
        """Wait until the index equals the objects of the API server."""
        await until("the index agrees", lambda: self.index == self.held())

    def held(self) -> dict[str, dict[str, str]]:
        """The labels of the API server's objects, by name."""
        return {name: document["metadata"].get("labels") or {} for name, document in self.api.objects.items()}

    def count(self, name: str, **labels: str) -> float:
        """Read a metric."""
        return self.metrics.registry.get_sample_value(name, {"kind": "things", **labels}) or 0.0


def thing(name: str, uid: str = "", **labels: str) -> dict[str, Any]:
    return {"kind": "Thing", "metadata": {"name": name, "uid": uid or f"uid-{name}", "labels": labels}}


def play(test: Test, *things: dict[str, Any], silence: float = 120, faults: tuple[Any, ...] = ()) -> None:
    """Run a test beside a reflector of an API server that has these objects."""

    async def run() -> None:
        async with fake_api() as (api, server):
            for document in things:
                api.put(document)
            api.faults.extend(faults)
            scene = Scene(api, server, silence)
            task = asyncio.create_task(scene.reflector.run())
            await test(scene)
            assert not task.done(), task.exception()
            task.cancel()

    asyncio.run(run())
