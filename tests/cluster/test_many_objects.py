# SPDX-License-Identifier: Apache-2.0
"""The longest step of the event loop in a cluster of many objects: no step may grow with their number."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

from app.cluster.reflector import Clock, Reflector
from app.cluster.slipped_pods import SlippedPods
from app.cluster.watched_kinds import WatchedKind
from app.kube.records import KubeObject
from app.telemetry.metrics import Metrics
from app.values.errors import ApiError
from app.world.state import State
from app.world.world import world_of
from tests.bench.measure import reference
from tests.builders import knowledge, node, shipped

OBJECTS, PAGE = 100_000, 500
MOST_REFERENCES = 5.0
"""Longest step in reference loops: 10 ms where one takes 2 ms. A page takes 2 ms, one pass over all objects 14 ms."""
ROUNDS = 3


def written_pages() -> list[bytes]:
    """Write the pages of a list."""
    pages = []
    for start in range(0, OBJECTS, PAGE):
        names = ",".join(f'{{"metadata":{{"name":"t{n}","uid":"u{n}"}}}}' for n in range(start, start + PAGE))
        more = str(start // PAGE + 1) if start + PAGE < OBJECTS else ""
        pages.append(f'{{"metadata":{{"resourceVersion":"1","continue":"{more}"}},"items":[{names}]}}'.encode())
    return pages


class WrittenLists:
    """Lists of an API server that cost this process nothing, since they were written before; watches end with 410."""

    def __init__(self) -> None:
        self._pages = written_pages()

    async def get(self, _path: str, params: Mapping[str, str], _accept: str = "") -> bytes:
        await asyncio.sleep(0)
        return self._pages[int(params.get("continue", 0))]

    @asynccontextmanager
    async def watch(self, *_: Any) -> AsyncIterator[Any]:
        raise ApiError(410, "too old resource version")
        yield


class Ended(Exception):
    """The reflector has listed often enough."""


def following(read: Callable[[Any], Any] = lambda _: None) -> Reflector:
    """Make a reflector that lists twice, the second time after 410."""
    pauses = iter(range(2))

    async def pause(_: float) -> None:
        if next(pauses):
            raise Ended

    things: WatchedKind[Any] = WatchedKind("things", "/things", KubeObject, read, lambda *_: None, lambda *_: None)
    server: Any = WrittenLists()
    return Reflector(things, server, Metrics(), Clock(sleep=pause))


def longest_step(work: Coroutine[Any, Any, Any]) -> float:
    """Run a coroutine that only yields turns; return the CPU ms of its longest step."""
    longest = 0.0
    with suppress(StopIteration, Ended):
        while True:
            started = time.thread_time_ns()
            try:
                work.send(None)
            finally:
                longest = max(longest, (time.thread_time_ns() - started) / 1e6)
    return longest


def test_no_step_of_lists_and_comparisons_grows_with_the_number_of_objects() -> None:
    """A cluster of 65,000 nodes has 500,000 pods: the first list, that after 410, and a comparison (CACHE-10)."""
    gc.collect()
    gc.freeze()
    listed = compared = float("inf")
    for _ in range(ROUNDS):
        reflector = following()
        listed = min(listed, longest_step(reflector.run()) / reference())
        compared = min(compared, longest_step(reflector.compare()) / reference())

        assert len(reflector.uids) == OBJECTS
    assert compared < MOST_REFERENCES
    assert listed < MOST_REFERENCES


def test_garbage_collector_does_not_visit_again_what_a_first_list_has_brought() -> None:
    """One collection would visit all nodes of a large cluster in one step of 200 ms."""
    kept: list[list[Any]] = []
    reflector = following(lambda _: kept.append([]))
    gc.collect()
    before = len(gc.get_objects())

    longest_step(reflector.run())

    assert len(kept) >= OBJECTS
    assert len(gc.get_objects()) < before + OBJECTS  # of two lists, while the collector knows neither of the first


def test_no_step_of_the_search_for_slipped_pods_grows_with_the_number_of_nodes() -> None:
    """F98: a round looks at every node, and asks the API server about those with GPU pods only."""
    state, server = State(knowledge()), WrittenLists()
    some = node()
    state.nodes = dict.fromkeys(map(str, range(OBJECTS)), some)
    slipped = SlippedPods(cast(Any, server), state, lambda: world_of(state, shipped()), Metrics())

    assert min(longest_step(slipped.check_all_nodes()) / reference() for _ in range(ROUNDS)) < MOST_REFERENCES
