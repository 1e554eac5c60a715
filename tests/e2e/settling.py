# SPDX-License-Identifier: Apache-2.0
"""Many pods at once: created, left alone until nothing moves, and what became of each."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.bench.load import spread
from tests.controlplane.cluster import ControlPlane, Scheduler
from tests.controlplane.kubectl import Api, Object
from tests.e2e.crowd import Drawn
from tests.e2e.stage import eventually, refusal
from tests.e2e.verdicts import Cluster

SETTLED_SECONDS = 240
"""Bound; some 30 s here."""
QUICK = {"podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 2}
"""A refused pod is tried again whenever anything changes; by default it may wait 10 s between."""
WAITING = re.compile(r'^scheduler_pending_pods\{queue="(active|backoff)"\} (\S+)$', re.MULTILINE)
PREEMPTED = re.compile(r"Preempted by pod (\S+) on node (\S+)")


@dataclass
class Run:
    """What a seed brought: the cluster as it is in the end, and whom the scheduler evicted for whom.

    `evicted`: name → (name of the preemptor, node). `denied`: what admission said.
    """

    cluster: Cluster
    drawn: dict[str, Drawn]
    evicted: dict[str, tuple[str, str]] = field(default_factory=dict)
    denied: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)


def create(api: Api, wave: Iterable[Drawn]) -> dict[str, str]:
    """Create pods; gives what admission says of those that it denies, by name."""
    denied: dict[str, str] = {}

    def one(own: Api, pod: Drawn) -> None:
        answer = own.try_create(f"/api/v1/namespaces/{pod.where}/pods", pod.document())
        if not answer.is_success:
            denied[pod.name] = answer.json()["message"]

    spread(api, one, wave)  # type: ignore[arg-type]
    return denied


def every_pod(api: Api) -> list[Object]:
    return api.items("/api/v1/pods")


def settle(plane: ControlPlane, scheduler: Scheduler) -> None:
    """Wait until the scheduler has nothing to try and nobody is going, twice in a row the same."""
    last: list[object] = []

    def settled() -> bool:
        found = every_pod(plane.api)
        waiting = sum(float(count) for _, count in WAITING.findall(scheduler.metrics()))
        state = sorted((each["metadata"]["name"], each["spec"].get("nodeName", ""), refusal(each)) for each in found)
        same, last[:] = last == state, state
        going = any(each["metadata"].get("deletionTimestamp") for each in found)
        return same and not waiting and not going and all(node or text for _, node, text in state)

    eventually("every pod is bound or refused, and nothing moves", settled, SETTLED_SECONDS)


def read_outcome(api: Api, run: Run) -> None:
    """Read what became of every pod, and who was evicted for whom."""
    uids = {}
    for each in every_pod(api):
        pod = run.drawn[each["metadata"]["name"]]
        uids[each["metadata"]["uid"]] = pod.name
        if node := each["spec"].get("nodeName"):
            run.cluster.bound[pod] = node
        else:
            run.cluster.refused[pod] = refusal(each)
    there = {pod.name for pod in (*run.cluster.bound, *run.cluster.refused)}
    run.lost = run.drawn.keys() - there - run.denied.keys()
    for event in api.items("/api/v1/events", fieldSelector="reason=Preempted"):
        name = event["involvedObject"]["name"]
        if (words := PREEMPTED.search(event["message"])) and name in run.lost:
            run.evicted[name] = (uids.get(words[1], words[1]), words[2])
