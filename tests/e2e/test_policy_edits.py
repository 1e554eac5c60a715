# SPDX-License-Identifier: Apache-2.0
"""Policies edited with kubectl while our webhook checks each edit: a bad policy is never stored (F131)."""

import base64
import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import KubectlResult, Object
from tests.e2e.stage import (
    DEPLOY,
    Service,
    counted_calls,
    eventually,
    install_webhooks,
    plain_pod,
    serving,
)

OURS = "gpu-usher"
CONFIG_MAPS = f"/api/v1/namespaces/{OURS}/configmaps"
LABELS = {"gpu-usher.io/policy": "true"}
COMPONENT = DEPLOY / "components" / "crd"


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """The service, the definition of GPUPolicy, and every webhook of deploy/."""
    for name in ("gpupolicies.yaml", "rbac.yaml"):
        result = plane.kubectl("apply", "-f", str(COMPONENT / name))
        assert result.code == 0, result.err
    with serving(plane) as running:
        eventually("it is followed", lambda: running.health()["caches"].get("gpupolicies", {}).get("synced"))
        install_webhooks(plane, running)
        install_crd_webhook(plane, running)
        eventually("it asks us about policies", lambda: apply(plane, config_map("probe", "x: 1"), dry_run=True).code)
        eventually("and about objects", lambda: apply(plane, gpu_policy("probe", H10O), dry_run=True).code)
        yield running


def install_crd_webhook(plane: ControlPlane, service: Service) -> None:
    """Install the webhook of the component with the URL of the process."""
    document = yaml.safe_load((COMPONENT / "webhook.yaml").read_text("utf-8"))
    ca = base64.b64encode(service.ca.read_bytes()).decode()
    for webhook in document["webhooks"]:
        webhook["clientConfig"] = {"url": service.url + webhook["clientConfig"]["service"]["path"], "caBundle": ca}
    assert plane.kubectl("apply", "-f", "-", stdin=json.dumps(document)).code == 0


@pytest.fixture
def name(plane: ControlPlane, service: Service, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name for the test's own policy, which is deleted after the test."""
    policy_name = f"own-{zlib.crc32(request.node.name.encode()):08x}"
    yield policy_name
    others = (policy_name, f"{policy_name}-other")
    for other in others:
        plane.api.delete(f"{CONFIG_MAPS}/{other}")
        plane.api.delete(f"/apis/gpu-usher.io/v1alpha1/gpupolicies/{other}")
    eventually(
        "nothing is left of it", lambda: not policy_error(service) and not any(in_force(service, n) for n in others)
    )


def config_map(name: str, text: str, namespace: str = OURS, labels: Object | None = None, **more: Any) -> Object:
    """Write a ConfigMap with a policy in it, with the policy label unless `labels` says otherwise."""
    metadata = {"name": name, "namespace": namespace, "labels": LABELS if labels is None else labels, **more}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"own.yaml": text}}


def gpu_policy(name: str, spec: Object) -> Object:
    return {"apiVersion": "gpu-usher.io/v1alpha1", "kind": "GPUPolicy", "metadata": {"name": name}, "spec": spec}


def apply(plane: ControlPlane, document: Object, dry_run: bool = False) -> KubectlResult:
    words = ["--dry-run=server"] if dry_run else []
    return plane.kubectl("apply", "-f", "-", *words, stdin=json.dumps(document))


def in_force(service: Service, name: str) -> bool:
    return service.metric("gpu_usher_policy_info", policy=name) == 1


def policy_error(service: Service) -> Any:
    return service.health()["policies"]["error"]


def capping_policy(name: str, gpus: int = 1) -> str:
    """Write a policy that limits the GPUs of the pods labelled with its name."""
    match = f"match: {{podSelector: {{matchLabels: {{cap: {name}}}}}}}"
    return policy(name, f"priority: 2000, {match}, admission: {{maxGPUsPerPod: {gpus}}}")


def create_capped_pod(plane: ControlPlane, name: str) -> KubectlResult:
    """Create a pod of four GPUs that such a policy selects, as a dry run."""
    return plane.kubectl.create(plain_pod("default", {"nvidia.com/gpu": 4}, name, labels={"cap": name}), dry_run=True)


