# SPDX-License-Identifier: Apache-2.0
"""GPU pods written as the template of a workload: repaired, judged and otherwise left as they are (F18)."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.kube.pods import PREFIX
from tests.builders import container, policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import KubectlResult, Object
from tests.e2e.stage import (
    Service,
    counted_calls,
    create_namespace,
    eventually,
    install_webhooks,
    own_policies,
    plain_pod,
    serving,
)

GPU = "nvidia.com/gpu"
TAINTS = [{"key": key, "value": value, "effect": "NoSchedule"} for key, value in ((GPU, "present"), ("dedicated", "a"))]
FLEET = (
    node_object("h100", taints=TAINTS),
    node_object("t4", "Tesla-T4", offers={GPU: 4}, taints=TAINTS),
    node_object("cpu", None, None, {}),
)
LABELS = {"app": "train"}
CHOSEN: Object = {"selector": {"matchLabels": LABELS}}
IDLE: Mapping[str, tuple[str, Object]] = {
    "Deployment": ("apps/v1", {**CHOSEN, "replicas": 0}),
    "StatefulSet": ("apps/v1", {**CHOSEN, "replicas": 0, "serviceName": "none"}),
    "DaemonSet": ("apps/v1", CHOSEN),
    "ReplicaSet": ("apps/v1", {**CHOSEN, "replicas": 0}),
    "Job": ("batch/v1", {"suspend": True}),
    "CronJob": ("batch/v1", {"schedule": "0 0 1 1 *", "suspend": True}),
}
"""Workloads by kind whose controllers create no pod, so that only the test's own calls are counted."""
SCALED = ("Deployment", "StatefulSet", "ReplicaSet")
BOTH: Object = {"limits": {GPU: "2"}, "requests": {GPU: "2"}}
COPY = f"main: {GPU} limits set to 2 as in requests: the API server refuses requests without limits"


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the service's policies: the shipped ones, and those that tests add."""
    return own_policies(tmp_path_factory.mktemp("own"), {})


@pytest.fixture(scope="module")
def service(plane: ControlPlane, policies: Path) -> Iterator[Service]:
    """The service as it is shipped, on a fleet whose GPU nodes have two taints."""
    add_nodes(plane.api, FLEET)
    plane.api.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    with serving(plane, policies=str(policies)) as running:
        install_webhooks(plane, running)
        yield running


@pytest.fixture
def exempt(plane: ControlPlane, namespace: str) -> str:
    """A second namespace, which is exempt."""
    return create_namespace(plane, f"{namespace}-exempt", **{"gpu-usher.io/ignore": "true"})


def workload(kind: str, namespace: str, more: Object | None = None, **pod: Any) -> Object:
    """Write a workload; `more` holds fields of its spec with which it makes pods, `pod` arguments of `plain_pod`."""
    version, spec = IDLE[kind]
    fields: Object = {"restartPolicy": "Never"} if version == "batch/v1" else {}
    if kind == "DaemonSet":
        tolerations: Object = {} if more else {"tolerations": [{"key": GPU, "operator": "Exists"}]}  # or we warn
        fields = {"nodeSelector": {"kubernetes.io/hostname": "cpu" if more else "none"}, **tolerations}
    whole = plain_pod(namespace, **{"labels": LABELS, **fields, **pod})
    containers = ({key: one[key] for key in one if one[key]} for one in whole["spec"].pop("containers"))
    metadata = {key: whole["metadata"][key] for key in ("labels", "annotations") if whole["metadata"][key]}
    template: Object = {"template": {"metadata": metadata, "spec": {**whole["spec"], "containers": list(containers)}}}
    template = {"jobTemplate": {"spec": template}} if kind == "CronJob" else template
    filled = {**spec, **template, **(more or {})}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "w", "namespace": namespace}, "spec": filled}


def path_of(kind: str, namespace: str) -> str:
    return f"/apis/{IDLE[kind][0]}/namespaces/{namespace}/{kind.lower()}s/w"


def resource(kind: str) -> str:
    """Name the workload as kubectl prints it."""
    return f"{kind.lower()}.{IDLE[kind][0].partition('/')[0]}/w"


def template_of(made: Object) -> Object:
    """Return the template of a workload, without the labels by which a Job knows its own pods."""
    template: Object = (made["spec"].get("jobTemplate") or made)["spec"]["template"]
    own = ("controller-uid", "batch.kubernetes.io/controller-uid")
    labels = {key: value for key, value in template["metadata"].get("labels", {}).items() if key not in own}
    return {**template, "metadata": {**template["metadata"], "labels": labels}}


def amounts(made: Object) -> Any:
    return template_of(made)["spec"]["containers"][0]["resources"]


def apply(plane: ControlPlane, document: Object, *words: str) -> KubectlResult:
    return plane.kubectl("apply", "-f", "-", *words, stdin=json.dumps(document))


