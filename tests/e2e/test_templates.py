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
from tests.controlplane.module_files import checks_stateful_sets
from tests.e2e.stage import (
    Service,
    counted_calls,
    create_namespace,
    decision,
    eventually,
    install_webhooks,
    own_policies,
    plain_pod,
    pods_of,
    serving,
    tolerated,
)

GPU = "nvidia.com/gpu"
TAINTS = [{"key": key, "value": value, "effect": "NoSchedule"} for key, value in ((GPU, "present"), ("dedicated", "a"))]
COPIED = {**TAINTS[0], "operator": "Equal"}
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
RESTARTED = ("Deployment", "StatefulSet", "DaemonSet")
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


BUSY: Mapping[str, Object] = {
    "Deployment": {"replicas": 1},
    "StatefulSet": {"replicas": 1},
    "DaemonSet": {"minReadySeconds": 1},  # on the CPU node, as its controller judges taints by the template
    "ReplicaSet": {"replicas": 1},
    "Job": {"suspend": False},
}


@pytest.mark.parametrize("kind", BUSY)
def test_pods_made_of_a_repaired_template_are_complete(plane: ControlPlane, namespace: str, kind: str) -> None:
    """F18, F3: the pod gets what its template leaves out, but no toleration of a team's taint."""
    assert plane.kubectl.create(workload(kind, namespace, BUSY[kind], requests={GPU: 2})).code == 0

    eventually("its pod is made", lambda: pods_of(plane, namespace))

    (pod,) = pods_of(plane, namespace)
    assert pod["spec"]["containers"][0]["resources"] == BOTH
    assert (pod["spec"]["runtimeClassName"], tolerated(pod)) == ("nvidia", [COPIED])
    assert decision(pod)["actions"] == ["runtimeClassName set to nvidia", f"toleration added for {GPU}"]


@pytest.mark.parametrize("kind", IDLE)
def test_without_us_the_api_server_refuses_such_a_template(plane: ControlPlane, exempt: str, kind: str) -> None:
    """F18: this is why the rules of the webhooks include workloads."""
    answer = plane.kubectl.create(workload(kind, exempt, requests={GPU: 2}))

    path = f"spec.{'jobTemplate.spec.' if kind == 'CronJob' else ''}template.spec.containers[0].resources.limits"
    words = f"{path}: Required value: Limit must be set for non overcommitable resources"
    refusal = KubectlResult(1, "", f'The {kind} "w" is invalid: {words}\n')
    assert answer == refusal or (kind == "StatefulSet" and not checks_stateful_sets())


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


@pytest.mark.parametrize("kind", IDLE)
def test_template_with_unequal_amounts_is_repaired(plane: ControlPlane, namespace: str, kind: str) -> None:
    """F18, F7."""
    answer = plane.kubectl.create(workload(kind, namespace, requests={GPU: 1}, limits={GPU: 2}))

    assert answer.warnings == [f"main: {GPU} requests set to 2 as in limits: requests must equal limits"]
    assert amounts(plane.api.get(path_of(kind, namespace))) == BOTH


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


@pytest.mark.parametrize("kind", SCALED)
def test_repaired_workload_scales(plane: ControlPlane, namespace: str, kind: str) -> None:
    """F18."""
    plane.kubectl.create(workload(kind, namespace, requests={GPU: 2}))

    assert plane.kubectl("scale", kind, "w", "-n", namespace, "--replicas=1").code == 0

    eventually("its pod is made", lambda: pods_of(plane, namespace))


@pytest.mark.parametrize("kind", RESTARTED)
def test_repaired_workload_restarts(plane: ControlPlane, namespace: str, kind: str) -> None:
    """F18: `rollout restart` adds an annotation, so that the template is reviewed again without a change."""
    plane.kubectl.create(workload(kind, namespace, requests={GPU: 2}))

    answer = plane.kubectl("rollout", "restart", kind, "w", "-n", namespace)

    assert answer == KubectlResult(0, f"{resource(kind)} restarted\n", "")
    assert amounts(plane.api.get(path_of(kind, namespace))) == BOTH


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


@pytest.mark.parametrize("kind", IDLE)
def test_runtime_class_that_is_not_there_is_warned_of(plane: ControlPlane, namespace: str, kind: str) -> None:
    """F18, F6: the API server accepts the template, and would refuse every pod of it."""
    answer = plane.kubectl.create(workload(kind, namespace, runtimeClassName="nvidia-cdi"))

    words = "RuntimeClass nvidia-cdi does not exist: no pod of this template would be created"
    assert answer == KubectlResult(0, f"{resource(kind)} created\n", f"Warning: {words}\n")


@pytest.mark.parametrize("flags", [[], ["--server-side"]], ids=["client", "server"])
def test_dry_run_shows_the_template_and_stores_nothing(plane: ControlPlane, namespace: str, flags: list[str]) -> None:
    """F18, F7."""
    words = (*flags, "--dry-run=server", "-o", "json")

    shown = apply(plane, workload("Deployment", namespace, requests={GPU: 2}), *words)

    assert (shown.code, shown.warnings) == (0, [COPY])
    assert amounts(json.loads(shown.out)) == BOTH
    assert plane.api.client.get(path_of("Deployment", namespace)).status_code == 404
