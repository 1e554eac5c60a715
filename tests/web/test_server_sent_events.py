# SPDX-License-Identifier: Apache-2.0
"""Server-sent events: few listeners, none of which delays others, and all end before the service ends."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.allowed_callers import ABORT
from app.api.decision_line import MOST_DECISIONS, Decision, RecentDecisions
from app.values.reasons import Code
from app.web.live_updates import MOST_LISTENERS, MOST_QUEUED, EventListener, EventListeners, Stream
from app.web.views.decision_rows import DecisionFilter, rows_of, select
from tests.builders import gpus, make_service, pod, review
from tests.running import Running, running

TIMEOUT = httpx.Timeout(20)


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Running]:
    with running(make_service(tmp_path)) as clients:
        yield clients


def events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    """Read a stream by the specification: the name and the data of each event."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_decision_is_sent_to_pages_that_filter_for_it(clients: Running) -> None:
    """F132: this is the live tail."""
    parameters = {"of": "decisions", "reason": "QuantityFractional"}
    with clients.people.stream("GET", "/events", params=parameters, timeout=TIMEOUT) as stream:
        stream_events = events(stream.iter_lines())
        hello = next(stream_events)
        for document in (pod(), pod(gpus("500m"))):
            clients.tls.post("/mutate", json=review(document))
        name, data = next(stream_events)

    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers["x-accel-buffering"] == "no"
    assert hello[0] == "hello"
    assert name == "decisions"
    assert data["html"].count("<tr") == 1
    assert "QuantityFractional" in data["html"]


def test_listeners_are_bounded_and_a_place_comes_free_again(clients: Running) -> None:
    """F132: beyond the bound the answer is 503, which ends a browser's stream; the page tries again."""
    address = str(clients.people.base_url)
    with httpx.Client(
        base_url=address, trust_env=False, timeout=TIMEOUT, limits=httpx.Limits(max_connections=None)
    ) as client:
        streams = [client.send(client.build_request("GET", "/events"), stream=True) for _ in range(MOST_LISTENERS)]
        refused = client.get("/events")
        streams[0].close()
        again = _when_there_is_room(client)

        assert {stream.status_code for stream in streams} == {200}
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert again.status_code == 200
        for stream in (*streams, again):
            stream.close()


def _when_there_is_room(client: httpx.Client) -> httpx.Response:
    """Ask until a place is free, as the service notices a closed connection a moment later."""
    for _ in range(200):
        stream = _stream(client)
        if stream.status_code == 200:
            return stream
        stream.close()
    raise AssertionError("no place came free")


def _stream(client: httpx.Client) -> httpx.Response:
    return client.send(client.build_request("GET", "/events"), stream=True)


def test_streams_end_before_the_service_does(tmp_path: Path) -> None:
    """F132, HA-04: an open page does not delay the stop by the grace of ten seconds."""
    service = make_service(tmp_path)
    ended = []
    with running(service) as clients:
        stream = _stream(clients.people)
        lines = stream.iter_lines()
        next(lines)
        clients.loop.call_soon_threadsafe(lambda: setattr(service, "draining", True))
        ended = list(lines)
        refused = clients.people.get("/events")
        stream.close()

    assert "retry: 2000" not in ended
    assert refused.status_code == 503


class Slow:
    """A client's side of an ASGI connection that takes the head of an answer, and then nothing."""

    def __init__(self) -> None:
        self.aborted = asyncio.Event()
        self.scope = {"type": "http", ABORT: self.aborted.set}

    async def receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()


def test_listener_that_takes_nothing_is_cut_off() -> None:
    """F132: its connection is aborted, since bytes that wait would keep it open."""

    async def listen() -> tuple[bool, int]:
        listeners, slow = EventListeners(send_seconds=0.01), Slow()
        stream = Stream(listeners, EventListener("fleet", 0, DecisionFilter()))
        await asyncio.wait_for(stream(slow.scope, slow.receive, slow.send), 20)
        return slow.aborted.is_set(), len(listeners.showing("fleet"))

    assert asyncio.run(listen()) == (True, 0)


