# SPDX-License-Identifier: Apache-2.0
"""GPU pods written as the template of a workload: repaired, judged and otherwise left as they are (F18)."""

import json
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.cluster.files import shipped_policies
from app.kube.pods import PREFIX
from tests.builders import container, policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object, Said
from tests.e2e.stage import (
    Service,
    counted,
    decision,
    eventually,
    install_webhooks,
    namespace,
    plain_pod,
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
"""Workloads by kind, of which their controllers make no pod, so that only the test's own calls are counted."""
RESTARTED = ("Deployment", "StatefulSet", "DaemonSet")
SCALED = ("Deployment", "StatefulSet", "ReplicaSet")
BOTH: Object = {"limits": {GPU: "2"}, "requests": {GPU: "2"}}
COPY = f"main: {GPU} limits set to 2 as in requests: the API server refuses requests without limits"


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the service's policies: the shipped ones, and what tests add."""
    return shutil.copytree(shipped_policies(), tmp_path_factory.mktemp("own") / "policies")


@pytest.fixture(scope="module")
def service(plane: ControlPlane, policies: Path) -> Iterator[Service]:
    """The service as it is shipped, on a fleet whose GPUs are tainted twice."""
    add_nodes(plane.api, FLEET)
    plane.api.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    with serving(plane, policies=str(policies)) as running:
        install_webhooks(plane, running)
        yield running


@pytest.fixture
def where(plane: ControlPlane, service: Service, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own, where the webhooks are at work."""
    assert service.process.running
    return namespace(plane, f"templates-{zlib.crc32(request.node.name.encode()):08x}")


@pytest.fixture
def exempt(plane: ControlPlane, where: str) -> str:
    """Another one, where nobody asks us."""
    return namespace(plane, f"{where}-exempt", **{"gpu-usher.io/ignore": "true"})


def workload(kind: str, where: str, more: Object | None = None, **pod: Any) -> Object:
    """Make a workload; `more`: fields of its spec that have it make pods, `pod`: as `plain_pod`."""
    version, spec = IDLE[kind]
    fields: Object = {"restartPolicy": "Never"} if version == "batch/v1" else {}
    if kind == "DaemonSet":
        told: Object = {} if more else {"tolerations": [{"key": GPU, "operator": "Exists"}]}  # or one is told
        fields = {"nodeSelector": {"kubernetes.io/hostname": "cpu" if more else "none"}, **told}
    whole = plain_pod(where, **{"labels": LABELS, **fields, **pod})
    containers = ({key: each[key] for key in each if each[key]} for each in whole["spec"].pop("containers"))
    metadata = {key: whole["metadata"][key] for key in ("labels", "annotations") if whole["metadata"][key]}
    template: Object = {"template": {"metadata": metadata, "spec": {**whole["spec"], "containers": list(containers)}}}
    template = {"jobTemplate": {"spec": template}} if kind == "CronJob" else template
    filled = {**spec, **template, **(more or {})}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "w", "namespace": where}, "spec": filled}


def path_of(kind: str, where: str) -> str:
    return f"/apis/{IDLE[kind][0]}/namespaces/{where}/{kind.lower()}s/w"


def resource(kind: str) -> str:
    """Name the workload as kubectl prints it."""
    return f"{kind.lower()}.{IDLE[kind][0].partition('/')[0]}/w"


def template_of(made: Object) -> Object:
    """Give the template of a workload, less the labels by which a Job knows its own pods."""
    found: Object = (made["spec"].get("jobTemplate") or made)["spec"]["template"]
    own = ("controller-uid", "batch.kubernetes.io/controller-uid")
    kept = {key: value for key, value in found["metadata"].get("labels", {}).items() if key not in own}
    return {**found, "metadata": {**found["metadata"], "labels": kept}}


def amounts(made: Object) -> Any:
    return template_of(made)["spec"]["containers"][0]["resources"]


def pods_of(plane: ControlPlane, where: str) -> list[Object]:
    return plane.api.items(f"/api/v1/namespaces/{where}/pods")


def apply(plane: ControlPlane, document: Object, *words: str) -> Said:
    return plane.kubectl("apply", "-f", "-", *words, stdin=json.dumps(document))


@pytest.mark.parametrize("kind", IDLE)
def test_requests_only_template_is_given_limits_and_nothing_else(
    plane: ControlPlane, where: str, exempt: str, kind: str
) -> None:
    """P36, F18: the twin where nobody asks us has limits by its author's hand; our record is for pods only."""
    twin = plane.kubectl.create(workload(kind, exempt, requests={GPU: 2}, limits={GPU: 2}))

    answer = plane.kubectl.create(workload(kind, where, requests={GPU: 2}))

    made = plane.api.get(path_of(kind, where))
    assert Said(0, f"{resource(kind)} created\n", f"Warning: {COPY}\n") == answer
    assert (twin.code, template_of(plane.api.get(path_of(kind, exempt)))) == (0, template_of(made))
    assert amounts(made) == BOTH
    assert not [key for key in made["metadata"].get("annotations") or {} if key.startswith(PREFIX)]


BUSY: Mapping[str, Object] = {
    "Deployment": {"replicas": 1},
    "StatefulSet": {"replicas": 1},
    "DaemonSet": {"minReadySeconds": 1},  # on the CPU node: its controller asks the template about taints
    "ReplicaSet": {"replicas": 1},
    "Job": {"suspend": False},
}


@pytest.mark.parametrize("kind", BUSY)
def test_pods_made_of_a_repaired_template_are_complete(plane: ControlPlane, where: str, kind: str) -> None:
    """F18, F3: what the template does not say the pod is given, but never leave for a team's own nodes."""
    assert plane.kubectl.create(workload(kind, where, BUSY[kind], requests={GPU: 2})).code == 0

    eventually("its pod is made", lambda: pods_of(plane, where))

    (pod,) = pods_of(plane, where)
    assert pod["spec"]["containers"][0]["resources"] == BOTH
    assert (pod["spec"]["runtimeClassName"], tolerated(pod)) == ("nvidia", [COPIED])
    assert decision(pod)["actions"] == ["runtimeClassName set to nvidia", f"toleration added for {GPU}"]


@pytest.mark.parametrize("kind", IDLE)
def test_without_us_the_api_server_refuses_such_a_template(plane: ControlPlane, exempt: str, kind: str) -> None:
    """F18: which is why workloads are in the rules of the webhooks."""
    answer = plane.kubectl.create(workload(kind, exempt, requests={GPU: 2}))

    path = f"spec.{'jobTemplate.spec.' if kind == 'CronJob' else ''}template.spec.containers[0].resources.limits"
    words = f"{path}: Required value: Limit must be set for non overcommitable resources"
    assert answer == Said(1, "", f'The {kind} "w" is invalid: {words}\n')


DENIED = 'admission webhook "mutate.gpu-usher.io" denied the request: gpu-usher: '
UNFIT: Mapping[str, dict[str, Any]] = {
    f"container main: a fraction of {GPU}: wants a whole number (": {"limits": {GPU: "500m"}},
    "gpu-usher.io/cuda does not parse: version: got 'new', wants digits": {"annotations": {"cuda": "new"}},
}


@pytest.mark.parametrize("kind", IDLE)
@pytest.mark.parametrize("words", UNFIT, ids=["fraction", "annotation"])
def test_template_that_makes_no_pod_is_denied_at_once(plane: ControlPlane, where: str, kind: str, words: str) -> None:
    """F18, F8: in our words when it is applied, rather than in events of its controller."""
    answer = plane.kubectl.create(workload(kind, where, **UNFIT[words]))

    assert answer.code == 1
    assert answer.err.startswith(f'Error from server (Forbidden): error when creating "STDIN": {DENIED}{words}')


@pytest.mark.parametrize("kind", IDLE)
def test_template_with_a_mismatch_is_settled(plane: ControlPlane, where: str, kind: str) -> None:
    """F18, F7."""
    answer = plane.kubectl.create(workload(kind, where, requests={GPU: 1}, limits={GPU: 2}))

    assert answer.warnings == [f"main: {GPU} requests set to 2 as in limits: requests must equal limits"]
    assert amounts(plane.api.get(path_of(kind, where))) == BOTH


@pytest.mark.parametrize("server_side", [[], ["--server-side"]], ids=["client", "server"])
@pytest.mark.parametrize("kind", IDLE)
def test_template_can_be_applied_again(plane: ControlPlane, where: str, kind: str, server_side: list[str]) -> None:
    """F18, F23: nothing is configured anew, nothing conflicts."""
    document = workload(kind, where, requests={GPU: "2"})  # quoted: `kubectl apply` compares the letters
    assert apply(plane, document, *server_side).code == 0
    first = plane.api.get(path_of(kind, where))

    again = apply(plane, document, *server_side)

    second = plane.api.get(path_of(kind, where))
    assert (again.code, again.out.split()[-1]) == (0, "serverside-applied" if server_side else "unchanged"), again.err
    assert (first["spec"], first["metadata"].get("generation")) == (second["spec"], second["metadata"]["generation"])


@pytest.mark.parametrize("kind", SCALED)
def test_repaired_workload_scales(plane: ControlPlane, where: str, kind: str) -> None:
    """F18."""
    plane.kubectl.create(workload(kind, where, requests={GPU: 2}))

    assert plane.kubectl("scale", kind, "w", "-n", where, "--replicas=1").code == 0

    eventually("its pod is made", lambda: pods_of(plane, where))


@pytest.mark.parametrize("kind", RESTARTED)
def test_repaired_workload_restarts(plane: ControlPlane, where: str, kind: str) -> None:
    """F18: the annotation that `rollout restart` puts on the template has it judged again, and found in order."""
    plane.kubectl.create(workload(kind, where, requests={GPU: 2}))

    answer = plane.kubectl("rollout", "restart", kind, "w", "-n", where)

    assert answer == Said(0, f"{resource(kind)} restarted\n", "")
    assert amounts(plane.api.get(path_of(kind, where))) == BOTH


@pytest.mark.parametrize("kind", [kind for kind in IDLE if kind != "Job"])
def test_stricter_policy_is_for_templates_that_change(
    plane: ControlPlane, service: Service, policies: Path, where: str, kind: str
) -> None:
    """F18, F26: what stood before the policy is still labelled and scaled; only a new template must obey it."""
    plane.kubectl.create(workload(kind, where, requests={GPU: 2}))
    name = f"cap-{kind.lower()}"
    match = f"match: {{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {where}}}}}}}"
    (policies / f"{name}.yaml").write_text(policy(name, f"{match}, admission: {{maxGPUsPerPod: 1}}"), "utf-8")
    eventually("the policy is in force", lambda: service.metric("gpu_usher_policy_info", policy=name))

    labelled = plane.kubectl("label", kind, "w", "-n", where, "team=a")
    scaled = plane.kubectl("scale", kind, "w", "-n", where, "--replicas=0") if kind in SCALED else labelled
    changed = apply(plane, workload(kind, where, requests={GPU: 2}, image="train:2"))

    assert (labelled.code, scaled.code, changed.code) == (0, 0, 1)
    assert "2 GPUs asked: wants at most 1 per pod" in changed.err


NAMED = container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}])
COSTS: Mapping[str, tuple[list[float], dict[str, Any]]] = {
    "no GPU": ([0, 0], {}),
    "variable": ([1, 1], {"containers": [NAMED]}),
    "init container": ([1, 1], {"initContainers": [container({GPU: 1}, name="a")]}),
}


