# SPDX-License-Identifier: Apache-2.0
"""Events on pending pods and on their workloads, with the rights of deploy/, as `kubectl describe` shows them."""

from collections.abc import Iterator

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, kubelets, node_object
from tests.controlplane.kubectl import Object
from tests.e2e.stage import (
    Service,
    create_namespace,
    create_pod,
    eventually,
    gpu_pod,
    grant_events,
    install_webhooks,
    serving,
    start_scheduler,
    wait_for_node,
    wait_for_refusal,
)

TEAM, OTHERS = "team", "others"
EVENT_SECONDS = 120
"""Ten that a pod has to wait, two turns, and the explanation; three times that, for a busy machine."""
GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """The service that writes Events, on three nodes: one that is full, one with an old driver, one without GPUs."""
    add_nodes(
        plane.api,
        [
            node_object("h100", offers={GPU: 2}),
            node_object("t4", "Tesla-T4", "470.82.01", {GPU: 4}),
            node_object("cpu", None, None, {}),
        ],
    )
    grant_events(plane)
    with pytest.MonkeyPatch.context() as patch, kubelets(plane.api):
        patch.setenv("GPU_USHER_EVENTS", "true")
        with serving(plane) as running:
            install_webhooks(plane, running)
            start_scheduler(plane, running)
            create_namespace(plane, TEAM)
            create_namespace(plane, OTHERS)
            holder = gpu_pod("holder", OTHERS, {GPU: 2}, annotations={"products": "H100"})
            create_pod(plane, holder)
            wait_for_node(plane, holder)
            yield running


def ours(plane: ControlPlane, name: str, namespace: str = TEAM) -> list[Object]:
    """List our Events on an object."""
    events = plane.api.items(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    return [
        event for event in events if event["regarding"]["name"] == name and event["reportingController"] == "gpu-usher"
    ]


def only_event(plane: ControlPlane, name: str) -> Object:
    eventually(f"{name} has an Event", lambda: ours(plane, name), EVENT_SECONDS)
    (event,) = ours(plane, name)
    return event


def test_describe_shows_the_cause_that_the_scheduler_does_not_name(plane: ControlPlane, service: Service) -> None:
    """F139, AUD-03: in the words of explain; a holder in another namespace is not named."""
    pod = gpu_pod("waits", TEAM, annotations={"products": "H100"})
    create_pod(plane, pod)
    wait_for_refusal(plane, pod)
    event = only_event(plane, "waits")
    described = plane.kubectl("describe", "pod", "waits", "-n", TEAM).out
    print(described[described.index("Events:") :])

    primary = service.explain({"namespace": TEAM, "name": "waits"})["primary"]
    assert event["reason"] == primary["reason"] == "InsufficientGPUs"
    assert primary["message"] in event["note"]
    assert event["note"] in described
    assert "holder" not in event["note"]


def test_new_cause_is_a_new_event_and_the_same_cause_is_none(plane: ControlPlane, service: Service) -> None:
    """F139: once the pod's node is cordoned, that is the cause; other pods that come and go change nothing.

    The other node with GPUs would need the end of a pod of another namespace, which is the last change.
    """
    pod = gpu_pod("needs-cuda", TEAM, nodeSelector={"kubernetes.io/hostname": "t4"}, annotations={"cuda": "12.4"})
    create_pod(plane, pod)
    assert only_event(plane, "needs-cuda")["reason"] == "DriverTooOld"

    cordon = plane.kubectl("cordon", "t4")
    assert cordon.code == 0, cordon.err
    # While somebody looks at the page, causes are computed again after 15 s instead of a minute.
    eventually("the new cause is told", lambda: service.page("/pending") and len(ours(plane, "needs-cuda")) == 2)
    plane.kubectl("uncordon", "t4")

    assert {event["reason"] for event in ours(plane, "needs-cuda")} == {"DriverTooOld", "NodeUnschedulable"}
    assert len(ours(plane, "waits")) == 1
    assert service.metric("gpu_usher_events_total", result="refused") == 0


def test_next_replica_takes_over_and_finds_the_events_that_stand(plane: ControlPlane, service: Service) -> None:
    """F139: no Event is doubled; the series of one that goes on is continued."""
    before = {event["metadata"]["name"] for event in ours(plane, "waits")}

    service.process.stop()
    service.restart()

    eventually(
        "the Event goes on", lambda: (ours(plane, "waits")[0].get("series") or {}).get("count") == 2, EVENT_SECONDS
    )
    assert {event["metadata"]["name"] for event in ours(plane, "waits")} == before
