# SPDX-License-Identifier: Apache-2.0
"""The doctor on a real API server: no finding on what deploy/ installs, and one for each thing that is broken."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.cli.verbs import app
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object
from tests.e2e.certificate_stage import MUTATING, VALIDATING, published, start_certificate_controller
from tests.e2e.stage import DEPLOY, create_namespace, eventually, plain_pod
from tests.e2e.test_install import OTHERS, apply

OVERLAY = "webhook-only"
GPU = "nvidia.com/gpu"
TAINTS = [{"key": GPU, "value": "present", "effect": "NoSchedule"}]
RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/gpu-usher/endpointslices"
DAEMONS = "/apis/apps/v1/namespaces/gpu-operator/daemonsets"
READY_SINCE = "2020-01-01T00:00:00Z"
"""Long before now: Deployments count a pod as available some seconds after it became ready."""
TOLERATE = [{"operator": "Exists"}]


def daemon(name: str) -> Object:
    labels = {"app": name}
    spec = {"containers": [{"name": "main", "image": f"{name}:1"}], "tolerations": TOLERATE}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template}}


def make_ready(plane: ControlPlane, namespace: str, ready: bool = True) -> None:
    """Set the Ready condition of a namespace's pods, as a kubelet would."""
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": READY_SINCE}
    for pod in plane.api.items(f"/api/v1/namespaces/{namespace}/pods"):
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/status"
        plane.api.patch(path, {"status": {"phase": "Running", "conditions": [condition]}})


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> ControlPlane:
    """A cluster with one GPU node and NVIDIA's operands, and gpu-usher installed as deploy/README says."""
    add_nodes(plane.api, [node_object("h100-0", taints=TAINTS), node_object("cpu-0", None, None, {})])
    let_examine(plane)
    create_namespace(plane, "gpu-operator")
    for name in ("nvidia-device-plugin", "gpu-feature-discovery"):
        plane.api.create(DAEMONS, daemon(name))
    make_runtime_class(plane)
    assert apply(plane, OVERLAY, "-l", OTHERS).code == 0
    make_endpoint(plane)
    controller = start_certificate_controller(plane, "controller")
    try:
        assert apply(plane, OVERLAY).code == 0
        eventually("every webhook has its CA", lambda: published(plane))
    finally:
        controller.stop()

    def mended() -> bool:
        for namespace in ("gpu-operator", "gpu-usher"):
            make_ready(plane, namespace)
        return failing_checks(plane) == set()

    eventually("the doctor finds nothing", mended)
    return plane


def make_runtime_class(plane: ControlPlane) -> None:
    plane.api.create(RUNTIME_CLASSES, {"metadata": {"name": "nvidia"}, "handler": "nvidia"})


def make_endpoint(plane: ControlPlane) -> None:
    """Create the EndpointSlice of our Service, as its controller would of ready pods with addresses."""
    plane.api.create(
        SLICES,
        {
            "metadata": {"name": "gpu-usher-x", "labels": {"kubernetes.io/service-name": "gpu-usher"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
            "ports": [{"name": "https", "port": 8443, "protocol": "TCP"}],
        },
    )


EXAMINER = {
    "metadata": {"name": "examiner"},
    "rules": [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["serviceaccounts", "groups"], "verbs": ["impersonate"]},
    ],
}
"""The rights of who may read everything, and create nothing: no API server of these tests reaches a Service's pods, so
that each GPU pod by dry run would be refused (test_tried_pod.py has webhooks that answer)."""


def let_examine(plane: ControlPlane) -> None:
    """Give the user `examiner` its rights."""
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "examiner"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "examiner"}
    plane.api.create(f"{rbac}/clusterroles", EXAMINER)
    binding = {"metadata": {"name": "examiner"}, "roleRef": role, "subjects": [subject]}
    plane.api.create(f"{rbac}/clusterrolebindings", binding)


def doctor(plane: ControlPlane, *words: str, user: str = "examiner") -> Result:
    return CliRunner().invoke(app, ["doctor", "--kubeconfig", str(plane.kubeconfig(user)), "-o", "json", *words])


def findings_of(plane: ControlPlane) -> list[Object]:
    """Run the doctor, and return its findings without its answer about the extender."""
    return findings_in(doctor(plane))


def findings_in(done: Result) -> list[Object]:
    """Return the findings of a run of the doctor without its answer about the extender."""
    assert done.exit_code in (0, 1), done.exception
    assert done.output, done.exception
    return [finding for finding in json.loads(done.output) if finding["level"] != "info"]


