# SPDX-License-Identifier: Apache-2.0
"""Pods that slip past the webhook on a real API server, and the metrics of that API server about our webhooks."""

import re
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
    install_webhooks,
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


def test_metrics_that_alerts_ask_of_the_api_server_are_there_with_their_labels(
    plane: ControlPlane, service: Service
) -> None:
    """MET-04: fail-open calls, rejections, and a matchCondition that fails, on a real API server."""
    namespace = create_namespace(plane, "unreached")
    install_webhooks(plane, service)
    create_pod(plane, gpu_pod("reached", namespace))
    service.process.stop()
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpu-usher"
    webhooks = plane.api.get(path)["webhooks"]
    broken = {"name": "partial", "expression": "object.metadata.labels['no-such'] == 'x'"}

    eventually(
        "nothing is reached", lambda: webhook_metrics(plane, namespace).keys() == APISERVER.keys() - {CONDITIONS}
    )
    plane.api.patch(path, {"webhooks": [{**webhook, "matchConditions": [broken]} for webhook in webhooks]})
    eventually("a condition is broken", lambda: webhook_metrics(plane, namespace).keys() == APISERVER.keys())

    assert {name: set(labels) for name, labels in APISERVER.items()} == webhook_metrics(plane, namespace)


def webhook_metrics(plane: ControlPlane, namespace: str) -> dict[str, set[str]]:
    """Try to create a pod, and return the labels of the API server's metrics about our webhooks, by metric."""
    plane.api.try_create(f"/api/v1/namespaces/{namespace}/pods", gpu_pod("unreached", namespace))
    metrics: dict[str, set[str]] = {}
    for name, labels in SAMPLE.findall(plane.api.client.get("/metrics").text):
        if name in APISERVER and '.gpu-usher.io"' in labels:
            metrics.setdefault(name, set()).update(LABEL.findall(labels))
    return metrics
