# SPDX-License-Identifier: Apache-2.0
"""When the writer of Events makes its requests: at the rate that it may, workloads first, and nobody is forgotten."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from app.api.pending_reasons import ExplainedPod, ReadPod
from app.events.planning import BURST, PENDING_SECONDS, RATE, TURN_SECONDS
from app.events.writer import EventWriter
from app.explain.pending_cause import UNSEEN_SECONDS, PendingCause
from app.kube.pending_pods import PendingPod
from app.kube.pods import ObjectReference
from app.telemetry.metrics import Metrics
from app.values.errors import ApiError
from app.world.state import State
from tests.builders import knowledge

FULL = PendingCause("InsufficientGPUs", "not enough free GPUs", 3, 0, "", 23, "wait for GPUs")
MOST_OF_A_STEP = 3
"""Requests of a step before which only one is waited for: those of an Event that stands."""


def keep_to_the_rate(seconds: list[float], at_once: int) -> bool:
    """Tell whether requests keep to the limit, of which so many are made where one was waited for."""
    most = (BURST + RATE * second + at_once - 1 for second in seconds)
    return all(number <= limit + 1e-6 for number, limit in enumerate(most, 1))


class Clock:
    """Seconds that pass only while somebody rests."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def rest(self, seconds: float) -> None:
        self.now += seconds


class Server:
    """What the writer needs of ApiServer: it keeps the seconds and the targets of requests, and stores the Events."""

    def __init__(self, clock: Clock, owners: Mapping[str, str]) -> None:
        self._clock = clock
        self._owners = owners
        self.requests: list[tuple[float, str, str]] = []
        self.events: dict[str, Mapping[str, Any]] = {}

    def _note(self, verb: str, name: str) -> None:
        self.requests.append((self._clock(), verb, name))

    async def read(self, path: str) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        self._note("get", name)
        metadata: dict[str, Any] = {"namespace": "team", "name": name, "uid": f"uid-{name}"}
        if owner := self._owners.get(name):
            reference = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": owner}
            metadata["ownerReferences"] = [{**reference, "uid": f"uid-{owner}", "controller": True}]
        return {"metadata": metadata}

    async def create(self, _path: str, document: Mapping[str, Any]) -> None:
        self._note("create", document["regarding"]["name"])
        if document["metadata"]["name"] in self.events:
            raise ApiError(409, "exists")
        self.events[document["metadata"]["name"]] = document

    async def patch(self, path: str, change: Mapping[str, Any], _kind: str) -> Mapping[str, Any]:
        self._note("patch", path.rpartition("/")[2])
        return change


class Reasons:
    """What the writer reads of PendingReasons: the pods whose cause is known."""

    def __init__(self, entries: list[ExplainedPod]) -> None:
        self.entries = entries
        self.kept_current = True

    def explained_pods(self) -> Iterator[ExplainedPod]:
        return iter(self.entries)


class Scene:
    """A writer with pods that wait, by the names of their Jobs; `owners` are the JobSets of Jobs."""

    def __init__(self, jobs: Mapping[str, int], owners: Mapping[str, str] | None = None) -> None:
        self.clock = Clock()
        self.server = Server(self.clock, owners or {})
        self.state = State(knowledge())
        self.reasons = Reasons([entry for job, count in jobs.items() for entry in self._pods(job, count)])
        self.metrics = Metrics()
        self.writer = self._new_writer()

    def _new_writer(self) -> EventWriter:
        reasons: Any = self.reasons
        server: Any = self.server
        return EventWriter(server, "gpu-usher", self.state, reasons, self.metrics, self.clock, self.clock.rest)

    def _pods(self, job: str, count: int) -> Iterator[ExplainedPod]:
        controller = ObjectReference("batch/v1", "Job", "team", job, f"uid-{job}")
        for index in range(count):
            name = f"{job}-{index}"
            self.state.pending_pods.put(f"uid-{name}", PendingPod("team", name, ()))
            reference = ObjectReference("v1", "Pod", "team", name, f"uid-{name}")
            yield ExplainedPod(ReadPod("shape", reference, controller), FULL)

    def add(self, job: str) -> None:
        """Let a Job of one pod come last."""
        self.reasons.entries += self._pods(job, 1)

    def take_over(self) -> None:
        """Let another replica write, which knows nothing of what was written."""
        self.writer = self._new_writer()
        self.pass_pending_seconds()

    def pass_pending_seconds(self) -> None:
        """Let the pods be seen, and wait for as long as a pod must before it is told of."""
        asyncio.run(self.writer.turn(self.clock.now))
        self.clock.now += PENDING_SECONDS

    def turns(self, number: int) -> None:
        """Take turns as `run` does, without the Lease."""
        for _ in range(number):
            end = self.clock.now + TURN_SECONDS
            asyncio.run(self.writer.turn(end))
            self.clock.now = max(self.clock.now, end)

    def told(self) -> list[str]:
        """List what was told of, in order."""
        return [name for _, verb, name in self.server.requests if verb == "create"]


