# SPDX-License-Identifier: Apache-2.0
"""The processes of `production` apart: replicas that only read, and the controller that writes Events."""

from collections.abc import Iterator

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.e2e.stage import (
    Service,
    create_namespace,
    create_pod,
    eventually,
    gpu_pod,
    grant_events,
    install_webhooks,
    serving,
)

TEAM = "team"
GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def processes(plane: ControlPlane) -> Iterator[tuple[Service, Service]]:
    """A webhook replica and the controller, each with the account and the settings of deploy/."""
    add_nodes(plane.api, [node_object("t4", "Tesla-T4", "470.82.01", {GPU: 4})])
    grant_events(plane)
    create_namespace(plane, TEAM)
    with serving(plane, role="admission") as replica, pytest.MonkeyPatch.context() as patch:
        install_webhooks(plane, replica)
        patch.setenv("GPU_USHER_EVENTS", "true")
        with serving(plane, "controller", role="controller") as controller:
            yield replica, controller


def test_controller_writes_the_event_and_the_replica_writes_none(
    plane: ControlPlane, processes: tuple[Service, Service]
) -> None:
    """F104, F139: with the rights of deploy/, which the API server has."""
    replica, controller = processes
    create_pod(plane, gpu_pod("waits", TEAM, {GPU: 1}, annotations={"cuda": "12.4"}))

    def told() -> list[str]:
        events = plane.api.items(f"/apis/events.k8s.io/v1/namespaces/{TEAM}/events")
        return [event["reason"] for event in events if event.get("reportingController") == "gpu-usher"]

    eventually("the pod is told of", told)

    assert told() == ["DriverTooOld"]
    assert controller.metric("gpu_usher_events_total", result="created") == 1
    assert replica.metric("gpu_usher_events_total") == 0
    assert controller.metric("gpu_usher_build_info", role="controller") == 1
