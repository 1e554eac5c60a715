# SPDX-License-Identifier: Apache-2.0
"""Thousands of events through broken streams, drift that is detected and repaired, credentials that are renewed."""

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cluster.apiserver import ApiServer
from app.cluster.kubeconfig import find_cluster
from app.cluster.listing import Unreadable
from app.cluster.policy_watch import PolicyBook
from app.cluster.reflector import Clock, Reflector
from app.cluster.snapshot import fill
from app.cluster.watched_kinds import core_kinds
from app.telemetry.metrics import Metrics
from app.values.errors import ApiError
from app.world.state import State
from tests.bench.fleet import MAKES, node_name
from tests.builders import gpus, knowledge, node_document, pod, policy
from tests.cluster.fake_apiserver import FakeApi, fake_api, served, status, until
from tests.cluster.reflector_scene import Scene, play, thing

NODES = 40
EVENTS = 20_000
BREAKS = (5_000, 10_000, 15_000)


async def _at_once(_seconds: float) -> None:
    await asyncio.sleep(0)


def reflectors(server: ApiServer, state: State, folder: Path) -> tuple[Reflector, Reflector]:
    """Make reflectors of nodes and pods on the fake server's two paths."""
    (folder / "p.yaml").write_text(policy("p", ""), "utf-8")
    book = PolicyBook(folder, knowledge(), lambda: "2026-11-21")
    kinds = {kind.name: kind for kind in core_kinds(state, book, "gpu-usher")}
    clock = Clock(sleep=_at_once)
    nodes, pods = (Reflector(kinds[name], server, Metrics(), clock) for name in ("nodes", "pods"))
    return nodes, pods


def summary(state: State) -> dict[str, Any]:
    """Return all facts of the state that decide placements."""
    return {name: (node.node_class, dict(node.free.units), node.taints) for name, node in state.nodes.items()}


def draw(chance: random.Random, api: dict[str, FakeApi]) -> None:
    """Make one random change of the cluster."""
    number = chance.randrange(NODES)
    uid = f"uid-{chance.randrange(600)}"
    what = chance.random()
    if what < 0.1:
        product, driver, amount = chance.choice(MAKES)
        made = node_document(node_name(number), product, driver, {"nvidia.com/gpu": amount})
        made["metadata"]["uid"] = node_name(number)
        api["nodes"].put(made)
    elif what < 0.12 and node_name(number) in api["nodes"].objects:
        api["nodes"].delete(node_name(number))
    elif what < 0.4 and uid in api["pods"].objects:
        api["pods"].delete(uid)
    else:
        amount = int(uid.removeprefix("uid-")) % 5  # Kubernetes lets nobody change it later
        made = pod(gpus(amount), nodeName=node_name(number) if chance.random() < 0.8 else None)
        made["metadata"] |= {"uid": uid, "name": uid}
        if made["spec"]["nodeName"] is None:
            del made["spec"]["nodeName"]
        made["status"] = {"phase": chance.choice(["Pending", "Running", "Running", "Succeeded", "Failed"])}
        api["pods"].put(made)


def test_twenty_thousand_events_through_three_broken_streams_leave_no_drift(tmp_path: Path) -> None:
    """CACHE-02, F29: one stream is answered with 410, the others continue where they stopped."""

    async def run() -> None:
        api = {"nodes": FakeApi(), "pods": FakeApi()}
        async with served({f"/api/v1/{name}": api_of_kind for name, api_of_kind in api.items()}) as server:
            state, chance = State(knowledge()), random.Random(4)
            both = reflectors(server, state, tmp_path)
            tasks = [asyncio.create_task(reflector.run()) for reflector in both]
            await until("both watch", lambda: all(api_of_kind.watched for api_of_kind in api.values()))
            for count in range(EVENTS):
                draw(chance, api)
                if count in BREAKS:
                    for api_of_kind in api.values():
                        api_of_kind.hang_up()
                if count == BREAKS[1]:
                    for api_of_kind in api.values():
                        api_of_kind.compact()
                if count - 100 in BREAKS:  # a hundred events later
                    await until("both watch again", lambda: all(api_of_kind.watched for api_of_kind in api.values()))
                if count % 500 == 0:
                    await asyncio.sleep(0)
            expected = State(knowledge())
            fill(expected, [*({**document, "kind": kind} for kind, name in (("Node", "nodes"), ("Pod", "pods"))
                              for document in api[name].objects.values())])  # fmt: skip
            await until("the index agrees", lambda: summary(state) == summary(expected))

            assert not any([await reflector.compare() for reflector in both])
            assert not any(task.done() for task in tasks)
            for task in tasks:
                task.cancel()

    asyncio.run(run())


