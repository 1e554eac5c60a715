# SPDX-License-Identifier: Apache-2.0
"""The API server calls us again for a pod that another mutating webhook changed after us."""

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.telemetry.logs import now
from app.tls.serving_certificates import issue_if_needed
from tests.builders import container
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import KubectlResult, Object
from tests.e2e.stage import (
    Service,
    counted_calls,
    create_namespace,
    decision,
    eventually,
    install_webhooks,
    plain_pod,
    read_pod,
    serving,
    tolerated,
)

GPU = "nvidia.com/gpu"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """The service as it is shipped, on a cluster that has no GPU node yet."""
    with serving(plane) as running:
        install_webhooks(plane, running)
        yield running


class SecondWebhook(BaseHTTPRequestHandler):
    """Another team's mutating webhook: it adds an init container that requests a GPU, in requests only."""

    def do_POST(self) -> None:
        """Answer a review; http.server prescribes this name."""
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        added = [{"op": "add", "path": "/spec/initContainers", "value": [container(None, {GPU: 1}, name="added")]}]
        patch = base64.b64encode(json.dumps(added).encode()).decode()
        response = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({**review, "response": response}).encode())


@contextmanager
def second_webhook(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """Install the other webhook, which the API server calls after ours, for pods labelled `second=yes`."""
    pair = issue_if_needed(folder, now())
    ca = base64.b64encode((folder / "ca.crt").read_bytes()).decode()
    server = ThreadingHTTPServer(("127.0.0.1", 0), SecondWebhook)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    webhook = {
        "name": "second.example.com",
        "clientConfig": {"url": f"https://127.0.0.1:{server.server_port}/", "caBundle": ca},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "objectSelector": {"matchLabels": {"second": "yes"}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    plane.api.create(CONFIGURATIONS, {"metadata": {"name": "second"}, "webhooks": [webhook]})
    try:
        yield
    finally:
        plane.api.delete(f"{CONFIGURATIONS}/second")
        server.shutdown()
        server.server_close()


Reinvoked = tuple[KubectlResult, Object, list[float]]


@pytest.fixture(scope="module")
def reinvoked(plane: ControlPlane, service: Service, tmp_path_factory: pytest.TempPathFactory) -> Reinvoked:
    """A requests-only pod that the other webhook changed after ours: kubectl's result, the pod, and our calls."""
    namespace = create_namespace(plane, "twice")
    pod = plain_pod(namespace, requests={GPU: 1}, labels={"second": "yes"})
    with second_webhook(plane, tmp_path_factory.mktemp("second")):
        eventually("it is called", lambda: "added" in plane.kubectl.create(pod, dry_run=True).out)
        with counted_calls(service) as calls:
            result = plane.kubectl.create(pod)
    return result, read_pod(plane, pod), calls


def test_what_another_webhook_adds_after_us_is_repaired_and_nothing_grows(reinvoked: Reinvoked) -> None:
    """F23, F16, fault 19, reinvocation: the API server calls again, and the second patch is only about what is new."""
    result, pod, calls = reinvoked
    limits = [
        document["resources"]["limits"] for document in (*pod["spec"]["initContainers"], *pod["spec"]["containers"])
    ]

    assert result.out == "pod/p created\n"
    assert calls == [2, 1]
    assert limits == [{GPU: "1"}, {GPU: "1"}]
    assert tolerated(pod) == [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]


def test_record_of_two_passes_holds_both_and_accuses_nobody(reinvoked: Reinvoked) -> None:
    """F25, F15, reinvocation: the second pass finds an annotation that no user wrote."""
    result, pod, _ = reinvoked
    done = "nvidia.com/gpu limits set to 1 as in requests"

    assert not [warning for warning in result.warnings if "gpu-usher.io/decision" in warning]
    assert {f"main: {done}", f"added: {done}"} <= set(decision(pod)["actions"])