def failing_checks(plane: ControlPlane) -> set[str]:
    """Run the doctor, and return the names of the checks that found something."""
    return {finding["check"] for finding in findings_of(plane)}


@contextmanager
def patched_object(plane: ControlPlane, path: str, *operations: Object) -> Iterator[None]:
    """Change an object by JSON patch for as long as the block lasts."""
    before = plane.api.get(path)
    plane.api.client.patch(
        path, content=json.dumps(operations), headers={"Content-Type": "application/json-patch+json"}
    ).raise_for_status()
    yield
    before["metadata"]["resourceVersion"] = plane.api.get(path)["metadata"]["resourceVersion"]
    plane.api.client.put(path, json=before).raise_for_status()


def replaced(path: str, value: Any) -> Object:
    return {"op": "add", "path": path, "value": value}


NODE = "/api/v1/nodes/h100-0"
DEPLOYMENT = "/apis/apps/v1/namespaces/gpu-usher/deployments/gpu-usher"
FIRST = "/webhooks/0"


def test_api_of_ours_without_a_server_is_named_with_the_namespaces_that_it_keeps(cluster: ControlPlane) -> None:
    """F87: its Service has no port 8445 in this overlay; the remedy that is printed lets the namespace go."""
    namespace = create_namespace(cluster, "kept")
    file = DEPLOY / "components" / "explain-api" / "apiservice.yaml"
    assert cluster.kubectl("apply", "-f", str(file)).code == 0
    eventually("it is not available", lambda: failing_checks(cluster) == {"APIServiceUnavailable"})
    cluster.api.delete(f"/api/v1/namespaces/{namespace}")

    [finding] = findings_of(cluster)
    assert finding["objects"] == ["APIService v1alpha1.explain.gpu-usher.io"]
    assert finding["level"] == "problem"
    assert "no namespace of the cluster can be deleted" in finding["what"]
    assert cluster.api.client.get(f"/api/v1/namespaces/{namespace}").is_success
    remedy = finding["remedy"].partition("kubectl ")[2]
    assert cluster.kubectl(*remedy.split()).code == 0

    gone = f"/api/v1/namespaces/{namespace}"
    eventually("the namespace is gone", lambda: cluster.api.client.get(gone).is_error)
    eventually("nothing is said", lambda: failing_checks(cluster) == set())


def test_pod_made_while_webhooks_were_away_has_slipped(cluster: ControlPlane) -> None:
    """F98, P11."""
    namespace = create_namespace(cluster, "slipping")
    for path in (MUTATING, VALIDATING):
        cluster.api.delete(path)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    cluster.api.create(pods, plain_pod(namespace, name="early", nodeName="h100-0"))
    gone = failing_checks(cluster)
    controller = start_certificate_controller(cluster, "controller-again")
    try:
        assert apply(cluster, OVERLAY).code == 0
        eventually("every webhook has its CA", lambda: published(cluster))
    finally:
        controller.stop()

    left = findings_of(cluster)

    assert gone == {"WebhookAbsent", "Unadmitted"}
    assert [(finding["check"], finding["objects"]) for finding in left] == [("Unadmitted", [f"Pod {namespace}/early"])]
    cluster.api.delete(f"{pods}/early")
    eventually("nothing is said", lambda: failing_checks(cluster) == set())


def test_what_the_user_may_not_read_is_named_and_the_rest_is_examined(cluster: ControlPlane) -> None:
    """F104: the doctor runs here with the account of the serving replicas."""
    with patched_object(cluster, NODE, {"op": "remove", "path": "/spec/taints"}):
        done = doctor(cluster, user="gpu-usher")

    findings = findings_in(done)
    blind = {name for finding in findings if finding["check"] == "NotLookedAt" for name in finding["objects"]}
    assert done.exit_code == 0
    assert {finding["check"] for finding in findings} == {"NotLookedAt", "UntaintedGPUNodes"}
    assert blind == {
        "APIService",
        "CustomResourceDefinition gpupolicies.gpu-usher.io",
        "DaemonSet",
        "Deployment",
        "EndpointSlice",
        "MutatingWebhookConfiguration",
        "Secret gpu-usher/gpu-usher-tls",
        "Service",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
        "rights of ServiceAccount gpu-usher/gpu-usher",
    }
