# SPDX-License-Identifier: Apache-2.0
"""What a person sees who creates a GPU pod: the API server accepts every repair, and every denial gives its cause."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.kube.pods import DECISION
from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import KubectlResult, Object
from tests.e2e.stage import (
    Service,
    authored_fields,
    create_pod,
    decision,
    install_webhooks,
    own_policies,
    plain_pod,
    read_pod,
    serving,
    tolerated,
)

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}
ANY_GPU, ANY_SLICE = ({"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in (GPU, SLICE))
FLEET = (
    node_object("h100", taints=[TAINT, {"key": "dedicated", "value": "team", "effect": "NoSchedule"}]),
    node_object("mixed", "NVIDIA-A100-SXM4-80GB", offers={SLICE: 7}, taints=[TAINT]),
)
OVERHEAD = {"podFixed": {"cpu": "250m", "memory": "64Mi"}}
SELECTING = {"nodeSelector": {"nvidia.com/gpu.present": "true"}, "tolerations": [ANY_GPU]}
RUNTIME_CLASSES: tuple[Object, ...] = (
    {"metadata": {"name": "nvidia"}, "handler": "nvidia"},
    {"metadata": {"name": "nvidia-heavy"}, "handler": "nvidia", "overhead": OVERHEAD, "scheduling": SELECTING},
)
HEAVILY = {"test": "heavy"}
ONLY = "priority: 10, match: {{podSelector: {{matchLabels: {{test: {}}}}}}}, {}"
OWN = {
    "hopper-only": ONLY.format("torn", "placement: {products: {allow: [H100]}}"),
    "ampere-only": ONLY.format("torn", "placement: {products: {allow: [A100]}}"),
    "heavy": ONLY.format("heavy", "admission: {runtimeClassName: nvidia-heavy}"),
    "absent": ONLY.format("absent", "admission: {runtimeClassName: nvidia-cdi}"),
}


@pytest.fixture(scope="module")
def service(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service with the shipped policies and some for these tests, on a fleet whose GPU nodes are tainted."""
    texts = {f"own-{name}": policy(name, spec) for name, spec in OWN.items()}
    folder = own_policies(tmp_path_factory.mktemp("own"), texts)
    add_nodes(plane.api, FLEET)
    plane.api.create_all("/apis/node.k8s.io/v1/runtimeclasses", RUNTIME_CLASSES)
    with serving(plane, policies=str(folder)) as running:
        install_webhooks(plane, running)
        yield running


LIMITS = "limits set to 2 as in requests: the API server refuses requests without limits"


@pytest.mark.parametrize(
    ("resource", "amounts", "warning"),
    [
        pytest.param(GPU, {"requests": {GPU: 2}}, LIMITS, id="requests only"),
        pytest.param(SLICE, {"requests": {SLICE: 2}}, LIMITS, id="requests only, slices"),
        pytest.param(
            GPU,
            {"requests": {GPU: 1}, "limits": {GPU: 2}},
            "requests set to 2 as in limits: requests must equal limits",
            id="mismatch",
        ),
    ],
)
def test_amounts_the_api_server_would_refuse_are_repaired_and_the_pod_created(
    plane: ControlPlane, namespace: str, resource: str, amounts: dict[str, Any], warning: str
) -> None:
    """P36, F7: kubernetes#54917, k8s-device-plugin#154. The warning says what was repaired."""
    pod = plain_pod(namespace, **amounts)

    answer = plane.kubectl.create(pod)

    resources = read_pod(plane, pod)["spec"]["containers"][0]["resources"]
    assert KubectlResult(0, "pod/p created\n", f"Warning: main: {resource} {warning}\n") == answer
    assert resources == {"limits": {resource: "2"}, "requests": {resource: "2"}}


