# SPDX-License-Identifier: Apache-2.0
"""The sums of pod requests by node equal a count from scratch after any order of events (F83)."""

import asyncio
import gc
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cluster.watched_kinds import _pods
from app.kube.gpu_usage import read_bound_requests, read_gpu_usage
from app.kube.pod_object import pod_object
from app.kube.pod_requests import PodRequests
from app.kube.records import read_record
from app.values.errors import QuantityError
from app.world.pod_index import NodeRequests
from app.world.state import State
from tests.builders import knowledge, pod
from tests.cluster.fake_apiserver import FakeApi, served, until
from tests.cluster.test_live import reflectors


def draw_requests(random: Random) -> PodRequests | None:
    if random.random() < 0.2:
        return None
    return PodRequests(random.choice("abc"), (("cpu", random.choice([100, 250])), ("memory", random.choice([1, 2]))))


def test_any_order_of_events_equals_a_count_from_scratch() -> None:
    """F83: pods come, change, move and go."""
    random, bookings, alive = Random(4), NodeRequests(), {}
    for _ in range(5000):
        uid, booking = str(random.randrange(40)), draw_requests(random)
        alive[uid] = booking
        bookings.put(uid, booking)
    expected: dict[str, Counter[str]] = {}
    for requests in filter(None, alive.values()):
        expected.setdefault(requests.node, Counter()).update({**dict(requests.amounts), "pods": 1})

    assert {node: dict(used) for node, used in bookings.used.items()} == {
        node: dict(used) for node, used in expected.items()
    }


def test_sum_that_somebody_has_taken_does_not_change() -> None:
    """A snapshot for a reader is a shallow copy (docs/reference/listeners.md#state)."""
    bookings = NodeRequests()
    bookings.put("p", PodRequests("n", (("cpu", 1),)))
    taken = bookings.used["n"]

    bookings.put("q", PodRequests("n", (("cpu", 1),)))

    assert taken == {"cpu": 1, "pods": 1}


AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "nvidia.com/mig-1g.10gb.shared", "amd.com/gpu", "a.b/c"]),
    st.sampled_from(["0", "1", "2", "500m"]),
    max_size=3,
)
RESOURCES = st.fixed_dictionaries({}, optional={"requests": AMOUNTS | st.none(), "limits": AMOUNTS})
CONTAINERS = st.lists(st.fixed_dictionaries({}, optional={"resources": RESOURCES}), max_size=3)


@settings(max_examples=150, deadline=None)
@given(CONTAINERS, CONTAINERS, st.sampled_from(["Pending", "Running", "Succeeded"]))
def test_gpu_usage_of_a_watched_pod_is_that_of_its_whole_reading(
    containers: list[Any], init_containers: list[Any], phase: str
) -> None:
    """F83: a bound pod without a resource that has a domain in its name is read no further."""
    spec = {"nodeName": "n", "containers": containers, "initContainers": init_containers}
    document = {"metadata": {"name": "p", "uid": "p"}, "spec": spec, "status": {"phase": phase}}

    kind = _pods(State(knowledge()))
    watched = read_record(kind.shape, document)
    assert kind.read(watched).usage == read_gpu_usage(pod_object(document), knowledge())


