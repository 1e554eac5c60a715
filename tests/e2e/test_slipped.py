# SPDX-License-Identifier: Apache-2.0
"""What slips past us on a real API server, and what that API server's own metrics say of us."""

import re
from collections.abc import Iterator

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.e2e.stage import (
    Service,
    create_pod,
    eventually,
    gpu_pod,
    install_webhooks,
    namespace,
    remove_webhooks,
    serving,
)
from tests.telemetry.rulefile import APISERVER

SAMPLE = re.compile(r"^(\w+)\{(.*)\} ", re.MULTILINE)
LABEL = re.compile(r'(\w+)="')
"""Read as text: prometheus_client's parser gives counters of old names another one."""
CONDITIONS = "apiserver_admission_match_condition_evaluation_errors_total"


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    add_nodes(plane.api, [node_object("h100-0"), node_object("t4-0", "Tesla-T4", "535.104.05", {"nvidia.com/gpu": 4})])
    with serving(plane) as running:
        yield running


def slipped(service: Service) -> tuple[float, float]:
    kinds = ("unadmitted", "misplaced")
    unadmitted, misplaced = (service.metric("gpu_usher_slipped_pods", kind=kind) for kind in kinds)
    return unadmitted, misplaced


def test_pods_that_run_past_us_are_counted_until_they_go(plane: ControlPlane, service: Service) -> None:
    """P11, F98: one made while no webhook was there, one put by its own word on a node that its need refuses."""
    where = namespace(plane, "slipping")
    create_pod(plane, gpu_pod("before", where, nodeName="h100-0"))
    install_webhooks(plane, service)
    create_pod(plane, gpu_pod("fine", where, nodeName="h100-0"))
    create_pod(plane, gpu_pod("pinned", where, nodeName="t4-0", annotations={"products": "H100"}))

    eventually("both are counted", lambda: slipped(service) == (1, 1))
    for name in ("before", "pinned"):
        plane.api.delete(f"/api/v1/namespaces/{where}/pods/{name}?gracePeriodSeconds=0")

    eventually("none is left", lambda: slipped(service) == (0, 0))
    remove_webhooks(plane)


def test_metrics_that_alerts_ask_of_the_api_server_are_there_with_their_labels(
    plane: ControlPlane, service: Service
) -> None:
    """MET-04: fail-open, rejection, a broken matchCondition, on the real thing."""
    where = namespace(plane, "unreached")
    install_webhooks(plane, service)
    create_pod(plane, gpu_pod("reached", where))
    service.process.stop()
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpu-usher"
    webhooks = plane.api.get(path)["webhooks"]
    broken = {"name": "partial", "expression": "object.metadata.labels['no-such'] == 'x'"}

    eventually("nothing is reached", lambda: seen(plane, where).keys() == APISERVER.keys() - {CONDITIONS})
    plane.api.patch(path, {"webhooks": [{**each, "matchConditions": [broken]} for each in webhooks]})
    eventually("a condition is broken", lambda: seen(plane, where).keys() == APISERVER.keys())

    assert {name: set(labels) for name, labels in APISERVER.items()} == seen(plane, where)


def seen(plane: ControlPlane, where: str) -> dict[str, set[str]]:
    """Try to make a pod; gives the labels of what the API server then has to say of our webhooks, by metric."""
    plane.api.try_create(f"/api/v1/namespaces/{where}/pods", gpu_pod("unreached", where))
    found: dict[str, set[str]] = {}
    for name, labels in SAMPLE.findall(plane.api.client.get("/metrics").text):
        if name in APISERVER and '.gpu-usher.io"' in labels:
            found.setdefault(name, set()).update(LABEL.findall(labels))
    return found
