# SPDX-License-Identifier: Apache-2.0
"""GPUPolicy objects are followed live, as soon as their definition is installed."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from app.cluster.live import DISCOVERY_SECONDS, LiveCluster
from app.cluster.policy_watch import LoadOutcome, PolicyBook
from app.cluster.reflector import Clock
from app.telemetry.metrics import Metrics
from app.world.state import State
from tests.builders import knowledge, policy
from tests.cluster.fake_apiserver import FakeApi, served, status, until

Test = Callable[["Scene"], Awaitable[None]]
OBJECTS = "/apis/gpu-usher.io/v1alpha1/gpupolicies"
BETA = OBJECTS.replace("v1alpha1", "v1beta1")
GROUP = "/apis/gpu-usher.io"
CORE = ("/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces", "/apis/node.k8s.io/v1/runtimeclasses",
        "/api/v1/namespaces/gpu-usher/configmaps")  # fmt: skip


class FakeDiscovery(FakeApi):
    """A group of the API server's discovery, which answers 404 while it has no versions."""

    def __init__(self, *versions: str) -> None:
        super().__init__()
        self.versions = versions

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer with the versions."""
        self.queries.append(dict(request.query))
        if not self.versions:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        return web.json_response({"versions": [{"version": version} for version in self.versions]})


class Scene:
    """A cluster that is followed into a PolicyBook whose directory has one policy.

    `waits` holds the seconds of each sleep. `loads` holds the outcome of each attempt to load the policies.
    """

    def __init__(self, folder: Path, *versions: str) -> None:
        self.folder = folder
        (folder / "default.yaml").write_text(policy("default", ""), "utf-8")
        self.book = PolicyBook(folder, knowledge(), lambda: "2026-11-21")
        self.api = FakeApi()
        self.beta = FakeApi()
        self.config_maps = FakeApi()
        self.group = FakeDiscovery(*versions)
        self.waits: list[float] = []
        self.loads: list[LoadOutcome] = []
        self.turn = asyncio.Event()

    async def pause(self, seconds: float) -> None:
        """Sleep for no time; wait for `turn` before the next discovery of GPUPolicy, and for ever in longer sleeps."""
        self.waits.append(seconds)
        if seconds == DISCOVERY_SECONDS:
            await self.turn.wait()
            self.turn.clear()
        await asyncio.sleep(0.001 if seconds <= DISCOVERY_SECONDS else math.inf)

    def names(self) -> set[str]:
        """The names of the policies in force."""
        return {enforced.name for enforced in self.book.current.policies}

    async def follow(self, test: Test) -> None:
        """Run a test beside the task that follows the cluster."""
        apis = {path: FakeApi() for path in CORE}
        apis[CORE[-1]] = self.config_maps
        paths = {
            **apis,
            OBJECTS: self.api,
            BETA: self.beta,
            GROUP: self.group,
            "/apis/resource.k8s.io": FakeDiscovery(),
            "/apis/topology.node.k8s.io": FakeDiscovery(),
        }
        async with served(paths) as server:
            clock = Clock(sleep=self.pause, chance=lambda: 0.0)
            self.cluster = LiveCluster(server, State(knowledge()), self.book, Metrics(), "gpu-usher", clock=clock)
            tasks = [asyncio.create_task(self.cluster.run()), asyncio.create_task(self.book.follow(self.loads.append))]
            await until("it is synced", lambda: self.cluster.synced)
            await test(self)
            assert not any(task.done() for task in tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def play(folder: Path, test: Test, *versions: str, objects: tuple[dict[str, Any], ...] = (), refused: int = 0) -> None:
    """Run a test; `refused` is the number of requests for the objects that are answered with 403."""

    async def run() -> None:
        scene = Scene(folder, *versions)
        for document in objects:
            scene.api.put(document)
        scene.api.faults.extend([status(403)] * refused)
        await scene.follow(test)

    asyncio.run(run())


def gpu_policy(policy_name: str, **spec: Any) -> dict[str, Any]:
    """Write a GPUPolicy as the API server stores it."""
    metadata = {"name": policy_name, "uid": f"uid-{policy_name}", "managedFields": [{"manager": "kubectl"}]}
    return {"apiVersion": "gpu-usher.io/v1alpha1", "kind": "GPUPolicy", "metadata": metadata, "spec": spec}


def test_objects_join_the_directory_are_changed_and_go(tmp_path: Path) -> None:
    """F76, F131."""

    async def test(scene: Scene) -> None:
        await until("the first is in force", lambda: scene.names() == {"default", "first"})
        scene.api.put(gpu_policy("team", priority=5))
        await until("one more is in force", lambda: scene.names() == {"default", "first", "team"})

        scene.api.put(gpu_policy("team", priority=9))
        await until("the change is in force", lambda: scene.book.current.policies[0].spec.priority == 9)
        assert scene.book.current.policies[0].origin == "gpupolicy team"

        scene.api.delete("team")
        await until("it is gone", lambda: scene.names() == {"default", "first"})

    play(tmp_path, test, "v1alpha1", objects=(gpu_policy("first"),))


def test_bad_object_leaves_the_last_good_set_in_force_until_it_is_mended(tmp_path: Path) -> None:
    """F76, F131: the error stays visible, with its path."""

    async def test(scene: Scene) -> None:
        await until("it is in force", lambda: scene.names() == {"default", "team"})
        before = scene.book.current
        scene.api.put(gpu_policy("team", placement={"product": {}}))
        scene.api.put(gpu_policy("other"))
        await until("the mistake is seen", lambda: scene.book.error)
        assert scene.book.error == "gpupolicy team: spec.placement.product: unknown field, did you mean products?"
        assert scene.book.current is before

        scene.api.put(gpu_policy("team", priority=3))
        await until("it is mended", lambda: scene.names() == {"default", "team", "other"})
        assert scene.book.error is None

    play(tmp_path, test, "v1alpha1", objects=(gpu_policy("team"),))


def test_definition_installed_late_is_found_while_all_else_goes_on(tmp_path: Path) -> None:
    """F131: discovery is asked every 30 s; the service is ready meanwhile, and also while the list is read."""

    async def test(scene: Scene) -> None:
        await until("it waits", lambda: DISCOVERY_SECONDS in scene.waits)
        scene.turn.set()
        await until(
            "it asked again", lambda: len(scene.group.queries) == 3 and scene.waits.count(DISCOVERY_SECONDS) == 2
        )
        assert (scene.api.queries, scene.names()) == ([], {"default"})
        assert "gpupolicies" not in scene.cluster.health()

        scene.group.versions = ("v1alpha1",)
        scene.api.faults.append(status(500))
        scene.turn.set()
        await until("it is followed", lambda: "gpupolicies" in scene.cluster.health())
        assert not scene.cluster.health()["gpupolicies"]["synced"]
        assert scene.cluster.synced
        await until("it is in force", lambda: scene.names() == {"default", "team"})
        assert len(scene.group.queries) == 4

    play(tmp_path, test, objects=(gpu_policy("team"),))


def test_version_that_is_not_ours_is_not_followed(tmp_path: Path) -> None:
    """Fault 61."""

    async def test(scene: Scene) -> None:
        await until("it waits", lambda: DISCOVERY_SECONDS in scene.waits)

        assert scene.api.queries == []

    play(tmp_path, test, "v2")


@pytest.mark.parametrize("versions", [("v1alpha1",), ("v1beta1", "v1alpha1"), ("v1", "v1beta1", "v1alpha1")], ids=len)
def test_version_that_the_former_release_serves_is_followed(tmp_path: Path, versions: tuple[str, ...]) -> None:
    """F131: an upgrade or a rollback of the definition beside it takes nothing away."""

    async def test(scene: Scene) -> None:
        await until("it is in force", lambda: scene.names() == {"default", "team"})

        assert (bool(scene.api.lists), scene.beta.queries) == (True, [])

    play(tmp_path, test, *versions, objects=(gpu_policy("team"),))


def test_newer_version_is_followed_where_no_other_is_served(tmp_path: Path) -> None:
    """F131."""

    async def test(scene: Scene) -> None:
        scene.beta.put(gpu_policy("team") | {"apiVersion": "gpu-usher.io/v1beta1"})
        await until("it is in force", lambda: scene.names() == {"default", "team"})

        assert scene.api.queries == []

    play(tmp_path, test, "v1beta1")


def test_objects_that_we_may_not_read_are_named_and_not_waited_for(tmp_path: Path) -> None:
    """The definition came without its RBAC; once the rights are there, the objects are followed."""

    async def test(scene: Scene) -> None:
        assert "403" in scene.cluster.health()["gpupolicies"]["error"]
        scene.api.faults.clear()
        await until("it is in force", lambda: scene.names() == {"default", "team"})
        assert "error" not in scene.cluster.health()["gpupolicies"]

    play(tmp_path, test, "v1alpha1", objects=(gpu_policy("team"),), refused=1000)


def test_what_the_api_server_adds_to_an_object_loads_nothing_again(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        await until("it is in force", lambda: scene.names() == {"default", "team"})
        await until("it watches", lambda: scene.api.watched)
        loads = len(scene.loads)
        labelled = gpu_policy("team")
        labelled["metadata"]["annotations"] = {"note": "new"}
        scene.api.put(labelled)
        scene.api.put(gpu_policy("last"))
        await until("a later one is in force", lambda: "last" in scene.names())

        assert len(scene.loads) == loads + 1

    play(tmp_path, test, "v1alpha1", objects=(gpu_policy("team"),))


def config_map(name: str, label: str | None, text: str) -> dict[str, Any]:
    """Write a ConfigMap with one policy, as the API server stores it."""
    labels = {"gpu-usher.io/policy": label} if label else None
    metadata = {"name": name, "namespace": "gpu-usher", "uid": f"uid-{name}", "labels": labels}
    return {"metadata": metadata, "data": {"own.yaml": text}}


def test_labelled_config_maps_are_followed_and_no_other(tmp_path: Path) -> None:
    """F131: the label of the last good set makes no policies, whatever ConfigMap has it."""

    async def test(scene: Scene) -> None:
        assert scene.config_maps.lists[0]["labelSelector"] == "gpu-usher.io/policy in (true,last-good)"
        for name, label in (("gpu-usher-policies-last-good", "last-good"), ("other", "last-good"), ("team", "true")):
            scene.config_maps.put(config_map(name, label, policy(name, "")))
        await until("the labelled one is in force", lambda: "team" in scene.names())
        scene.config_maps.put(config_map("team", "true", policy("changed", "")))

        await until("it is changed", lambda: scene.names() == {"default", "changed"})

    play(tmp_path, test)


def test_last_good_set_is_found_by_a_process_that_starts_with_a_mistake(tmp_path: Path) -> None:
    """F76: by the watch of ConfigMaps."""

    async def run() -> None:
        scene = Scene(tmp_path)
        (tmp_path / "default.yaml").write_text("spec: {", "utf-8")
        scene.book = PolicyBook(tmp_path, knowledge(), lambda: "2026-11-21", live=True)
        assert scene.names() == set()
        kept = config_map("gpu-usher-policies-last-good", "last-good", policy("kept", ""))
        scene.config_maps.put(kept)

        async def test(scene: Scene) -> None:
            await until("it is in force", lambda: scene.names() == {"kept"})
            assert not scene.book.awaiting_last_good

        await scene.follow(test)

    asyncio.run(run())


def test_edit_between_the_first_load_and_the_watch_is_taken(tmp_path: Path) -> None:
    """F76, CFG-01."""
    scene = Scene(tmp_path)
    (tmp_path / "two.yaml").write_text(policy("two", "priority: 2"), "utf-8")

    async def follow() -> None:
        following = asyncio.create_task(scene.book.follow(scene.loads.append))
        await until("the edit is loaded", lambda: bool(scene.loads))
        following.cancel()

    asyncio.run(follow())

    assert [load.policies for load in scene.loads] == [2]
