# SPDX-License-Identifier: Apache-2.0
"""When the API server calls us, how often, and what becomes of pods when it cannot."""

import base64
import json
import ssl
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from app.admission.match_conditions import MIRROR
from app.telemetry.clock import now
from app.tls.serving_certificates import issue_if_needed
from tests.builders import container
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object, Said
from tests.e2e.stage import (
    Service,
    counted,
    create_pod,
    decision,
    eventually,
    install_webhooks,
    namespace,
    plain_pod,
    read_pod,
    remove_webhooks,
    serving,
    tolerated,
)

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
IMPLICIT = "deviceclass.resource.kubernetes.io/"
ONE_EACH, NONE = [1, 1], [0, 0]


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """The service as it is shipped, on a cluster that has no GPU node yet."""
    plane.api.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia-cdi"}, "handler": "cdi"})
    with serving(plane) as running:
        install_webhooks(plane, running)
        yield running


@pytest.fixture
def where(plane: ControlPlane, service: Service, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own; the service is at work."""
    assert service.process.running
    return namespace(plane, f"rules-{zlib.crc32(request.node.name.encode()):08x}")


@pytest.fixture
def mended(plane: ControlPlane, service: Service) -> Iterator[None]:
    """Leave the service running and the webhooks as shipped, whatever the test does to them."""
    yield
    if not service.process.running:
        service.restart()
    remove_webhooks(plane)
    eventually("the API server has forgotten them", lambda: calls_of_a_gpu_pod(plane, service) == NONE)
    install_webhooks(plane, service)


def calls_of_a_gpu_pod(plane: ControlPlane, service: Service) -> list[float]:
    """Count the calls that a GPU pod costs, by a dry run."""
    with counted(service) as calls:
        plane.api.try_create("/api/v1/namespaces/default/pods?dryRun=All", plain_pod("default"))
    return calls


def make(plane: ControlPlane, where: str, pod: Object) -> int:
    """Create a pod, as kubectl without its own checks would; gives the HTTP status."""
    metadata = {"name": "p", **(pod.get("metadata") or {})}
    return plane.api.try_create(f"/api/v1/namespaces/{where}/pods", {**pod, "metadata": metadata}).status_code


def bare(annotations: Object | None = None, **spec: Any) -> Object:
    """Write the least that is a pod, and these fields of its spec."""
    filled = {"automountServiceAccountToken": False, "containers": [{"name": "main", "image": "x:1"}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "spec": filled, "metadata": {"annotations": annotations}}


def one(**fields: Any) -> Object:
    """Write a pod of one container with these fields."""
    return bare(containers=[{"name": "main", "image": "x:1", **fields}])


ASKING = container({GPU: 1}, name="asks")
CLAIM = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(one(resources={"limits": {GPU: 1}}), id="GPU in limits"),
        pytest.param(one(resources={"requests": {GPU: 1}}), id="GPU in requests only"),
        pytest.param(one(resources={"limits": {SLICE: 1}}), id="slice"),
        pytest.param(one(resources={"limits": {"amd.com/gpu": 1}}), id="AMD"),
        pytest.param(bare(initContainers=[ASKING]), id="GPU of an init container"),
        pytest.param(one(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]), id="NVIDIA variable"),
        pytest.param(one(resources={"limits": {f"{IMPLICIT}gpu.nvidia.com": 1}}), id="GPU by its DeviceClass"),
        pytest.param(one(resources={"limits": {f"{IMPLICIT}any": 1}}), id="a class that may give GPUs"),
        pytest.param(one(resources={"limits": {"nvidia.com/GH100_H100_PCIE": 1}}), id="GPU of a virtual machine"),
        pytest.param(one(env=[{"name": "CUDA_VERSION", "value": "12.0"}]), id="CUDA version"),
        pytest.param(bare(resourceClaims=[CLAIM]), id="resource claim"),
        pytest.param(bare(runtimeClassName="nvidia-cdi"), id="runtime class of NVIDIA"),
        pytest.param(bare({"gpu-usher.io/products": "H100"}), id="annotation of ours"),
    ],
)
def test_pod_that_concerns_gpus_reaches_us_once(plane: ControlPlane, service: Service, where: str, pod: Object) -> None:
    """F22: each by one thing alone."""
    with counted(service) as calls:
        status = make(plane, where, pod)

    assert (status, calls) == (201, ONE_EACH)


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(bare(), id="no resources, labels, annotations"),
        pytest.param(one(resources={"limits": {"example.com/fpga": 1, "memory": "1Gi"}}), id="other resources"),
        pytest.param(one(resources={"limits": None, "requests": {}}), id="nulls"),
        pytest.param(bare(resources={"limits": {"cpu": 1}}), id="resources of the pod"),
        pytest.param(bare(initContainers=[{"name": "a", "image": "x:1", "env": [{"name": "A"}]}]), id="other variable"),
        pytest.param(bare({"example.com/gpu-usher.io": "x"}), id="annotation of others"),
        pytest.param(bare({MIRROR: "x"}, nodeName="n", containers=[ASKING]), id="mirror of a static pod"),
    ],
)
def test_pod_that_concerns_none_costs_no_call(plane: ControlPlane, service: Service, where: str, pod: Object) -> None:
    """F22: and no condition fails on what is not there, which `Fail` would turn into a refusal."""
    with counted(service) as calls:
        status = make(plane, where, pod)

    assert (status, calls) == (201, NONE)


@pytest.mark.parametrize(
    ("label", "value", "expected"),
    [("ignore", "true", NONE), ("infrastructure", "true", NONE), ("ignore", "false", ONE_EACH)],
    ids=["ignored", "infrastructure", "not ignored"],
)
def test_namespace_is_exempt_by_its_label_and_never_the_pod_by_its_own(
    plane: ControlPlane, service: Service, where: str, label: str, value: str, expected: list[float]
) -> None:
    """F21: the pod wears the label in every case."""
    labelled = namespace(plane, f"{where}-labelled", **{f"gpu-usher.io/{label}": value})
    pod = plain_pod(labelled, labels={f"gpu-usher.io/{label}": "true"})

    with counted(service) as calls:
        created = create_pod(plane, pod)

    assert (calls, bool(tolerated(created)), bool(decision(created))) == (expected, any(expected), any(expected))


def test_pod_that_is_there_is_none_of_our_business(plane: ControlPlane, service: Service, where: str) -> None:
    """F22: a change, a status, a deletion of it cost no call, and cannot fail by us."""
    create_pod(plane, plain_pod(where))
    path = f"/api/v1/namespaces/{where}/pods/p"

    with counted(service) as calls:
        plane.api.patch(path, {"metadata": {"labels": {"changed": "yes"}, "annotations": {"gpu-usher.io/x": "1"}}})
        plane.api.patch(f"{path}/status", {"status": {"phase": "Running"}})
        plane.api.delete(path)

    assert calls == NONE


class Second(BaseHTTPRequestHandler):
    """Another team's mutating webhook: it adds an init container that asks for a GPU, in requests only."""

    def do_POST(self) -> None:
        """Answer a review; http.server wants this name."""
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        added = [{"op": "add", "path": "/spec/initContainers", "value": [container(None, {GPU: 1}, name="added")]}]
        patch = base64.b64encode(json.dumps(added).encode()).decode()
        response = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({**review, "response": response}).encode())


