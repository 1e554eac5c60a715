# SPDX-License-Identifier: Apache-2.0
"""The events of open pages: each page gets its own, no event without a change, and one event for too many changes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from app.api.decision_line import Decision, RecentDecisions
from app.api.explain_api import Explainer
from app.api.pending_reasons import PendingReasons
from app.cluster.time_slices import JobQueue
from app.kube.pending_pods import read_pending_pod
from app.kube.pod_object import pod_object
from app.server.service import Service
from app.web.fleet_map import FleetMap
from app.web.live_updates import MOST_TILES, TICKS_PER_TOTALS, EventListener, EventListeners, LiveUpdates
from app.web.routes import WebPages, run_for_ever
from app.web.views.decision_rows import DecisionFilter
from tests.bench.fleet import node
from tests.builders import gpus, knowledge, make_service, node_document, pod
from tests.usage.polls import with_demo_usage
from tests.web.test_pending_rows import waiting


class Opened:
    """A service with one open page of the kind `of`."""

    def __init__(self, service: Service, of: str, since: int | None = None) -> None:
        self.service = service
        page, explainer = WebPages(service), Explainer(service)
        self.causes = PendingReasons(service, explainer)
        fleet = FleetMap(service.state)
        self.fleet, self.decisions = fleet, RecentDecisions()
        self.live = LiveUpdates(service, fleet, self.causes, JobQueue("pages"), self.decisions, "start", page.totals)
        at = service.state.changes.generation if since is None else since
        self.listener = EventListener(of, at, DecisionFilter())

    def events_after(self, *changes: Any) -> list[tuple[str, Any]]:
        """Make each change and let the task look once after it; return the events that the page then got."""

        async def play() -> None:
            with self.live.listeners.register(self.listener):
                await self.live.check()
                for change in changes:
                    change()
                    await self.live.check()

        asyncio.run(play())
        events = []
        while not self.listener.queue.empty():
            message = self.listener.queue.get_nowait()
            assert message is not None
            name, data = message.decode().strip().split("\n")
            events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        return events


@pytest.fixture
def own(tmp_path: Path) -> Service:
    return make_service(tmp_path)


def test_list_of_waiting_pods_is_told_that_reasons_are_looked_for(own: Service) -> None:
    """F132: and so that they no longer are, since both are one figure."""
    own.state.pending_pods.put("a", read_pending_pod(pod_object(waiting("a")), knowledge()))
    opened = Opened(own, "pending")
    opened.listener.since = opened.live.pending_generation

    assert ("waiting", {}) in opened.events_after(opened.causes.request)
    assert ("waiting", {}) not in opened.events_after(opened.causes.request)


def test_open_map_gets_the_tiles_that_changed_and_nothing_else(own: Service) -> None:
    """F132: only changed tiles are sent."""
    state = own.state

    events = Opened(own, "fleet").events_after(
        lambda: None,
        lambda: state.put_node(node_document("brand-new")),
        lambda: state.put_node(node_document("brand-new")),
        lambda: state.drop_node("brand-new"),
    )

    tiles = [data["tiles"] for name, data in events if name == "tiles"]
    assert events[0] == ("hello", {"start": "start"})
    assert [list(names) for names in tiles] == [["brand-new"], ["brand-new"]]
    assert tiles[-1]["brand-new"] is None


def test_page_that_was_made_earlier_gets_what_it_missed(own: Service) -> None:
    """F132: the changes between the page and its stream are sent."""
    made_at = own.state.changes.generation
    own.state.put_node(node_document("h200-0", "NVIDIA-H200"))
    opened = Opened(own, "fleet", since=made_at)

    events = opened.events_after()

    assert own.state.changes.generation > made_at
    assert list(next(data for name, data in events if name == "tiles")["tiles"]) == ["h200-0"]


def test_too_many_changes_are_sent_as_one_event(tmp_path: Path) -> None:
    """F132: the page then loads itself again."""
    service = make_service(tmp_path, [node(index) for index in range(MOST_TILES + 1)])

    def all_change() -> None:
        for index in range(MOST_TILES + 1):
            service.state.drop_node(node(index)["metadata"]["name"])

    names = [name for name, _ in Opened(service, "fleet").events_after(all_change)]

    assert names == ["hello", "reload"]


def test_totals_are_sent_at_intervals(own: Service) -> None:
    """F132: they are not sent at each change."""
    changes = [lambda: own.state.put_node(node_document("a"))] + [lambda: None] * TICKS_PER_TOTALS

    events = [name for name, _ in Opened(own, "fleet").events_after(*changes)]

    assert events.count("totals") == 1


def test_open_list_gets_new_pods_and_their_causes(own: Service) -> None:
    """F132."""
    waiting = pod(gpus(99))
    waiting["metadata"] |= {"name": "w", "uid": "w"}
    opened = Opened(own, "pending")

    events = [name for name, _ in opened.events_after(lambda: None, lambda: own.state.put_pod(waiting), lambda: None)]

    assert events == ["hello", "waiting", "waiting"]


def test_pages_get_no_event_once_the_service_ends() -> None:
    """F132, HA-04."""

    async def end() -> tuple[bytes | None, bool]:
        listeners, listener = EventListeners(), EventListener("fleet", 0, DecisionFilter())
        with listeners.register(listener):
            listeners.send(listeners.showing("fleet"), "tiles", {})
            listeners.close()
            return listener.queue.get_nowait(), listeners.closed

    assert asyncio.run(end()) == (None, True)


def test_bug_of_the_page_does_not_end_the_service() -> None:
    """F132: the tasks of the web UI start again, and admission goes on."""
    begun = []

    async def fail() -> None:
        begun.append(1)
        if len(begun) == 3:
            raise asyncio.CancelledError
        raise ValueError("a bug")

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run_for_ever(fail, pause_seconds=0))

    assert len(begun) == 3


def test_page_of_use_is_loaded_again_after_a_poll_and_at_once_where_it_is_behind(own: Service) -> None:
    """F148."""
    with_demo_usage(own)

    assert [name for name, _ in Opened(own, "use", since=0).events_after(lambda: None)] == ["hello", "reload"]
    assert [name for name, _ in Opened(own, "use", since=1).events_after(lambda: None)] == ["hello"]


def test_page_of_pending_pods_that_is_behind_is_told_whoever_else_looks(own: Service) -> None:
    """F132: what changed between the page and its stream, also where another page was told of it."""
    first = Opened(own, "pending", since=0)
    second = EventListener("pending", 0, DecisionFilter())

    async def play() -> None:
        with first.live.listeners.register(first.listener):
            await first.live.check()
            with first.live.listeners.register(second):
                await first.live.check()

    asyncio.run(play())
    told = [second.queue.get_nowait() for _ in range(second.queue.qsize())]

    assert [message.split()[1] for message in told if message] == [b"hello", b"waiting"]


def test_decision_between_the_page_and_its_stream_is_sent(own: Service) -> None:
    """F132: once, and no earlier one; equal ones come as their row, with how many they are."""
    opened = Opened(own, "decisions", since=1)
    for name in ("a", "b", "b"):
        opened.decisions.note("filter", Decision("answered", namespace="n", pod=name), 0)

    events = opened.events_after(lambda: None)

    (decisions,) = [data for name, data in events if name == "decisions"]
    assert decisions["total"] == 3
    assert "n/b" in decisions["html"]
    assert "2 times since" in decisions["html"]
    assert "n/a" not in decisions["html"]