def test_requests_keep_to_the_rate_and_use_it() -> None:
    """F139: five a second, ten at once; until the former mend it was two a second."""
    scene = Scene({"a": 500})
    scene.pass_pending_seconds()
    began = scene.clock.now

    scene.turns(20)

    seconds = [second - began for second, _, _ in scene.server.requests]
    assert keep_to_the_rate(seconds, 1)
    assert len(seconds) >= RATE * 20 * TURN_SECONDS * 0.95
    assert scene.metrics.registry.get_sample_value("gpu_usher_events_waiting") == 501 - (len(seconds) - 1)


def test_each_request_of_a_lookup_counts() -> None:
    """F139: a Job, its JobSet and a controller beyond are three of them."""
    jobs = {f"j{index}": 1 for index in range(60)}
    scene = Scene(jobs, {job: f"set-{job}" for job in jobs})
    scene.pass_pending_seconds()
    began = scene.clock.now

    scene.turns(10)

    seconds = [second - began for second, _, _ in scene.server.requests]
    assert keep_to_the_rate(seconds, MOST_OF_A_STEP)
    assert len(seconds) >= RATE * 10 * TURN_SECONDS * 0.95


def test_workloads_are_told_first_the_longest_waiting_before_others() -> None:
    """F139: also a Job that comes while Events on the pods of others are still to be written."""
    scene = Scene({"a": 200, "b": 200, "c": 200})
    scene.pass_pending_seconds()
    scene.turns(2)
    assert scene.told()[:5] == ["a", "b", "c", "a-0", "a-1"]

    scene.add("late")
    scene.turns(4)

    assert scene.told()[scene.told().index("late") + 1].startswith("a-")


def test_many_workloads_do_not_keep_events_from_being_written() -> None:
    """F139: 1,000 Jobs of one pod take minutes to look up, and half of the requests tell of those that are known."""
    scene = Scene({f"j{index}": 1 for index in range(1000)})
    scene.pass_pending_seconds()

    scene.turns(6)

    verbs = Counter(verb for _, verb, _ in scene.server.requests)
    assert verbs["create"] >= 0.4 * (verbs["create"] + verbs["get"])
    assert scene.told()[:3] == ["j0", "j1", "j2"]


def test_everybody_is_told_in_the_end() -> None:
    """F139: each once, and nothing more is written then."""
    scene = Scene({"a": 150, "b": 150})
    scene.pass_pending_seconds()

    scene.turns(20)

    assert Counter(scene.told()) == Counter({*"ab", *(f"{job}-{index}" for job in "ab" for index in range(150))})
    assert scene.metrics.registry.get_sample_value("gpu_usher_events_waiting") == 0


def test_replica_that_takes_over_keeps_to_the_rate_too() -> None:
    """F139: for an Event that stands it makes three requests, to find it, to read its count and to continue it."""
    scene = Scene({"a": 20})
    scene.pass_pending_seconds()
    scene.turns(4)
    scene.server.requests.clear()
    scene.take_over()
    began = scene.clock.now

    scene.turns(20)

    seconds = [second - began for second, _, _ in scene.server.requests]
    assert Counter(verb for _, verb, _ in scene.server.requests) == {"get": 1, "create": 21, "patch": 42}
    assert keep_to_the_rate(seconds, MOST_OF_A_STEP)


@pytest.mark.parametrize("seconds", [0.0, TURN_SECONDS / 2, TURN_SECONDS])
def test_turn_ends_in_time_for_the_lease(seconds: float) -> None:
    """F139: whatever is left to be written."""
    scene = Scene({"a": 100})
    scene.pass_pending_seconds()
    end = scene.clock.now + seconds

    asyncio.run(scene.writer.turn(end))

    assert scene.clock.now <= end


def test_pod_that_its_scheduler_has_not_looked_at_is_told_of_after_two_minutes() -> None:
    """F139: it fits, so that until then there is nothing to tell."""
    scene = Scene({"a": 1})
    (entry,) = scene.reasons.entries
    scene.reasons.entries = [replace(entry, cause=PendingCause("", "fits on 1 node now", 0, 1, ""))]
    scene.state.pending_pods.put("uid-a-0", PendingPod("team", "a-0", (), unseen_by="volcano"))
    scene.pass_pending_seconds()

    scene.turns(1)
    assert scene.told() == []
    scene.clock.now += UNSEEN_SECONDS
    scene.turns(2)
    assert len(scene.told()) == 2  # of the pod and of its Job
