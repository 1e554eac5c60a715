# SPDX-License-Identifier: Apache-2.0
"""Create many pods at once, wait until nothing changes any more, and read what became of each pod."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.bench.load import spread
from tests.controlplane.cluster import ControlPlane, Scheduler
from tests.controlplane.kubectl import Api, Object
from tests.e2e.crowd import DrawnPod
from tests.e2e.stage import eventually, refusal
from tests.e2e.verdicts import Cluster

SETTLED_SECONDS = 240
"""Seconds until nothing changes any more, which takes about 30 s."""
QUICK = {"podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 2}
"""A refused pod is tried again whenever anything changes; by default it may wait 10 s between."""
WAITING = re.compile(r'^scheduler_pending_pods\{queue="(active|backoff)"\} (\S+)$', re.MULTILINE)
PREEMPTED = re.compile(r"Preempted by pod (\S+) on node (\S+)")


@dataclass
class Run:
    """The outcome of one seed: the cluster as it is in the end, and the pods that were preempted.

    `evicted` maps a pod's name to (name of the preemptor, node). `denied` maps a pod's name to admission's message.
    """

    cluster: Cluster
    drawn: dict[str, DrawnPod]
    evicted: dict[str, tuple[str, str]] = field(default_factory=dict)
    denied: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)


def create(api: Api, wave: Iterable[DrawnPod]) -> dict[str, str]:
    """Create pods, and return admission's messages for those that it denies, by pod name."""
    denied: dict[str, str] = {}

    def create_one(own: Api, pod: DrawnPod) -> None:
        answer = own.try_create(f"/api/v1/namespaces/{pod.effective_namespace}/pods", pod.document())
        if not answer.is_success:
            denied[pod.name] = answer.json()["message"]

    spread(api, create_one, wave)  # type: ignore[arg-type]
    return denied


def every_pod(api: Api) -> list[Object]:
    return api.items("/api/v1/pods")


def settle(plane: ControlPlane, scheduler: Scheduler) -> None:
    """Wait until the scheduler has no pod to try, no pod is being deleted, and two reads in a row are equal."""
    last: list[object] = []

    def settled() -> bool:
        if sum(float(count) for _, count in WAITING.findall(scheduler.metrics())):
            return False
        pods = every_pod(plane.api)
        state = sorted((pod["metadata"]["name"], pod["spec"].get("nodeName", ""), refusal(pod)) for pod in pods)
        same, last[:] = last == state, state
        going = any(pod["metadata"].get("deletionTimestamp") for pod in pods)
        return same and not going and all(node or text for _, node, text in state)

    eventually("every pod is bound or refused, and nothing moves", settled, SETTLED_SECONDS)


def read_outcome(api: Api, run: Run) -> None:
    """Read what became of every pod, and which pod was preempted for which."""
    uids = {}
    for document in every_pod(api):
        pod = run.drawn[document["metadata"]["name"]]
        uids[document["metadata"]["uid"]] = pod.name
        if node := document["spec"].get("nodeName"):
            run.cluster.bound[pod] = node
        else:
            run.cluster.refused[pod] = refusal(document)
    existing = {pod.name for pod in (*run.cluster.bound, *run.cluster.refused)}
    run.lost = run.drawn.keys() - existing - run.denied.keys()
    for event in api.items("/api/v1/events", fieldSelector="reason=Preempted"):
        name = event["involvedObject"]["name"]
        if (words := PREEMPTED.search(event["message"])) and name in run.lost:
            run.evicted[name] = (uids.get(words[1], words[1]), words[2])