def test_drift_is_counted_and_mended_by_a_new_list() -> None:
    """CACHE-10: the comparison detects what a watch lost for good."""

    async def test(scene: Scene) -> None:
        await scene.following()
        await scene.agrees()
        del scene.api.objects["a"]
        scene.api.objects |= {"b": thing("b", "another"), "c": thing("c")}

        assert await scene.reflector.compare() == 3

        scene.api.say("BOOKMARK", {"metadata": {"resourceVersion": "900"}})
        await scene.agrees()
        assert await scene.reflector.compare() == 0
        assert scene.count("gpu_usher_cache_drift_objects") == 0

    play(test, thing("a"), thing("b"))


def test_what_changes_during_the_comparison_is_no_drift() -> None:
    async def test(scene: Scene) -> None:
        await scene.following()
        await scene.agrees()

        def meanwhile(_request: web.Request) -> web.Response:
            body = {"metadata": {}, "items": [{"metadata": thing("b")["metadata"]}]}
            scene.reflector.uids.pop("a")  # deleted, with an event, after the list was read
            scene.reflector.uids["c"] = "uid-c"
            return web.json_response(body)

        scene.api.faults.append(meanwhile)
        assert await scene.reflector.compare() == 0

    play(test, thing("a"), thing("b"))


def test_what_cannot_be_read_is_no_drift() -> None:
    """An object that stays unreadable must not lead to a list every ten minutes."""

    async def test(scene: Scene) -> None:
        await scene.following()
        await until("the list is in", lambda: scene.index == {"a": {}})
        scene.api.say("ADDED", {"metadata": {"name": "odd", "uid": "o", "labels": 5}})
        scene.api.objects["odd"] = {"metadata": {"name": "odd", "uid": "o", "labels": 5}}
        await until("it is known to be odd", lambda: scene.reflector.unreadable == {"odd", "listed"})

        assert await scene.reflector.compare() == 0

    play(test, thing("a"), {"metadata": {"name": "listed", "uid": "l", "labels": 5}})


@pytest.mark.parametrize("garbage", [b"", b"[]", b"null", b'{"items":', b"\xff", b'{"metadata":{},"items":[5]}'])
def test_comparison_answered_with_garbage_is_an_error_of_the_expected_kind(garbage: bytes) -> None:
    async def test(scene: Scene) -> None:
        await scene.following()
        scene.api.faults.append(lambda _request: web.Response(body=garbage))
        with contextlib.suppress(ApiError, Unreadable):
            await scene.reflector.compare()

    play(test, thing("a"))


def test_expired_token_is_read_again(tmp_path: Path) -> None:
    """CACHE-09, fault 9: 401 reads the credentials anew, also where the kubeconfig itself was rewritten."""

    def write(url: str, token: str) -> Path:
        document = {
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(document), "utf-8")
        return path

    async def run() -> None:
        async with fake_api() as (api, _):
            api.put(thing("a"))
            server = ApiServer(find_cluster(write(api.url, "old"), None))
            scene = Scene(api, server, 120)
            task = asyncio.create_task(scene.reflector.run())
            await scene.following()
            write(api.url, "new")
            api.faults.append(status(401))
            api.hang_up()
            await until("it watches again", lambda: len(api.watches) == 3)

            assert [headers["Authorization"] for headers in api.headers] == ["Bearer old"] * 3 + ["Bearer new"]
            task.cancel()
            await server.close()

    asyncio.run(run())


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 2), st.booleans()), max_size=6), max_size=6)
)
@settings(max_examples=25)
def test_any_mix_of_events_and_breaks_ends_with_what_the_server_holds(
    rounds: list[list[tuple[str, int, bool]]],
) -> None:
    """CACHE-02: whatever the stream missed, with or without a 410."""

    async def test(scene: Scene) -> None:
        await scene.following()
        for index, changes in enumerate(rounds):
            for name, uid, alive in changes:
                if alive:
                    scene.api.put(thing(name, f"{name}-{uid}", turn=str(index)))
                elif name in scene.api.objects:
                    scene.api.delete(name)
            if index % 2:
                await scene.agrees()
                scene.api.faults.append(status(410))
                scene.api.hang_up()
                await until("it watches again", lambda: scene.api.watched)
        await scene.agrees()

        assert scene.reflector.uids == {
            name: document["metadata"]["uid"] for name, document in scene.api.objects.items()
        }

    play(test, thing("a", "a-0"))