@pytest.mark.parametrize("kind", IDLE)
def test_requests_only_template_is_given_limits_and_nothing_else(
    plane: ControlPlane, namespace: str, exempt: str, kind: str
) -> None:
    """P36, F18: it equals one in the exempt namespace whose author wrote limits; only pods get the decision."""
    twin = plane.kubectl.create(workload(kind, exempt, requests={GPU: 2}, limits={GPU: 2}))

    answer = plane.kubectl.create(workload(kind, namespace, requests={GPU: 2}))

    made = plane.api.get(path_of(kind, namespace))
    assert KubectlResult(0, f"{resource(kind)} created\n", f"Warning: {COPY}\n") == answer
    assert (twin.code, template_of(plane.api.get(path_of(kind, exempt)))) == (0, template_of(made))
    assert amounts(made) == BOTH
    assert not [key for key in made["metadata"].get("annotations") or {} if key.startswith(PREFIX)]


DENIED = 'admission webhook "mutate.gpu-usher.io" denied the request: gpu-usher: '
UNFIT: Mapping[str, dict[str, Any]] = {
    f"container main asks for a fraction of {GPU}, ": {"limits": {GPU: "500m"}},
    "gpu-usher.io/cuda does not parse: version: got 'new', wants digits": {"annotations": {"cuda": "new"}},
}


@pytest.mark.parametrize("kind", IDLE)
@pytest.mark.parametrize("why", UNFIT, ids=["fraction", "annotation"])
def test_template_that_makes_no_pod_is_denied_at_once(plane: ControlPlane, namespace: str, kind: str, why: str) -> None:
    """F18, F8: the denial comes when it is applied, rather than in events of its controller."""
    answer = plane.kubectl.create(workload(kind, namespace, **UNFIT[why]))

    assert answer.code == 1
    assert answer.err.startswith(f'Error from server (Forbidden): error when creating "STDIN": {DENIED}{why}')


@pytest.mark.parametrize("server_side", [[], ["--server-side"]], ids=["client", "server"])
@pytest.mark.parametrize("kind", IDLE)
def test_template_can_be_applied_again(plane: ControlPlane, namespace: str, kind: str, server_side: list[str]) -> None:
    """F18, F23: nothing is configured anew, and nothing conflicts."""
    document = workload(kind, namespace, requests={GPU: "2"})  # a string, as `kubectl apply` compares the text
    assert apply(plane, document, *server_side).code == 0
    first = plane.api.get(path_of(kind, namespace))

    again = apply(plane, document, *server_side)

    second = plane.api.get(path_of(kind, namespace))
    assert (again.code, again.out.split()[-1]) == (0, "serverside-applied" if server_side else "unchanged"), again.err
    assert (first["spec"], first["metadata"].get("generation")) == (second["spec"], second["metadata"]["generation"])


@pytest.mark.parametrize("kind", [kind for kind in IDLE if kind != "Job"])
def test_stricter_policy_is_for_templates_that_change(
    plane: ControlPlane, service: Service, policies: Path, namespace: str, kind: str
) -> None:
    """F18, F26: an older workload can still be labelled and scaled; only a changed template must obey the policy."""
    plane.kubectl.create(workload(kind, namespace, requests={GPU: 2}))
    name = f"cap-{kind.lower()}"
    match = f"match: {{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}}}"
    (policies / f"{name}.yaml").write_text(policy(name, f"{match}, admission: {{maxGPUsPerPod: 1}}"), "utf-8")
    eventually("the policy is in force", lambda: service.metric("gpu_usher_policy_info", policy=name))

    labelled = plane.kubectl("label", kind, "w", "-n", namespace, "team=a")
    scaled = plane.kubectl("scale", kind, "w", "-n", namespace, "--replicas=0") if kind in SCALED else labelled
    changed = apply(plane, workload(kind, namespace, requests={GPU: 2}, image="train:2"))

    assert (labelled.code, scaled.code, changed.code) == (0, 0, 1)
    assert "asks for 2 GPUs; at most 1 per pod is allowed" in changed.err


NAMED = container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}])
COSTS: Mapping[str, tuple[list[float], dict[str, Any]]] = {
    "no GPU": ([0, 0], {}),
    "variable": ([1, 1], {"containers": [NAMED]}),
    "init container": ([1, 1], {"initContainers": [container({GPU: 1}, name="a")]}),
}


@pytest.mark.parametrize("concern", COSTS)
@pytest.mark.parametrize("kind", IDLE)
def test_template_is_asked_about_where_it_concerns_gpus(
    plane: ControlPlane, service: Service, namespace: str, kind: str, concern: str
) -> None:
    """F22, F18: once each. A dry run is repeated where another test's controller called at the same time."""
    expected, more = COSTS[concern]

    def calls() -> list[float]:
        with counted_calls(service) as counts:
            assert plane.kubectl.create(workload(kind, namespace, limits={"cpu": 1}, **more), dry_run=True).code == 0
        return counts

    eventually(f"it costs {expected} calls", lambda: calls() == expected)
