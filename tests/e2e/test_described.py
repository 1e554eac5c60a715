# SPDX-License-Identifier: Apache-2.0
"""What `kubectl describe pod` says of pods that wait, for each of the causes of waiting_causes.py, without and with
Events of ours. `GPU_USHER_RESULTS=1` writes both to tests/results/described.md.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes
from tests.controlplane.kubectl import Object
from tests.e2e.stage import (
    DEPLOY,
    create_namespace,
    create_pod,
    eventually,
    install_webhooks,
    serving,
    start_scheduler,
    wait_for_node,
    wait_for_refusal,
)
from tests.e2e.waiting_causes import CASES, WaitingCase, fleet, holder

RESULTS = Path(__file__).parents[1] / "results" / "described.md"
TEAM, OTHERS = "team", "others"
TOLD_SECONDS = 240
"""Twenty explanations without long rests, since the page is open, and twenty Events at five a second."""
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
def described(plane: ControlPlane) -> Iterator[Mapping[str, Described]]:
    """Describe all pods, before the service writes Events and after."""
    add_nodes(plane.api, fleet())
    create_namespace(plane, "gpu-usher")
    files = (DEPLOY / "components" / "events" / f"{name}.yaml" for name in ("rbac", "lease", "wake"))
    applied = plane.kubectl("apply", *(word for file in files for word in ("-f", str(file))))
    assert applied.code == 0, applied.err
    with serving(plane) as service, pytest.MonkeyPatch.context() as patch:
        install_webhooks(plane, service)
        start_scheduler(plane, service)
        create_namespace(plane, OTHERS)
        create_namespace(plane, TEAM)
        wait_for_node(plane, create_pod(plane, holder(OTHERS)))
        pods = {case.name: create_pod(plane, case.document(TEAM)) for case in CASES}
        refusals = {name: wait_for_refusal(plane, pod) for name, pod in pods.items()}
        without = {name: describe(plane, name) for name in pods}
        service.process.stop()
        patch.setenv("GPU_USHER_EVENTS", "true")
        service.restart()
        eventually(
            "all are told", lambda: service.page("/pending") and len(our_events(plane)) == len(pods), TOLD_SECONDS
        )
        events = our_events(plane)
        yield {name: Described(refusals[name], events[name], without[name], describe(plane, name)) for name in pods}


def our_events(plane: ControlPlane) -> dict[str, Object]:
    """Return our Events by the name of the pod."""
    events = plane.api.items(f"/apis/events.k8s.io/v1/namespaces/{TEAM}/events")
    return {event["regarding"]["name"]: event for event in events if event.get("reportingController") == "gpu-usher"}


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
