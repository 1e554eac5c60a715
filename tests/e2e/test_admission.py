# SPDX-License-Identifier: Apache-2.0
"""What a person sees who creates a GPU pod: the API server accepts every repair, and every denial gives its cause."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.admission.reviewed_pod import MOST_WARNINGS, WARNING_LIMIT
from app.kube.pods import DECISION
from app.nodes.conditions import PRODUCT, SHARING
from tests.builders import container, policy
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
COPIED = {**TAINT, "operator": "Equal"}
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


@pytest.mark.parametrize(
    ("resource", "given", "expected"),
    [
        pytest.param(GPU, [], [COPIED], id="GPU"),
        pytest.param(SLICE, [], [COPIED, ANY_SLICE], id="slice: the GPU's taint too"),
        pytest.param(GPU, [ANY_GPU], [ANY_GPU], id="nothing that the user's own covers"),
    ],
)
def test_gpu_taint_of_the_nodes_is_tolerated_and_no_teams_taint(
    plane: ControlPlane, namespace: str, resource: str, given: list[Object], expected: list[Object]
) -> None:
    """P35, F2, F3, F4: the toleration copies the node's GPU taint; its `dedicated=team` is not tolerated."""
    admitted = create_pod(plane, plain_pod(namespace, {resource: 1}, tolerations=given))

    assert expected == tolerated(admitted)


INIT_ONLY = {"initContainers": [container({GPU: 1}, name="warm-up")], "containers": [container()]}


@pytest.mark.parametrize(
    "more", [{"limits": {GPU: 1}}, {"limits": {SLICE: 1}}, INIT_ONLY], ids=["GPU", "slice", "init container only"]
)
def test_runtime_class_that_exists_is_set(plane: ControlPlane, namespace: str, more: dict[str, Any]) -> None:
    """P34, F5: this also holds for MIG slices and for pods of which only an init container requests a GPU."""
    admitted = create_pod(plane, plain_pod(namespace, **more))

    assert admitted["spec"]["runtimeClassName"] == "nvidia"


def test_runtime_class_that_does_not_exist_is_not_set_and_nothing_is_said(plane: ControlPlane, namespace: str) -> None:
    """P34, F6: a pod that names a missing class would be rejected. The doctor reports the missing class instead."""
    pod = plain_pod(namespace, labels={"test": "absent"})

    answer = plane.kubectl.create(pod)

    assert KubectlResult(0, "pod/p created\n", "") == answer
    assert "runtimeClassName" not in read_pod(plane, pod)["spec"]


def test_api_server_merges_what_the_runtime_class_we_set_brings(plane: ControlPlane, namespace: str) -> None:
    """F5, F23: its RuntimeClass plugin runs again after our patch; we are then called again, and change nothing."""
    pod = plain_pod(namespace, labels=HEAVILY, nodeSelector={"zone": "a"})

    answer = plane.kubectl.create(pod)

    spec = read_pod(plane, pod)["spec"]
    assert KubectlResult(0, "pod/p created\n", "") == answer
    assert spec["overhead"] == OVERHEAD["podFixed"]
    assert spec["nodeSelector"] == {"zone": "a", "nvidia.com/gpu.present": "true"}
    assert tolerated({"spec": spec}) == [ANY_GPU]


