# SPDX-License-Identifier: Apache-2.0
"""The service is killed and started again while pods are created; and a long run of events through a bad network."""

import asyncio
import itertools
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from app.cluster.apiserver import ApiServer
from app.cluster.files import shipped_policies
from app.cluster.kubeconfig import find_cluster
from app.cluster.live import LiveCluster
from app.cluster.policy_watch import PolicyBook
from app.cluster.snapshot import fill
from app.telemetry.metrics import Metrics
from app.world.state import State
from tests.builders import knowledge
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Api
from tests.controlplane.processes import wait_until
from tests.controlplane.relay import Relay
from tests.e2e.stage import create_namespace, eventually, gpu_pod, grant, install_webhooks, remove_webhooks, serving

MAKERS = 4
BREAKS = 3
"""Times at which the network breaks during the events; for 300 events nothing comes through."""
BROKEN_EVENTS = 300
RECONNECTED_SECONDS = 120
"""Seconds until the watch is back: four times the longest delay between two tries."""
NODES = 50


@contextmanager
def pods_being_made(plane: ControlPlane, namespace: str) -> Iterator[list[tuple[int, str]]]:
    """Create requests-only GPU pods in several threads for as long as the block lasts.

    Yields a list of (status, message or annotations).
    """
    stop = threading.Event()
    answers: list[tuple[int, str]] = []

    def make(maker: int) -> None:
        with plane.api.like() as api:
            for count in itertools.count():
                if stop.is_set():
                    return
                pod = gpu_pod(f"p-{maker}-{count}", namespace, requests={"nvidia.com/gpu": 1})
                answer = api.try_create(f"/api/v1/namespaces/{namespace}/pods", pod)
                answers.append((answer.status_code, answer.json().get("message", "")))

    threads = [threading.Thread(target=make, args=(maker,)) for maker in range(MAKERS)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
def test_service_killed_under_load_fails_in_the_way_the_operator_chose(plane: ControlPlane, policy: str) -> None:
    """F106, fault 38: unrepaired pods get the API server's own refusal under Ignore, the webhook's under Fail.

    Under both, every pod that is created after the restart is repaired.
    """
    namespace = create_namespace(plane, f"killed-{policy.lower()}")
    with serving(plane) as service:
        install_webhooks(plane, service, failurePolicy=policy)
        with pods_being_made(plane, namespace) as answers:
            eventually("pods are made", lambda: len(answers) > 40)
            alive = len(answers)
            service.process.stop(signal.SIGKILL)
            eventually("pods are refused", lambda: any(code != 201 for code, _ in answers[alive:]))
            service.restart()
            back = len(answers) + MAKERS  # running requests were sent while it was down
            eventually("pods are made again", lambda: len(answers) > back + 40)

    before, after = answers[: alive - MAKERS], answers[back:]
    meanwhile = Counter(message for code, message in answers[alive:back] if code != 201)
    words = "failed calling webhook" if policy == "Fail" else "Limit must be set for non overcommitable resources"
    assert {201} == {code for code, _ in before}
    assert {201} == {code for code, _ in after}
    assert meanwhile
    assert all(words in message for message in meanwhile), meanwhile


def changes(plane: ControlPlane, relay: Relay, count: int, lost: Callable[[], bool]) -> None:
    """Change nodes and pods that many times from several threads, and break the network three times meanwhile.

    `lost` tells whether the watch of pods is down. Each break waits until the watch is back from the last one, and ends
    once the watch has noticed it.
    """
    done, lock = [0], threading.Lock()
    breaks = {count * number // (BREAKS + 1) for number in range(1, BREAKS + 1)}

    def work(seed: int) -> None:
        chance, mine = random.Random(seed), list[str]()
        with plane.api.like() as api:
            while done[0] < count:
                one_change(api, chance, mine, f"p-{count}-{seed}-{done[0]}")
                with lock:
                    done[0] += 1
                    if done[0] in breaks:
                        wait_until("the watch is connected", lambda: not lost(), RECONNECTED_SECONDS)
                        relay.cut()
                    if done[0] - BROKEN_EVENTS in breaks:
                        wait_until("the watch is lost", lost, RECONNECTED_SECONDS)
                        relay.mend()

    with ThreadPoolExecutor(MAKERS) as pool:
        for _ in pool.map(work, range(MAKERS)):  # raises what a thread has raised
            pass
    assert done[0] >= count


def one_change(api: Api, chance: random.Random, mine: list[str], name: str) -> None:
    """Create, finish or delete a bound pod, or change what a node offers."""
    what, node = chance.random(), f"n-{chance.randrange(NODES)}"
    if what < 0.2:
        amount = {"nvidia.com/gpu": str(chance.randrange(9))}
        api.patch(f"/api/v1/nodes/{node}/status", {"status": {"allocatable": amount, "capacity": amount}})
    elif what < 0.6 or not mine:
        pod = gpu_pod(name, "default", {"nvidia.com/gpu": chance.randrange(1, 3)}, nodeName=node)
        mine.append(api.create("/api/v1/namespaces/default/pods", pod)["metadata"]["name"])
    elif what < 0.7:
        phase = chance.choice(["Running", "Succeeded", "Failed"])
        path = f"/api/v1/namespaces/default/pods/{chance.choice(mine)}/status"
        api.patch(path, {"status": {"phase": phase}})
    else:
        api.delete(f"/api/v1/namespaces/default/pods/{mine.pop(chance.randrange(len(mine)))}")


@pytest.fixture(scope="module")
def nodes(plane: ControlPlane) -> None:
    """The nodes that the events are about."""
    add_nodes(plane.api, [node_object(f"n-{index}") for index in range(NODES)])


def summary(state: State) -> dict[str, Any]:
    return {
        "nodes": {name: (node.node_class, dict(node.free.units), node.taints) for name, node in state.nodes.items()},
        "held": {name: sorted(state.allocations.bound(name), key=lambda pod: pod.uid) for name in state.nodes},
        "namespaces": {name: dict(labels) for name, labels in state.namespaces.by_name.items()},
    }


def listed(api: Api) -> State:
    """Read the whole cluster anew, as a snapshot is read."""
    state = State(knowledge())
    kinds = (("Node", "nodes"), ("Pod", "pods"), ("Namespace", "namespaces"))
    fill(state, [{**item, "kind": kind} for kind, path in kinds for item in api.items(f"/api/v1/{path}")])
    return state


@pytest.mark.parametrize("events", [4_000, pytest.param(20_000, marks=pytest.mark.long)])
@pytest.mark.usefixtures("nodes")
def test_events_and_three_broken_networks_leave_no_drift(plane: ControlPlane, events: int) -> None:
    """F29, CACHE-02, CACHE-10: the index equals a new list of the real API server."""
    remove_webhooks(plane)
    grant(plane)
    relay, state, metrics = Relay(plane.port), State(knowledge()), Metrics()

    async def follow() -> list[int]:
        server = ApiServer(find_cluster(plane.kubeconfig("gpu-usher", relay.port), None))
        book = PolicyBook(shipped_policies(), knowledge(), lambda: "2026-11-21")
        cluster = LiveCluster(server, state, book, metrics, "gpu-usher")
        task = asyncio.create_task(cluster.run())
        await until("the first lists are in", lambda: cluster.synced)
        (pods,) = (reflector for reflector in cluster.reflectors if reflector.kind.name == "pods")
        await asyncio.to_thread(changes, plane, relay, events, lambda: pods.stream.since is None)
        await until("the index agrees", lambda: summary(state) == summary(listed(plane.api)))
        drift = [await reflector.compare() for reflector in cluster.reflectors]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return drift

    try:
        drift = asyncio.run(follow())
    finally:
        relay.close()

    lost = metrics.registry.get_sample_value("gpu_usher_watch_restarts_total", {"kind": "pods", "reason": "connection"})
    assert not any(drift)
    assert lost is not None
    assert lost >= BREAKS


async def until(what: str, true: Callable[[], bool]) -> None:
    for _ in range(200):
        if await asyncio.to_thread(true):
            return
        await asyncio.sleep(0.3)
    raise AssertionError(f"not within a minute: {what}")