def bundle(folder: Path) -> str:
    """Write the CA of a folder as a caBundle."""
    return base64.b64encode((folder / "ca.crt").read_bytes()).decode()


@contextmanager
def second_webhook(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """Install the other webhook, after ours by name, for pods labelled `second=yes`."""
    pair = issue_if_needed(folder, now())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Second)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    webhook = {
        "name": "second.example.com",
        "clientConfig": {"url": f"https://127.0.0.1:{server.server_port}/", "caBundle": bundle(folder)},
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


Twice = tuple[Said, Object, list[float]]


@pytest.fixture(scope="module")
def twice(plane: ControlPlane, service: Service, tmp_path_factory: pytest.TempPathFactory) -> Twice:
    """A requests-only pod that the other webhook changed after us: what kubectl said, the pod, the calls."""
    where = namespace(plane, "twice")
    pod = plain_pod(where, requests={GPU: 1}, labels={"second": "yes"})
    with second_webhook(plane, tmp_path_factory.mktemp("second")):
        eventually("it is called", lambda: "added" in plane.kubectl.create(pod, dry_run=True).out)
        with counted(service) as calls:
            said = plane.kubectl.create(pod)
    return said, read_pod(plane, pod), calls


def test_what_another_webhook_adds_after_us_is_repaired_and_nothing_grows(twice: Twice) -> None:
    """F23, F16, fault 19, reinvocation: the API server asks again, and the second answer is about what is new."""
    said, pod, calls = twice
    limits = [each["resources"]["limits"] for each in (*pod["spec"]["initContainers"], *pod["spec"]["containers"])]

    assert said.out == "pod/p created\n"
    assert calls == [2, 1]
    assert limits == [{GPU: "1"}, {GPU: "1"}]
    assert tolerated(pod) == [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]


def test_record_of_two_passes_holds_both_and_accuses_nobody(twice: Twice) -> None:
    """F25, F15, reinvocation: no user wrote the annotation that the second pass found."""
    said, pod, _ = twice
    done = "nvidia.com/gpu limits set to 1 as in requests"

    assert not [warning for warning in said.warnings if "gpu-usher.io/decision" in warning]
    assert {f"main: {done}", f"added: {done}"} <= set(decision(pod)["actions"])


DOWN = 'Error from server (InternalError): error when creating "STDIN": Internal error occurred: failed calling webhook'
VALIDATE = f'{DOWN} "validate.gpu-usher.io": failed to call webhook: Post "{{}}/validate?timeout=3s": '


@pytest.mark.usefixtures("mended")
def test_while_we_are_away_gpu_pods_wait_and_cpu_pods_pass(plane: ControlPlane, service: Service, where: str) -> None:
    """P43, F106, F22: mutate fails open, validate closed; once we are back, pods are repaired again."""
    service.process.stop()

    asking, other = plane.kubectl.create(plain_pod(where)), plane.kubectl.create(plain_pod(where, {"cpu": 1}, "cpu"))
    service.restart()
    back = create_pod(plane, plain_pod(where))

    assert asking.err.startswith(VALIDATE.format(service.url))
    assert asking.err.endswith("connect: connection refused\n")
    assert other == Said(0, "pod/cpu created\n", "")
    assert tolerated(back)


@pytest.mark.usefixtures("mended")
def test_under_ignore_pods_are_created_unrepaired_while_we_are_away(
    plane: ControlPlane, service: Service, where: str
) -> None:
    """F106: what the API server itself would refuse it refuses, in its own words."""
    install_webhooks(plane, service, failurePolicy="Ignore")
    service.process.stop()

    eventually("the change of policy has arrived", lambda: make(plane, where, plain_pod(where)) == 201)
    asking = plane.kubectl.create(plain_pod(where, name="q", requests={GPU: 1}))

    unrepaired = read_pod(plane, plain_pod(where))
    assert (tolerated(unrepaired), decision(unrepaired)) == ([], {})
    assert "limits: Required value: Limit must be set for non overcommitable resources\n" in asking.err


@pytest.mark.usefixtures("mended")
def test_wrong_ca_in_the_configuration_is_named_in_the_refusal(
    plane: ControlPlane, service: Service, where: str, tmp_path: Path
) -> None:
    """F99, F106: a person sees x509 and the webhook's name, not a pod that never starts."""
    issue_if_needed(tmp_path, now())
    change = json.dumps([{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle(tmp_path)}])
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        assert plane.kubectl("patch", kind, "gpu-usher", "--type=json", "-p", change).code == 0

    eventually("the change has arrived", lambda: calls_of_a_gpu_pod(plane, service) == NONE)
    answer = plane.kubectl.create(plain_pod(where))

    assert answer.err.startswith(VALIDATE.format(service.url) + "tls: failed to verify certificate: x509: ")