def test_products_annotation_becomes_affinity_in_each_term_of_the_user(plane: ControlPlane, namespace: str) -> None:
    """F10: the terms of node affinity are alternatives, so each of them gets the requirement."""
    a, b = ({"key": "zone", "operator": "In", "values": [name]} for name in "ab")
    terms = {"nodeSelectorTerms": [{"matchExpressions": [a]}, {"matchExpressions": [b]}]}
    wished = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}

    admitted = create_pod(plane, plain_pod(namespace, annotations={"products": "H100"}, affinity=wished))

    required = admitted["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    needs = required["nodeSelectorTerms"][0]["matchExpressions"][1:]
    assert [{"matchExpressions": [zone, *needs]} for zone in (a, b)] == required["nodeSelectorTerms"]
    refused = next(need["values"] for need in needs if (need["key"], need["operator"]) == (PRODUCT, "NotIn"))
    assert "NVIDIA-A10" in refused
    assert not [value for value in refused if "H100" in value]


def test_what_was_done_and_by_which_policies_stands_on_the_pod(plane: ControlPlane, namespace: str) -> None:
    """F25: one versioned annotation records it."""
    admitted = create_pod(plane, plain_pod(namespace, requests={GPU: 1}, annotations={"workload-class": "training"}))

    recorded = decision(admitted)
    assert [recorded["v"], recorded["policies"]] == [1, ["training", "default"]]
    assert recorded["actions"] == [
        f"main: {GPU} limits set to 1 as in requests",
        "runtimeClassName set to nvidia",
        f"toleration added for {GPU}",
        f"required node affinity added on {PRODUCT}, {SHARING}",
        f"preferred node affinity added on {PRODUCT}",
    ]


READY: Object = {"tolerations": [ANY_GPU], "runtimeClassName": "nvidia"}
FORGED = '{"v":1,"actions":["approved"],"hash":"HASH","of":"0"}'


@pytest.mark.parametrize("fake", [FORGED, "{", ""], ids=["whole", "torn", "empty"])
def test_decision_that_a_user_wrote_is_replaced_with_a_warning(plane: ControlPlane, namespace: str, fake: str) -> None:
    """P19, F15: the annotation holds what really happened, though its policy hash can be copied from any pod."""
    honest = create_pod(plane, plain_pod(namespace, name="honest", **READY))
    pod = plain_pod(namespace, annotations={"decision": fake.replace("HASH", decision(honest)["hash"])}, **READY)

    answer = plane.kubectl.create(pod)

    assert answer.warnings == [f"{DECISION} did not match the pod and was rewritten"]
    assert decision(honest) == decision(read_pod(plane, pod))


def test_init_containers_and_sidecars_are_repaired_too(plane: ControlPlane, namespace: str) -> None:
    """F16, F17."""
    before = [container(None, {GPU: 2}, name="before"), container(None, {GPU: 1}, name="side", restartPolicy="Always")]

    admitted = create_pod(plane, plain_pod(namespace, initContainers=before, containers=[container(None, {GPU: 1})]))

    spec = admitted["spec"]
    limits = [document["resources"]["limits"] for document in (*spec["initContainers"], *spec["containers"])]
    assert limits == [{GPU: "2"}, {GPU: "1"}, {GPU: "1"}]


@pytest.mark.parametrize(("restart", "code"), [({}, 0), ({"restartPolicy": "Always"}, 1)], ids=["init", "sidecar"])
def test_gpus_are_counted_as_kubernetes_counts_them(
    plane: ControlPlane, namespace: str, restart: dict[str, Any], code: int
) -> None:
    """F16, F17, fault 37: an init container's GPU is free again when the main container starts, a sidecar's is not."""
    first = container({GPU: 1}, name="first", **restart)
    pod = plain_pod(namespace, initContainers=[first], annotations={"workload-class": "notebook"})

    answer = plane.kubectl.create(pod)

    assert (answer.code, "asks for 2 GPUs (first 1, main 1); at most 1 per pod is allowed" in answer.err) == (
        code,
        bool(code),
    )


def test_warnings_are_few_and_short(plane: ControlPlane, namespace: str) -> None:
    """F19: the API server truncates all warnings once they are too long together."""
    named = [container(None, {GPU: 1}, name=f"{index}{'x' * 62}") for index in range(9)]

    answer = plane.kubectl.create(plain_pod(namespace, containers=named))

    assert len(answer.warnings) == len(answer.err.splitlines()) == MOST_WARNINGS
    assert max(map(len, answer.warnings)) <= WARNING_LIMIT
    assert answer.warnings[-1].startswith("and ")


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
