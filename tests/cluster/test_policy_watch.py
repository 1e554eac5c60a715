# SPDX-License-Identifier: Apache-2.0
"""GPUPolicy objects followed live, whenever their definition is installed, and edits checked before they are made."""

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
from app.cluster.state import State
from app.telemetry.metrics import Metrics
from app.values.errors import PolicyError
from tests.builders import knowledge, policy
from tests.cluster.fake_apiserver import FakeApi, served, status, until

Test = Callable[["Scene"], Awaitable[None]]
OBJECTS = "/apis/gpu-usher.io/v1alpha1/gpupolicies"
GROUP = "/apis/gpu-usher.io"
CORE = ("/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces", "/apis/node.k8s.io/v1/runtimeclasses",
        "/api/v1/namespaces/gpu-usher/configmaps")  # fmt: skip


class Group(FakeApi):
    """A group of the API server's discovery; absent while it has no versions."""

    def __init__(self, *versions: str) -> None:
        super().__init__()
        self.versions = versions

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer with the versions."""
        self.asked.append(dict(request.query))
        if not self.versions:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        return web.json_response({"versions": [{"version": each} for each in self.versions]})


class Scene:
    """A cluster followed into a book whose directory has one policy. `waits`: what was slept; `clock_stands`: no more.

    `loads`: what each attempt to load came to.
    """

    def __init__(self, folder: Path, *versions: str) -> None:
        self.folder = folder
        (folder / "default.yaml").write_text(policy("default", ""), "utf-8")
        self.book = PolicyBook(folder, knowledge(), lambda: "2026-11-21")
        self.api = FakeApi()
        self.group = Group(*versions)
        self.waits: list[float] = []
        self.loads: list[LoadOutcome] = []
        self.turn = asyncio.Event()

    async def pause(self, seconds: float) -> None:
        """Sleep no time, but until `turn` where the next question for GPUPolicy is due, and for ever before others."""
        self.waits.append(seconds)
        if seconds == DISCOVERY_SECONDS:
            await self.turn.wait()
            self.turn.clear()
        await asyncio.sleep(0.001 if seconds <= DISCOVERY_SECONDS else math.inf)

    def names(self) -> set[str]:
        """Which policies are in force."""
        return {each.name for each in self.book.current.policies}

    async def follow(self, test: Test) -> None:
        """Run a test beside the cluster that is followed."""
        apis = {path: FakeApi() for path in CORE}
        paths = {**apis, OBJECTS: self.api, GROUP: self.group, "/apis/resource.k8s.io": Group()}
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
    """Run a test; `refused`: how many requests for the objects are answered with 403."""

    async def run() -> None:
        scene = Scene(folder, *versions)
        for each in objects:
            scene.api.put(each)
        scene.api.faults.extend([status(403)] * refused)
        await scene.follow(test)

    asyncio.run(run())


def gpu_policy(policy_name: str, **spec: Any) -> dict[str, Any]:
    """Make a GPUPolicy as the API server keeps it."""
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
    """F76, F131: it stays visible, with its path."""

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
    """F131: asked every 30 s; the service is ready without it, and stays ready while its list is read."""

    async def test(scene: Scene) -> None:
        await until("it waits", lambda: DISCOVERY_SECONDS in scene.waits)
        scene.turn.set()
        await until("it asked again", lambda: len(scene.group.asked) == 2 and scene.waits.count(DISCOVERY_SECONDS) == 2)
        assert (scene.api.asked, scene.names()) == ([], {"default"})
        assert "gpupolicies" not in scene.cluster.health()

        scene.group.versions = ("v1alpha1",)
        scene.api.faults.append(status(500))
        scene.turn.set()
        await until("it is followed", lambda: "gpupolicies" in scene.cluster.health())
        assert not scene.cluster.health()["gpupolicies"]["synced"]
        assert scene.cluster.synced
        await until("it is in force", lambda: scene.names() == {"default", "team"})
        assert len(scene.group.asked) == 3

    play(tmp_path, test, objects=(gpu_policy("team"),))


def test_version_that_is_not_ours_is_not_followed(tmp_path: Path) -> None:
    """Fault 61."""

    async def test(scene: Scene) -> None:
        await until("it waits", lambda: DISCOVERY_SECONDS in scene.waits)

        assert scene.api.asked == []

    play(tmp_path, test, "v2")


def test_objects_that_we_may_not_read_are_named_and_not_waited_for(tmp_path: Path) -> None:
    """The definition came without its RBAC; once that is there, they are followed."""

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


def book_with(folder: Path, **sources: dict[str, Any]) -> PolicyBook:
    """Make a book of one policy file, default.yaml, and of GPUPolicy objects by name."""
    (folder / "default.yaml").write_text(policy("default", ""), "utf-8")
    book = PolicyBook(folder, knowledge(), lambda: "2026-11-21")
    for name, spec in sources.items():
        book.put_source(f"gpupolicy {name}", gpu_policy(name, **spec))
    return book


UNKNOWN = {"placement": {"zzz": 1}}


@pytest.mark.parametrize(
    ("source", "content", "expected"),
    [
        pytest.param("gpupolicy new", gpu_policy("new", priority=4), None, id="good object"),
        pytest.param("configmap gpu-usher/new", {"a.yaml": policy("new", "")}, None, id="good text"),
        pytest.param("gpupolicy team", gpu_policy("team", priority=4), None, id="replaced by a good one"),
        pytest.param("gpupolicy new", gpu_policy("new", **UNKNOWN),
                     "gpupolicy new: spec.placement.zzz: unknown field, remove it", id="bad object"),
        pytest.param("configmap gpu-usher/new", {"a.yaml": policy("new", "zzz: 1"), "b.yaml": policy("b", "")},
                     "configmap gpu-usher/new: a.yaml:4:8: spec.zzz: unknown field, remove it", id="bad text"),
        pytest.param("gpupolicy default", gpu_policy("default"),
                     "gpupolicy default: metadata.name: default is taken by default.yaml:3:12", id="name of a file"),
        pytest.param("configmap gpu-usher/new", {"a.yaml": policy("team", "")},
                     "gpupolicy team: metadata.name: team is taken by configmap gpu-usher/new: a.yaml:3:12",
                     id="name of an object, which is loaded later"),
    ],
)  # fmt: skip
def test_edit_is_checked_with_all_that_is_there(
    tmp_path: Path, source: str, content: dict[str, Any], expected: str | None
) -> None:
    """F131: before it is made."""
    book = book_with(tmp_path, team={})

    assert expected == book.check(source, content)


def test_edit_that_ties_with_another_policy_names_both(tmp_path: Path) -> None:
    book = book_with(tmp_path, team={"priority": 7, "admission": {"runtimeClassName": "a"}})

    found = book.check("gpupolicy new", gpu_policy("new", priority=7, admission={"runtimeClassName": "b"}))

    assert found is not None
    assert "team and new both have priority 7" in found


def test_mistake_of_another_source_does_not_stop_an_edit(tmp_path: Path) -> None:
    book = book_with(tmp_path, broken=UNKNOWN)

    assert book.check("gpupolicy new", gpu_policy("new")) is None
    assert book.check("gpupolicy broken", gpu_policy("broken")) is None


def test_mistake_that_stays_in_what_is_edited_is_its_own(tmp_path: Path) -> None:
    book = book_with(tmp_path, broken=UNKNOWN, other={"zzz": 1})

    found = book.check("gpupolicy broken", gpu_policy("broken", priority=3, **UNKNOWN))

    assert found == "gpupolicy broken: spec.placement.zzz: unknown field, remove it"


def test_check_changes_nothing_and_reads_no_file(tmp_path: Path) -> None:
    book = book_with(tmp_path, team={})
    book.load()
    before = book.current
    (tmp_path / "default.yaml").unlink()

    book.check("gpupolicy new", gpu_policy("new"))
    book.check("gpupolicy new", gpu_policy("new", **UNKNOWN))

    assert (book.current, book.error) == (before, None)


@pytest.mark.parametrize(
    ("source", "content", "wanted"),
    [
        pytest.param("gpupolicy new", gpu_policy("new", placement={"products": {"allow": ["H100"] * 300_000}}),
                     "more than 2500 values (keys, words, lists): split it", id="object"),
        pytest.param("configmap gpu-usher/new", {"a.yaml": "---\n" * 1_000}, "at most 256: split", id="documents"),
        pytest.param("configmap gpu-usher/new", {"a.yaml": "- a\n" * 20_000}, "more than 2500 values", id="values"),
        pytest.param("configmap gpu-usher/new", {str(key): "" for key in range(257)}, "257 keys", id="texts"),
        pytest.param("configmap gpu-usher/new", {"a": "#" * 600_000, "b": "#" * 600_000}, "1200000 characters",
                     id="characters of all texts"),
        pytest.param("configmap gpu-usher/new", {"a": "#\n" * 60_000, "b": "#\n" * 60_000}, "more than 100000 lines",
                     id="lines of all texts"),
    ],
)  # fmt: skip
def test_too_large_source_is_refused_at_the_door_and_leaves_the_good_set_where_it_is_watched(
    tmp_path: Path, source: str, content: dict[str, Any], wanted: str
) -> None:
    """F103: whichever way a policy comes, its size is bounded before it is read."""
    book = book_with(tmp_path, team={})
    before = book.load()

    refused = book.check(source, content)
    book.put_source(source, content)
    taken = book.load()

    assert refused is not None
    assert wanted in refused
    assert wanted in (taken.error or "")
    assert taken.hash == before.hash


def test_too_large_file_is_refused(tmp_path: Path) -> None:
    """F103: as `gpu-usher lint` and the mounted directory read it."""
    (tmp_path / "default.yaml").write_text("---\n" * 1_000, "utf-8")

    with pytest.raises(PolicyError, match=r"default.yaml:1:1: 1000 documents, wants at most 256: split it"):
        PolicyBook(tmp_path, knowledge(), lambda: "2026-11-21")


def test_more_policies_than_a_set_may_have_are_refused(tmp_path: Path) -> None:
    """F103: every pod is matched against each."""
    book = book_with(tmp_path)
    texts = {str(key): "---\n".join(policy(f"p{key}-{index}", "") for index in range(100)) for key in range(5)}

    assert "more than 500 policies in all" in (book.check("configmap gpu-usher/many", texts) or "")


def test_what_is_in_force_is_not_read_again_for_each_edit(tmp_path: Path) -> None:
    """F103: a check costs what the edit costs, however large the set is."""
    text = "---\n".join(policy(f"p{index}", f"priority: {index}") for index in range(100))
    book = book_with(tmp_path)
    book.put_source("configmap gpu-usher/many", {"a.yaml": text})

    first, again = (sum(1 for _ in book.load_steps()) for _ in range(2))

    assert again < first / 2