ODD: tuple[Any, ...] = (
    "-1",
    "-0.5",
    "1e",
    "lots",
    "",
    "NaN",
    "1Gi1",
    "--1",
    "1e99999999",
    -3,
    1.5,
    None,
    True,
    [],
    {},
    "9" * 5000,
)
"""Amounts that the API server refuses, and amounts that are not strings."""


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("pq"),
            st.booleans(),
            st.dictionaries(st.sampled_from(["cpu", "memory", "pods", "a.b/c"]), st.sampled_from([*ODD, "1", "2Gi"])),
        ),
        max_size=12,
    )
)
def test_odd_amounts_in_a_pod_are_bad_input_and_leave_the_sums_as_they_were(
    events: list[tuple[str, bool, dict[str, Any]]],
) -> None:
    """F83: amounts that the API server should have refused are unknown, in any order of events."""
    bookings = NodeRequests()
    alive: dict[str, PodRequests | None] = {}
    for uid, bound, requests in events:
        spec = {"nodeName": "n" if bound else "", "containers": [{"resources": {"requests": requests}}]}
        try:
            alive[uid] = read_bound_requests(pod_object({"spec": spec}))
        except QuantityError:
            alive[uid] = None  # as the watch does: counted, and removed
        bookings.put(uid, alive[uid])

    expected: Counter[str] = Counter()
    for booking in filter(None, alive.values()):
        expected.update({**dict(booking.amounts), "pods": 1})
    used = bookings.used.get("n", {})
    assert {name: amount for name, amount in used.items() if amount} == dict(expected)


def test_pod_that_requests_pods_does_not_end_the_watch() -> None:
    """F83: `pods: -1` once made the sum 0 of a node that had none yet, and the node's sum was then removed."""
    spec = {"nodeName": "n", "containers": [{"resources": {"requests": {"pods": "-1"}}}]}

    with pytest.raises(QuantityError, match="pods"):
        read_bound_requests(pod_object({"spec": spec}))


@pytest.mark.parametrize("resource", ["cpu", "pods", "memory"])
def test_watch_goes_on_after_a_pod_with_an_amount_that_no_pod_can_request(resource: str, tmp_path: Path) -> None:
    """F83, fault 8: in list and watch the pod is counted as unreadable and left out; the others are followed."""

    async def run() -> None:
        api = FakeApi()
        async with served({"/api/v1/pods": api}) as server:
            state = State(knowledge())
            _, pods = reflectors(server, state, tmp_path)
            api.put(bound("listed", {resource: "-1"}))
            task = asyncio.create_task(pods.run())
            await until("it watches", lambda: bool(api.watched))
            api.put(bound("watched", {resource: "-1"}))
            api.put(bound("good", {"cpu": "2"}))
            await until("the good pod is in", lambda: "n" in state.node_requests.used)

            assert dict(state.node_requests.used["n"]) == {"cpu": 2000, "pods": 1}
            assert {key.rpartition("/")[2] for key in pods.unreadable} == {"listed", "watched"}
            assert not task.done()
            task.cancel()

    asyncio.run(run())


def bound(name: str, requests: dict[str, str]) -> dict[str, Any]:
    """Write a running pod on node n."""
    made = pod({"name": "main", "resources": {"requests": requests}}, nodeName="n")
    made["metadata"] |= {"name": name, "uid": name}
    return {**made, "status": {"phase": "Running"}}


def test_nothing_is_kept_of_pods_that_are_gone() -> None:
    bookings = NodeRequests()
    for number in range(3):
        bookings.put(str(number), PodRequests(f"n{number}", (("cpu", number),)))
        bookings.put(str(number), None)

    assert bookings.used == {}
    assert bookings._pods == {}


def test_garbage_collector_does_not_visit_what_is_kept_of_pods() -> None:
    """It would hold the event loop for a second in a cluster of 500,000 pods."""
    read = read_bound_requests(pod_object(bound("p", {"cpu": "1", "memory": "1Gi"})))
    usage = read_gpu_usage(pod_object(bound("q", {"nvidia.com/gpu": "1"})), knowledge())

    assert read is not None
    assert usage is not None
    gc.collect()
    gc.collect()  # a tuple of tuples follows its members
    assert not any(map(gc.is_tracked, (read, read.amounts, usage, usage.units)))


def test_pods_of_one_template_share_what_they_request() -> None:
    one, other = (read_bound_requests(pod_object(bound(name, {"cpu": "1", "memory": "1Gi"}))) for name in "pq")

    assert one is not None
    assert other is not None
    assert one.amounts is other.amounts