DENIED = 'error when creating "STDIN": admission webhook "mutate.gpu-usher.io" denied the request: gpu-usher:'
FRACTION = (
    f"container main asks for a fraction of {GPU}, which Kubernetes gives only as a whole number"
    "; ask for a whole number, a MIG profile, or nvidia.com/gpu.shared"
)
NEGATIVE = f"container main asks for a negative amount of {GPU}; ask for zero or more"
ANNOTATION = (
    "gpu-usher.io/cuda does not parse: version: got 'new', wants digits with dots such as 12.4"
    "; correct the annotation, or remove it"
)
TOO_MANY = (
    "asks for 2 GPUs; at most 1 per pod is allowed (policy notebook); ask for fewer GPUs, or have the policy's"
    " maxGPUsPerPod raised"
)
WIDEN = "widen gpu-usher.io/products or one of the policies named"
TORN = f"policy ampere-only and policy hopper-only together allow no GPU product; {WIDEN}"


@pytest.mark.parametrize(
    ("limit", "more", "reason"),
    [
        pytest.param("500m", {}, FRACTION, id="fraction"),
        pytest.param(-1, {}, NEGATIVE, id="negative"),
        pytest.param(1, {"annotations": {"cuda": "new"}}, ANNOTATION, id="annotation that does not parse"),
        pytest.param(2, {"annotations": {"workload-class": "notebook"}}, TOO_MANY, id="too many"),
        pytest.param(1, {"labels": {"test": "torn"}}, TORN, id="policies that leave no product"),
        pytest.param("500m", {"labels": {"test": "torn"}}, f"(1) {FRACTION} (2) {TORN}", id="two things at once"),
    ],
)
def test_pod_that_cannot_be_repaired_is_denied_in_our_words(
    plane: ControlPlane, namespace: str, limit: object, more: dict[str, Any], reason: str
) -> None:
    """F8, F26 and the reasons InvalidAnnotation, NoProductLeft. The message is one line that names the alternative."""
    answer = plane.kubectl.create(plain_pod(namespace, {GPU: limit}, **more))

    assert KubectlResult(1, "", f"Error from server (Forbidden): {DENIED} {reason}\n") == answer
    assert plane.api.items(f"/api/v1/namespaces/{namespace}/pods") == []


def test_api_server_merges_what_the_runtime_class_we_set_brings(plane: ControlPlane, namespace: str) -> None:
    """F5, F23: its RuntimeClass plugin runs again after our patch; we are then called again, and change nothing."""
    pod = plain_pod(namespace, labels=HEAVILY, nodeSelector={"zone": "a"})

    answer = plane.kubectl.create(pod)

    spec = read_pod(plane, pod)["spec"]
    assert KubectlResult(0, "pod/p created\n", "") == answer
    assert spec["overhead"] == OVERHEAD["podFixed"]
    assert spec["nodeSelector"] == {"zone": "a", "nvidia.com/gpu.present": "true"}
    assert tolerated({"spec": spec}) == [ANY_GPU]


def test_dry_run_shows_the_very_pod_that_would_be_and_stores_nothing(plane: ControlPlane, namespace: str) -> None:
    """F7: `kubectl create --dry-run=server` calls the webhook, since the webhook has no side effects."""
    pod = plain_pod(namespace, requests={GPU: 1})

    shown = plane.kubectl.create(pod, dry_run=True)

    assert plane.api.items(f"/api/v1/namespaces/{namespace}/pods") == []
    assert authored_fields(create_pod(plane, pod)) == authored_fields(json.loads(shown.out))


@pytest.mark.parametrize("recorded", [True, False], ids=["with our record", "spec alone"])
def test_admitted_pod_made_again_gains_nothing(plane: ControlPlane, namespace: str, recorded: bool) -> None:
    """F23: what the RuntimeClass adds is in the spec by then."""
    first = create_pod(plane, plain_pod(namespace, requests={GPU: 1}, annotations={"products": "H100"}, labels=HEAVILY))
    notes = {key: value for key, value in first["metadata"]["annotations"].items() if recorded or key != DECISION}
    again = {**first, "metadata": {"name": "again", "namespace": namespace, "labels": HEAVILY, "annotations": notes}}

    answer = plane.kubectl.create(again)

    second = read_pod(plane, again)
    assert KubectlResult(0, "pod/again created\n", "") == answer
    assert first["spec"] == second["spec"]
    assert decision(second)["actions"] == (decision(first)["actions"] if recorded else [])
