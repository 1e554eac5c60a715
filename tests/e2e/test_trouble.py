# SPDX-License-Identifier: Apache-2.0
"""Failures around the service: a cold start, an API server that comes late, a network that breaks."""

import base64
import os
import signal
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.builders import review
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object
from tests.controlplane.relay import Relay
from tests.e2e.stage import (
    DEPLOY,
    OURS,
    Service,
    create_namespace,
    create_pod,
    eventually,
    gpu_pod,
    grant,
    install_webhooks,
    plain_pod,
    read_pod,
    serving,
    start_scheduler,
    wait_for_node,
    wait_for_refusal,
)

EMERGENCIES = {
    "components/monitoring/rules.yaml": "kubectl delete validatingwebhookconfiguration gpu-usher",
    "README.md": "kubectl delete mutatingwebhookconfigurations,validatingwebhookconfigurations"
    " -l app.kubernetes.io/name=gpu-usher",
}
"""File of deploy/ → the command that it gives."""
OPERAND = "gpu-operator"


@contextmanager
def webhooks(plane: ControlPlane, service: Service, **changes: Any) -> Iterator[None]:
    """Install the webhooks of deploy/ for as long as the block lasts."""
    install_webhooks(plane, service, **changes)
    try:
        yield
    finally:
        for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
            assert plane.kubectl("delete", kind, "gpu-usher", "--ignore-not-found").code == 0


def call_verb(service: Service, path: str, body: Object) -> Object:
    """Call a verb as the API server or the scheduler does."""
    context = ssl.create_default_context(cafile=str(service.ca))
    url = f"https://127.0.0.1:{service.port}{path}"
    answer: Object = httpx.post(url, json=body, verify=context, trust_env=False).json()
    return answer


@contextmanager
def without_api_server(plane: ControlPlane) -> Iterator[None]:
    """Stop the API server for as long as the block lasts."""
    plane.stop("kube-apiserver")
    try:
        yield
    finally:
        plane.start_apiserver()


@pytest.mark.parametrize("role", ["all", pytest.param("admission", marks=pytest.mark.long)])
def test_started_before_the_api_server_we_serve_admission_and_wait_for_the_rest(plane: ControlPlane, role: str) -> None:
    """Fault 1: the log has one line per kind, however often it is tried; the view comes with the API server.

    See docs/reference/listeners.md#probes.
    """
    grant(plane)
    add_nodes(plane.api, [node_object(f"late-{role}")])
    with ExitStack() as stack:
        with without_api_server(plane):
            service = Service(plane, f"early-{role}", role=role)
            stack.callback(service.process.stop)
            eventually("it serves", lambda: service.ready() in (True, False))
            ready = service.ready()
            pod = plain_pod("default", requests={"nvidia.com/gpu": 1})
            response = call_verb(service, "/mutate", review(pod))["response"]
            question = {"Pod": pod, "NodeNames": [f"late-{role}"]}
            error = call_verb(service, "/scheduler/filter", question).get("Error") if role == "all" else ""
            log = service.process.log.read_text("utf-8")
        eventually("it sees the node", lambda: service.metric("gpu_usher_cache_objects", kind="nodes") >= 1)
        eventually("it is ready", service.ready)

    assert ready is (role == "admission")
    assert (response["allowed"], "patch" in response) == (True, True)
    assert error == ("gpu-usher: not synced yet" if role == "all" else "")
    assert log.count("watch of nodes lost") <= 1


@pytest.mark.long
def test_extender_that_does_not_answer_holds_its_pod_and_nobody_elses(plane: ControlPlane) -> None:
    """P49, fault 53: the process is stopped with its ports open; the scheduler reports its own time-out."""
    namespace = create_namespace(plane, "slow", **{"gpu_usher.io__ignore": "true"})
    add_nodes(plane.api, [node_object("slow-0")])
    with serving(plane, "slow") as service:
        start_scheduler(plane, service)
        first = gpu_pod("first", namespace)
        create_pod(plane, first)
        wait_for_node(plane, first)
        os.kill(service.process.pid, signal.SIGSTOP)
        try:
            pod, other = (
                create_pod(plane, gpu_pod("gpu", namespace)),
                create_pod(plane, gpu_pod("cpu", namespace, {"cpu": 1})),
            )
            reason = wait_for_refusal(plane, pod)
            wait_for_node(plane, other)
            waits = not read_pod(plane, pod)["spec"].get("nodeName")
        finally:
            os.kill(service.process.pid, signal.SIGCONT)
        placed = wait_for_node(plane, pod)
        plane.stop(OURS)

    assert "deadline exceeded" in reason or "Timeout" in reason, reason
    assert (waits, bool(placed)) == (True, True)


def signing_request() -> str:
    """Write the CertificateSigningRequest of a kubelet that registers."""
    key = ec.generate_private_key(ec.SECP256R1())
    names = [(NameOID.ORGANIZATION_NAME, "system:nodes"), (NameOID.COMMON_NAME, "system:node:cold")]
    subject = x509.Name([x509.NameAttribute(oid, value) for oid, value in names])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode()


