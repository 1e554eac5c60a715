# SPDX-License-Identifier: Apache-2.0
"""The GPU pod that doctor creates by dry run, on a real API server: a webhook that refuses it is the first problem."""

import base64
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.telemetry.logs import now
from app.tls.authority import make_authority
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import free_port
from tests.e2e.stage import Service, counted_calls, create_namespace, eventually, install_webhooks, pods_of, serving
from tests.e2e.test_doctor import doctor, findings_in

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
UNKNOWN = base64.b64encode(make_authority(now()).certificate).decode()


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    with serving(plane) as running:
        install_webhooks(plane, running)
        yield running


def found(plane: ControlPlane, user: str = "admin") -> list[Object]:
    return findings_in(doctor(plane, user=user))


def about_the_pod(findings: list[Object]) -> list[Object]:
    return [finding for finding in findings if "by dry run" in finding["what"]]


@contextmanager
def foreign_webhook(plane: ControlPlane, client: Object) -> Iterator[None]:
    """Another project's webhook, which is called for every pod, and fails closed."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    webhook = {"name": "pods.example.com", "clientConfig": client, "rules": [rule], "timeoutSeconds": 1}
    webhook |= {"sideEffects": "None", "admissionReviewVersions": ["v1"]}
    plane.api.create(CONFIGURATIONS, {"metadata": {"name": "other"}, "webhooks": [webhook]})
    try:
        yield
    finally:
        plane.api.delete(f"{CONFIGURATIONS}/other")


def test_pod_that_our_webhooks_admit_is_no_finding_and_is_not_stored(plane: ControlPlane, service: Service) -> None:
    """F87."""
    with counted_calls(service) as calls:
        findings = found(plane)

    assert about_the_pod(findings) == []
    assert min(calls) >= 1
    assert pods_of(plane, "default") == []


@pytest.mark.parametrize(
    ("case", "words", "why"),
    [
        ("closed", "connection refused", "nothing listens"),
        ("silent", "deadline exceeded", "did not answer in time"),
        ("service", 'service "hook" not found', "the Service that it names does not exist"),
        ("other CA", "unknown authority", "its caBundle holds another CA"),
    ],
)
def test_foreign_webhook_that_cannot_be_called_is_the_first_problem(
    plane: ControlPlane, service: Service, case: str, words: str, why: str
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        missing = create_namespace(plane, "empty") if case == "service" else ""
        clients: dict[str, Object] = {
            "closed": {"url": f"https://127.0.0.1:{free_port()}/"},
            "silent": {"url": f"https://127.0.0.1:{silent.getsockname()[1]}/"},
            "service": {"service": {"name": "hook", "namespace": missing}},
            "other CA": {"url": f"{service.url}/validate", "caBundle": UNKNOWN},
        }
        with foreign_webhook(plane, clients[case]):
            eventually("the API server calls it", lambda: about_the_pod(found(plane)))
            first, *others = found(plane)

    assert (first["check"], first["objects"]) == (
        "GPUPodRefused",
        ["ValidatingWebhookConfiguration other: pods.example.com"],
    )
    assert words in first["what"]
    assert why in first["what"]
    assert about_the_pod(others) == []
    eventually("it is gone", lambda: not about_the_pod(found(plane)))