H10O: Object = {"placement": {"products": {"allow": ["H10O"]}}}
UNKNOWN = "spec.placement.products.allow[0]: unknown product 'H10O', did you mean H100?"
FIELD = "spec.admission.maxGPUPerPod: unknown field, did you mean maxGPUsPerPod?"
BAD = {
    "no YAML": ("spec: {", "own.yaml:2:1: not YAML: did not find expected node content; fix as described; "),
    "unknown field": (policy("x", "admission: {maxGPUPerPod: 1}"), f"own.yaml:4:20: {FIELD}"),
    "unknown product": (policy("x", "placement: {products: {allow: [H10O]}}"), f"own.yaml:4:39: {UNKNOWN}"),
    "name of a file's": (
        policy("training", "priority: 9"),
        "own.yaml:3:12: metadata.name: training is taken by training.yaml:6:12; ",
    ),
    "not a policy": (
        "just: text",
        "own.yaml:1:1: apiVersion: missing, wants one of gpu-usher.io/v1alpha1 or gpu-usher.io/v1beta1; ",
    ),
}
"""Name of a mistake → the text with it, and the message about it."""
DENIED = 'admission webhook "policies.gpu-usher.io" denied the request: gpu-usher: '


def denial(name: str, words: str) -> str:
    return f"{DENIED}configmap {OURS}/{name}: {words}"


@pytest.mark.parametrize("mistake", BAD)
def test_mistake_in_a_config_map_is_refused_before_it_is_stored(
    plane: ControlPlane, service: Service, name: str, mistake: str
) -> None:
    """F131: the message has its place and its cause, and nothing is stored."""
    text, words = BAD[mistake]

    answer = apply(plane, config_map(name, text))

    assert answer.code == 1
    assert denial(name, words) in answer.err
    assert plane.api.client.get(f"{CONFIG_MAPS}/{name}").status_code == 404
    assert policy_error(service) is None


def test_good_config_map_passes_and_takes_effect(plane: ControlPlane, service: Service, name: str) -> None:
    """F131, F76."""
    answer = apply(plane, config_map(name, capping_policy(name)))

    assert answer == KubectlResult(0, f"configmap/{name} created\n", "")
    eventually("it rules on the next pod", lambda: "at most 1 per pod is allowed" in create_capped_pod(plane, name).err)
    assert policy_error(service) is None


@pytest.mark.parametrize(
    ("namespace", "labels"),
    [(OURS, {}), (OURS, {"gpu-usher.io/policy": "false"}), ("default", LABELS)],
    ids=["no label", "label that says no", "another namespace"],
)
def test_config_map_that_holds_no_policies_never_reaches_us(
    plane: ControlPlane, service: Service, name: str, namespace: str, labels: Object
) -> None:
    """F131, F22."""
    with counted_calls(service) as calls:
        answer = apply(plane, config_map(name, "spec: {", namespace, labels))

    assert (answer.code, calls, policy_error(service)) == (0, [0, 0], None)


def test_edit_passes_while_we_are_down_and_the_last_good_set_stays_once_we_are_back(
    plane: ControlPlane, service: Service, name: str
) -> None:
    """F131, F76: otherwise a bad policy could never be corrected. GPU pods are judged by the last good set."""
    good = f"{name}-other"
    apply(plane, config_map(good, capping_policy(good)))
    eventually("it is in force", lambda: in_force(service, good))
    service.process.stop()

    answer = apply(plane, config_map(name, BAD["unknown product"][0]))
    service.restart()

    assert answer == KubectlResult(0, f"configmap/{name} created\n", "")
    eventually("the mistake is named", lambda: UNKNOWN in str(policy_error(service)))
    eventually("the good one rules", lambda: "at most 1 per pod is allowed" in create_capped_pod(plane, good).err)


OBJECTS: dict[str, tuple[Object, str]] = {
    "version": ({"placement": {"cuda": {"minimum": "new"}}}, "spec.placement.cuda.minimum: "),
    "product": (H10O, UNKNOWN),
    "quantity": ({"admission": {"defaults": {"cpuPerGPU": "many"}}}, "spec.admission.defaults.cpuPerGPU: "),
    "day": ({"enforceFrom": "soon"}, "spec.enforceFrom: got 'soon', wants a day such as 2027-01-31"),
}


@pytest.mark.parametrize("mistake", OBJECTS)
def test_mistake_in_an_object_that_its_schema_cannot_say_is_refused(
    plane: ControlPlane, service: Service, name: str, mistake: str
) -> None:
    """F131: the message has its path, and nothing is stored."""
    spec, words = OBJECTS[mistake]

    answer = apply(plane, gpu_policy(name, spec))

    denying = 'admission webhook "gpupolicies.gpu-usher.io" denied the request: gpu-usher: '
    assert f"{denying}gpupolicy {name}: {words}" in answer.err
    assert policy_error(service) is None


def test_good_object_passes_and_takes_effect(plane: ControlPlane, name: str) -> None:
    """F131, F76."""
    spec = yaml.safe_load(capping_policy(name))["spec"]

    answer = apply(plane, gpu_policy(name, spec))

    assert answer == KubectlResult(0, f"gpupolicy.gpu-usher.io/{name} created\n", "")
    eventually("it rules on the next pod", lambda: "at most 1 per pod is allowed" in create_capped_pod(plane, name).err)