def test_listener_that_lags_behind_is_dropped_and_others_are_not() -> None:
    """F132: the queue of one listener is bounded."""

    async def tell() -> tuple[list[bool], bytes | None]:
        listeners, slow, quick = (
            EventListeners(),
            EventListener("fleet", 0, DecisionFilter()),
            EventListener("fleet", 0, DecisionFilter()),
        )
        with listeners.register(slow), listeners.register(quick):
            for index in range(MOST_QUEUED + 1):
                listeners.send(listeners.showing("fleet"), "tiles", index)
                await quick.queue.get()
            return [listener is quick for listener in listeners.showing("fleet")], slow.queue.get_nowait()

    assert asyncio.run(tell()) == ([True], None)


def test_tail_keeps_the_last_and_counts_all() -> None:
    """F132: it is a bounded ring."""
    tail = RecentDecisions()
    for index in range(MOST_DECISIONS + 7):
        tail.note("filter", Decision("answered", pod=str(index)), 1000)

    remembered = tail.since(0)

    assert (tail.total, len(remembered)) == (MOST_DECISIONS + 7, MOST_DECISIONS)
    assert [decision.number for decision in tail.since(MOST_DECISIONS + 4)] == [
        MOST_DECISIONS + 5,
        MOST_DECISIONS + 6,
        MOST_DECISIONS + 7,
    ]
    assert (remembered[0].number, remembered[0].decision.pod) == (8, "7")
    assert tail.since(tail.total) == []


@pytest.mark.parametrize(
    ("decision_filter", "pods"),
    [
        (DecisionFilter(), ["b", "a"]),
        (DecisionFilter(verb="filter"), ["b"]),
        (DecisionFilter(reason="DriverTooOld"), ["b"]),
        (DecisionFilter(namespace="x"), ["a"]),
        (DecisionFilter(outcome="patched"), ["a"]),
        (DecisionFilter(verb="mutate", reason="DriverTooOld"), []),
    ],
    ids=["all", "verb", "reason", "namespace", "outcome", "none"],
)
def test_rows_are_filtered_and_newest_first(decision_filter: DecisionFilter, pods: list[str]) -> None:
    """F132."""
    tail = RecentDecisions()
    tail.note("mutate", Decision("patched", namespace="x", pod="a"), 1000)
    decision = Decision("answered", namespace="y", pod="b", reasons={Code.DriverTooOld: 3}, asked=5, kept=2)
    tail.note("filter", decision, 2_000_000)

    rows = select(rows_of(tail.since(0)), decision_filter)

    assert [row.pod for row in rows] == pods
    if "b" in pods:
        assert (rows[0].counts, rows[0].milliseconds, rows[0].reasons) == ("2 of 5", "2.00", (("DriverTooOld", 3),))


def test_equal_decisions_about_a_pod_are_one_row() -> None:
    """F132: a scheduler asks about a waiting pod again and again; the figures are those of the newest answer."""
    tail = RecentDecisions()
    for kept in (0, 0, 1, 0):
        outcome = "answered" if kept else "none_fits"
        reasons = {Code.DriverTooOld: 5 + tail.total}
        tail.note("filter", Decision(outcome, namespace="x", pod="eve", reasons=reasons, asked=9, kept=kept), 1000)
    tail.note("mutate", Decision("patched", namespace="x"), 1000)
    tail.note("mutate", Decision("patched", namespace="x"), 1000)

    rows = rows_of(tail.since(0))

    assert [(row.number, row.outcome, row.times) for row in rows] == [
        (6, "patched", 1), (5, "patched", 1), (4, "no node fits", 3), (3, "answered", 1),
    ]  # fmt: skip
    assert rows[2].reasons == (("DriverTooOld", 8),)
    assert len({row.key for row in rows}) == 4
    assert rows[2].key == rows_of(tail.since(0)[:2])[0].key
