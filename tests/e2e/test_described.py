# SPDX-License-Identifier: Apache-2.0
"""What `kubectl describe pod` says of pods that wait, for each of the causes of waiting_causes.py, without and with
Events of ours. `GPU_USHER_RESULTS=1` writes both to tests/results/described.md.

And Events on the pods of real Jobs, as the job controller and the API server's admission plugins write them.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes
from tests.controlplane.kubectl import Object
from tests.e2e.stage import (
    OURS,
    Service,
    create_namespace,
    create_pod,
    eventually,
    grant_events,
    install_webhooks,
    pods_of,
    serving,
    start_scheduler,
    wait_for_node,
    wait_for_refusal,
)
from tests.e2e.waiting_causes import CASES, WaitingCase, fleet, holder

RESULTS = Path(__file__).parents[1] / "results" / "described.md"
TEAM, OTHERS, JOBS = "team", "others", "jobs"
TOLD_SECONDS = 300
"""63 Events at five a second take twelve seconds."""
PODS_OF_A_JOB = 20
CREATED_SECONDS = 120
CHOSEN = tuple(case for case in CASES if case.name in ("not-here", "too-many", "large-model"))
EVENTS_OF_A_POD = "Events:"
HEAD = """# What kubectl describe pod says

`GPU_USHER_RESULTS=1 pytest tests/e2e/test_described.py` wrote this: pods that wait for different causes on a real API
server and scheduler, on a fleet of {nodes} nodes. For each there is what its author wanted, the Event of kube-scheduler
with our extender, and the Event that gpu-usher writes beside it ([Events](../../docs/reference/events.md)).
"""


@dataclass(frozen=True, slots=True)
class Described:
    """The message of kube-scheduler's Event, our Event, and the output of kubectl without and with it."""

    scheduler: str
    ours: Object
    without: str
    with_ours: str


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """The service with its webhooks and a scheduler, on nodes that each refuse for another cause."""
    add_nodes(plane.api, fleet())
    grant_events(plane)
    with serving(plane) as running:
        install_webhooks(plane, running)
        start_scheduler(plane, running)
        for name in (OTHERS, TEAM, JOBS):
            create_namespace(plane, name)
        yield running


@pytest.fixture(scope="module")
def described(plane: ControlPlane, service: Service) -> Iterator[Mapping[str, Described]]:
    """Describe all pods, before the service writes Events and after; it goes on writing them."""
    with pytest.MonkeyPatch.context() as patch:
        wait_for_node(plane, create_pod(plane, holder(OTHERS)))
        pods = {case.name: create_pod(plane, case.document(TEAM)) for case in CASES}
        refusals = {name: wait_for_refusal(plane, pod) for name, pod in pods.items()}
        without = {name: describe(plane, name) for name in pods}
        service.process.stop()
        patch.setenv("GPU_USHER_EVENTS", "true")
        service.restart()
        eventually(
            "all are told", lambda: service.page("/pending") and len(our_events(plane, TEAM)) == len(pods), TOLD_SECONDS
        )
        events = {event["regarding"]["name"]: event for event in our_events(plane, TEAM)}
        yield {name: Described(refusals[name], events[name], without[name], describe(plane, name)) for name in pods}


def our_events(plane: ControlPlane, namespace: str) -> list[Object]:
    """List our Events of a namespace."""
    events = plane.api.items(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    return [event for event in events if event.get("reportingController") == "gpu-usher"]


def describe(plane: ControlPlane, name: str) -> str:
    """Return the Events of a pod as kubectl describes them."""
    output = plane.kubectl("describe", "pod", name, "-n", TEAM).out
    return output[output.index(EVENTS_OF_A_POD) :]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_event_names_the_cause_that_a_person_would_act_upon(
    described: Mapping[str, Described], case: WaitingCase
) -> None:
    """F139, AUD-03: where kubectl showed only what kube-scheduler's plugins said."""
    seen = described[case.name]
    print(seen.with_ours)

    assert seen.ours["reason"] == case.reason
    assert seen.ours["note"] not in seen.without
    assert f" {case.reason} " in seen.with_ours
    assert seen.ours["note"] in seen.with_ours
    assert seen.scheduler in seen.with_ours


def test_causes_are_told_apart(described: Mapping[str, Described]) -> None:
    """F139: kube-scheduler has one text for several of them."""
    if os.environ.get("GPU_USHER_RESULTS"):
        RESULTS.write_text(page(described), "utf-8")

    assert len({seen.ours["reason"] for seen in described.values()}) >= len(CASES) - 2
    assert len({seen.ours["note"] for seen in described.values()}) == len(CASES)
    assert len({seen.scheduler for seen in described.values()}) < len(CASES)


def page(described: Mapping[str, Described]) -> str:
    """Write the page of both messages."""
    sections = (
        f"## {case.wish[:1].upper()}{case.wish[1:]}\n\n"
        f"`FailedScheduling`, kube-scheduler:\n\n> {described[case.name].scheduler}\n\n"
        f"`{case.reason}`, gpu-usher:\n\n> {described[case.name].ours['note']}\n"
        for case in CASES
    )
    return "\n".join((HEAD.format(nodes=len(list(fleet()))), *sections))


def job(case: WaitingCase) -> Object:
    """Write an Indexed Job, of which each pod gets an index in its labels, its annotations and its hostname."""
    pod = case.document(JOBS)
    template = {
        "metadata": {"annotations": pod["metadata"]["annotations"]},
        "spec": {**pod["spec"], "restartPolicy": "Never"},
    }
    spec = {"parallelism": PODS_OF_A_JOB, "completions": PODS_OF_A_JOB, "completionMode": "Indexed"}
    metadata = {"name": case.name, "namespace": JOBS}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {**spec, "template": template}}


@pytest.mark.usefixtures("described")
def test_every_pod_of_three_jobs_is_told_of(plane: ControlPlane, service: Service) -> None:
    """F139: more pods than Events at once, each with a token volume of its own.

    No scheduler is needed: a pod that nobody places waits as well.
    """
    plane.stop(OURS)
    before = service.metric("gpu_usher_events_total", result="created")
    plane.api.create_all(f"/apis/batch/v1/namespaces/{JOBS}/jobs", map(job, CHOSEN))
    number = PODS_OF_A_JOB * len(CHOSEN)
    eventually("all pods exist", lambda: len(pods_of(plane, JOBS)) == number, CREATED_SECONDS)
    volumes = {volume["name"] for pod in pods_of(plane, JOBS) for volume in pod["spec"]["volumes"]}
    assert len(volumes) == number

    eventually(
        "all are told of",
        lambda: service.metric("gpu_usher_events_total", result="created") - before == number + len(CHOSEN),
        TOLD_SECONDS,
    )

    told = Counter((event["regarding"]["kind"], event["reason"]) for event in our_events(plane, JOBS))
    assert told == {
        (kind, case.reason): count for case in CHOSEN for kind, count in (("Job", 1), ("Pod", PODS_OF_A_JOB))
    }
    assert service.metric("gpu_usher_events_total", result="refused") == 0