def operand() -> Object:
    """Write a DaemonSet as NVIDIA's operator does, whose pods are given all devices."""
    container = {"name": "main", "image": "x:1", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    labels = {"app": "device-plugin"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return {"metadata": {"name": "device-plugin"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}


@pytest.mark.long
def test_cluster_that_starts_without_us_gets_its_nodes_and_system_pods(plane: ControlPlane) -> None:
    """P43, fault 58, ADM-11: nothing that we need ourselves waits for our webhook; tenants' GPU pods do."""
    namespace = create_namespace(plane, "cold")
    create_namespace(plane, OPERAND)
    with serving(plane, "cold") as service, webhooks(plane, service):
        service.process.stop()
        add_nodes(plane.api, [node_object("cold")])
        lease = {"metadata": {"name": "cold"}, "spec": {"holderIdentity": "cold", "leaseDurationSeconds": 40}}
        plane.api.create("/apis/coordination.k8s.io/v1/namespaces/default/leases", lease)
        signer = "kubernetes.io/kube-apiserver-client-kubelet"
        usages = ["digital signature", "client auth"]
        spec = {"request": signing_request(), "signerName": signer, "usages": usages}
        plane.api.create(
            "/apis/certificates.k8s.io/v1/certificatesigningrequests", {"metadata": {"name": "cold"}} | {"spec": spec}
        )
        plane.api.create(f"/apis/apps/v1/namespaces/{OPERAND}/daemonsets", operand())
        eventually("the device plugin is there", lambda: plane.api.items(f"/api/v1/namespaces/{OPERAND}/pods"))
        system = plane.api.try_create("/api/v1/namespaces/kube-system/pods", plain_pod("kube-system"))
        other = plane.api.try_create(f"/api/v1/namespaces/{namespace}/pods", plain_pod(namespace, {"cpu": 1}, "cpu"))
        tenant = plane.api.try_create(f"/api/v1/namespaces/{namespace}/pods", plain_pod(namespace))
        service.restart()
        back = plane.api.try_create(f"/api/v1/namespaces/{namespace}/pods", plain_pod(namespace))

    assert (system.status_code, other.status_code) == (201, 201)
    assert "failed calling webhook" in tenant.json()["message"]
    assert back.status_code == 201


@pytest.mark.parametrize(
    "file", ["README.md", pytest.param("components/monitoring/rules.yaml", marks=pytest.mark.long)]
)
def test_configurations_left_behind_hold_gpu_pods_until_one_command(plane: ControlPlane, file: str) -> None:
    """Fault 59: the service was deleted first; the command is the one that the documents give."""
    namespace = create_namespace(plane, f"left-behind-{len(file)}")
    ignored = create_namespace(plane, f"left-alone-{len(file)}", **{"gpu_usher.io__ignore": "true"})
    assert EMERGENCIES[file] in (DEPLOY / file).read_text("utf-8")
    with serving(plane, "leaving") as service, webhooks(plane, service):
        service.process.stop()
        held = plane.api.try_create(f"/api/v1/namespaces/{namespace}/pods", plain_pod(namespace))
        other = plane.api.try_create(f"/api/v1/namespaces/{namespace}/pods", plain_pod(namespace, {"cpu": 1}, "cpu"))
        excluded = plane.api.try_create(f"/api/v1/namespaces/{ignored}/pods", plain_pod(ignored))

        assert plane.kubectl(*EMERGENCIES[file].split()[1:]).code == 0

        path = f"/api/v1/namespaces/{namespace}/pods"
        eventually("GPU pods pass", lambda: plane.api.try_create(path, plain_pod(namespace)).status_code == 201)

    assert "failed calling webhook" in held.json()["message"]
    assert (other.status_code, excluded.status_code) == (201, 201)


def test_network_that_breaks_between_api_server_and_us_is_got_over_at_the_first_call(plane: ControlPlane) -> None:
    """Fault 63: kept connections are reset, so that none of them has to time out."""
    namespace = create_namespace(plane, "network")
    path = f"/api/v1/namespaces/{namespace}/pods"
    with serving(plane, "behind") as service:
        relay = Relay(service.port)
        service.url = f"https://127.0.0.1:{relay.port}"
        try:
            with webhooks(plane, service):
                before = plane.api.try_create(path, plain_pod(namespace, name="before"))
                relay.cut()
                cut = plane.api.try_create(path, plain_pod(namespace, name="cut"))
                other = plane.api.try_create(path, plain_pod(namespace, {"cpu": 1}, "cpu"))
                relay.mend()
                after = plane.api.try_create(path, plain_pod(namespace, name="after"))
        finally:
            relay.close()

    assert (before.status_code, other.status_code, after.status_code) == (201, 201, 201)
    assert "failed calling webhook" in cut.json()["message"]