@pytest.mark.parametrize("case", COSTS)
@pytest.mark.parametrize("kind", IDLE)
def test_template_is_asked_about_where_it_concerns_gpus(
    plane: ControlPlane, service: Service, where: str, kind: str, case: str
) -> None:
    """F22, F18: once each; a dry run, and again where a controller's call for another test is counted too."""
    expected, more = COSTS[case]

    def calls() -> list[float]:
        with counted(service) as found:
            assert plane.kubectl.create(workload(kind, where, limits={"cpu": 1}, **more), dry_run=True).code == 0
        return found

    eventually(f"it costs {expected} calls", lambda: calls() == expected)


@pytest.mark.parametrize("kind", IDLE)
def test_runtime_class_that_is_not_there_is_warned_of(plane: ControlPlane, where: str, kind: str) -> None:
    """F18, F6: the API server takes the template and refuses every pod of it."""
    answer = plane.kubectl.create(workload(kind, where, runtimeClassName="nvidia-cdi"))

    words = "RuntimeClass nvidia-cdi does not exist: no pod of this template would be created"
    assert answer == Said(0, f"{resource(kind)} created\n", f"Warning: {words}\n")


@pytest.mark.parametrize("server_side", [[], ["--server-side"]], ids=["client", "server"])
def test_dry_run_shows_the_template_and_stores_nothing(plane: ControlPlane, where: str, server_side: list[str]) -> None:
    """F18, F7."""
    words = (*server_side, "--dry-run=server", "-o", "json")

    shown = apply(plane, workload("Deployment", where, requests={GPU: 2}), *words)

    assert (shown.code, shown.warnings) == (0, [COPY])
    assert amounts(json.loads(shown.out)) == BOTH
    assert plane.api.client.get(path_of("Deployment", where)).status_code == 404
