# SPDX-License-Identifier: Apache-2.0
"""Pods that controllers make are repaired like those that people make; pods that are not ours to change are not."""

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from app.kube.pods import DECISION, PREFIX
from tests.builders import container
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
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
    serving,
    tolerated,
    written,
)

GPU = "nvidia.com/gpu"
TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}
COPIED = {**TAINT, "operator": "Equal"}
FLEET = (
    node_object("h100", taints=[TAINT], labels={"nvidia.com/gpu.deploy.device-plugin": "true"}),
    node_object("t4", "Tesla-T4", offers={GPU: 4}),
)
LABELS = {"app": "train"}


@pytest.fixture(scope="module")
def operands_without_us(plane: ControlPlane) -> dict[str, Object]:
    """What the operands of the GPU Operator are on a cluster where no webhook of ours is installed."""
    add_nodes(plane.api, FLEET)
    plane.api.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    namespace(plane, "gpu-operator")
    return {name: operand_made(plane, name) for name in OPERANDS}


@pytest.fixture(scope="module")
def service(plane: ControlPlane, operands_without_us: dict[str, Object]) -> Iterator[Service]:
    """The service as it is shipped, on a fleet of which one node is tainted."""
    assert operands_without_us.keys() == OPERANDS.keys()
    with serving(plane) as running:
        install_webhooks(plane, running)
        yield running


@pytest.fixture
def where(plane: ControlPlane, service: Service, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own, where the webhooks are at work."""
    assert service.process.running
    return namespace(plane, f"workloads-{zlib.crc32(request.node.name.encode()):08x}")


CHOSEN = {"selector": {"matchLabels": LABELS}}
KINDS: Mapping[str, tuple[str, Object]] = {
    "ReplicaSet": ("apps/v1", CHOSEN),
    "Deployment": ("apps/v1", CHOSEN),
    "StatefulSet": ("apps/v1", {**CHOSEN, "serviceName": "none"}),
    "DaemonSet": ("apps/v1", CHOSEN),
    "Job": ("batch/v1", {}),
}


def workload(kind: str, where: str, **pod: Any) -> Object:
    """Make a workload of one pod; arguments as `plain_pod`."""
    if kind == "Pod":
        return plain_pod(where, name="w", **pod)
    if kind == "CronJob":
        job = {"spec": workload("Job", where, **pod)["spec"]}
        spec = {"schedule": "0 0 1 1 *", "suspend": True, "jobTemplate": job}
        return {"apiVersion": "batch/v1", "kind": kind, "metadata": {"name": "w", "namespace": where}, "spec": spec}
    version, more = KINDS[kind]
    restart: Object = {"restartPolicy": "Never"} if kind == "Job" else {}
    template = plain_pod(where, labels=LABELS, **pod, **restart)
    spec = {**more, "template": {"metadata": template["metadata"], "spec": template["spec"]}}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "w", "namespace": where}, "spec": spec}


def pods_of(plane: ControlPlane, where: str) -> list[Object]:
    """List the pods of a namespace."""
    return plane.api.items(f"/api/v1/namespaces/{where}/pods")


@pytest.mark.parametrize("kind", ["Pod", *KINDS, "CronJob"])
def test_pods_of_every_workload_are_repaired(plane: ControlPlane, where: str, kind: str) -> None:
    """F3, F5, F25: whoever makes the pod; controllers' pods come without a name, and not by their user."""
    assert plane.kubectl.create(workload(kind, where)).code == 0
    if kind == "CronJob":
        assert plane.kubectl("create", "job", "now", "--from=cronjob/w", "-n", where).code == 0

    eventually("its pod is made", lambda: pods_of(plane, where))

    (pod,) = pods_of(plane, where)
    assert tolerated(pod) == [COPIED]
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    first, second, third = decision(pod)["actions"]
    assert (first, second) == ("runtimeClassName set to nvidia", f"toleration added for {GPU}")
    assert third.startswith("required node affinity added on nvidia.com/mig.config.state")


WORDS = (
    'admission webhook "mutate.gpu-usher.io" denied the request: gpu-usher: gpu-usher.io/cuda does not parse:'
    " version: got 'new', wants digits with dots such as 12.4 (write the annotation as policies/README.md says)"
)


def remove(plane: ControlPlane, kind: str, where: str, name: str = "w") -> None:
    """Delete a workload and all that it made, at once, so that its controller tries no more."""
    said = plane.kubectl("delete", kind, name, "-n", where, "--cascade=foreground", "--timeout=20s")
    assert said.code == 0, said.err


def denied(plane: ControlPlane, kind: str, where: str) -> None:
    """Make a workload where nobody looks, and its pods where we do, as after a policy that came later."""
    label = f"{PREFIX}ignore"
    plane.kubectl("label", "namespace", where, f"{label}=true")
    eventually("the API server exempts it", lambda: plane.kubectl.create(idle(kind, where)).code == 0)
    plane.kubectl("label", "namespace", where, f"{label}-")
    assert plane.kubectl("scale", kind, "w", "-n", where, "--replicas=1").code == 0


def idle(kind: str, where: str) -> Object:
    """Make a workload of no pods, with an annotation that does not parse."""
    found = workload(kind, where, annotations={"cuda": "new"})
    found["spec"]["replicas"] = 0
    return found


@pytest.mark.parametrize("kind", ["ReplicaSet", "Deployment", "StatefulSet"])
def test_denied_pod_of_a_workload_shows_our_words_in_an_event(plane: ControlPlane, where: str, kind: str) -> None:
    """F8: `kubectl describe` of the workload says what to change; nothing else could, the pod never exists."""
    chosen = ["--field-selector=reason=FailedCreate", "-o", "jsonpath={.items[0].message}"]

    denied(plane, kind, where)
    eventually("the event is there", lambda: plane.kubectl("get", "events", "-n", where, *chosen).out)

    assert plane.kubectl("get", "events", "-n", where, *chosen).out.endswith(WORDS)
    assert pods_of(plane, where) == []
    remove(plane, kind, where)


def test_deployment_whose_pods_are_denied_says_so_in_its_condition(plane: ControlPlane, where: str) -> None:
    """F8: `kubectl get deployment -o yaml` and rollout tools look here."""
    path = f"/apis/apps/v1/namespaces/{where}/deployments/w"

    def failure() -> list[Object]:
        conditions = plane.api.get(path)["status"].get("conditions") or []
        return [each for each in conditions if each["type"] == "ReplicaFailure"]

    denied(plane, "Deployment", where)
    eventually("the condition is there", failure)

    (found,) = failure()
    assert (found["status"], found["reason"], found["message"].endswith(WORDS)) == ("True", "FailedCreate", True)
    remove(plane, "Deployment", where)


def test_daemonset_makes_no_pod_for_a_tainted_node_that_its_template_does_not_tolerate(
    plane: ControlPlane, where: str
) -> None:
    """F18, a limit: the controller judges taints by the template, where only amounts are repaired; one is told."""

    def status() -> Object:
        found: Object = plane.api.get(f"/apis/apps/v1/namespaces/{where}/daemonsets/w")["status"]
        return found

    said = plane.kubectl.create(workload("DaemonSet", where))
    eventually("its controller has counted", lambda: status()["currentNumberScheduled"])

    (pod,) = pods_of(plane, where)
    assert status()["desiredNumberScheduled"] == 1
    assert "'t4'" in str(pod["spec"]["affinity"])
    assert "its pods stay off tainted nodes" in said.err


DEVICE_PLUGIN = {
    "priorityClassName": "system-node-critical",
    "runtimeClassName": "nvidia",
    "nodeSelector": {"nvidia.com/gpu.deploy.device-plugin": "true"},
    "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
    "initContainers": [container(name="toolkit-validation")],
    "containers": [
        container(
            env=[{"name": f"NVIDIA_{name}", "value": "all"} for name in ("VISIBLE_DEVICES", "DRIVER_CAPABILITIES")]
        )
    ],
}
VALIDATOR = {
    "nodeName": "h100",
    "restartPolicy": "OnFailure",
    "runtimeClassName": "nvidia",
    "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
    "initContainers": [container({GPU: 1}, name="plugin-validation")],
    "containers": [container()],
}
OPERANDS: Mapping[str, tuple[str, Object]] = {
    "device plugin": ("DaemonSet", DEVICE_PLUGIN),
    "validator": ("Pod", VALIDATOR),
}
"""Shapes of NVIDIA/gpu-operator assets/state-device-plugin/0500_daemonset.yaml, less `privileged`, and of
validator/plugin-workload-validation.yaml, in which validator/main.go fills in the node and the GPU."""


def operand_made(plane: ControlPlane, name: str) -> Object:
    """Make an operand, wait for its pod, remove both; gives what is written in the pod."""
    kind, shape = OPERANDS[name]
    said = plane.kubectl.create(workload(kind, "gpu-operator", **shape))
    assert said == Said(0, said.out, "")
    eventually("its pod is made", lambda: pods_of(plane, "gpu-operator"))
    (pod,) = pods_of(plane, "gpu-operator")
    if kind == "Pod":
        plane.api.delete("/api/v1/namespaces/gpu-operator/pods/w")  # bound: no kubelet would ever let it go
    else:
        remove(plane, kind, "gpu-operator")
    return written(pod)


@pytest.mark.parametrize("name", OPERANDS)
def test_operand_of_the_gpu_operator_is_what_it_is_without_us(
    plane: ControlPlane, service: Service, operands_without_us: dict[str, Object], name: str
) -> None:
    """F21, S2: without a call, so even while we are away; and to the byte."""
    with counted(service) as calls:
        found = operand_made(plane, name)

    assert calls == [0, 0]
    assert json.dumps(operands_without_us[name], sort_keys=True) == json.dumps(found, sort_keys=True)


def exempt_twin(plane: ControlPlane, pod: Object) -> Object:
    """Create the same pod where we are not asked; gives what is written in it."""
    exempt = namespace(plane, f"{pod['metadata']['namespace']}-exempt", **{"gpu-usher.io/ignore": "true"})
    return written(create_pod(plane, {**pod, "metadata": {**pod["metadata"], "namespace": exempt}}))


def test_pod_that_asks_for_zero_gpus_is_left_as_it_is(plane: ControlPlane, where: str) -> None:
    """P33, F9: kubernetes#125426."""
    pod = plain_pod(where, {GPU: 0, "cpu": 1})

    answer = plane.kubectl.create(pod)

    assert answer == Said(0, "pod/p created\n", "")
    assert exempt_twin(plane, pod) == written(read_pod(plane, pod))


RICH: dict[str, Any] = {
    "annotations": {"workload-class": "batch-inference"},
    "labels": {"example.com/empty": ""},
    "hostAliases": [{"ip": "192.0.2.1", "hostnames": ["a.example"]}],
    "readinessGates": [{"conditionType": "example.com/ready"}],
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "containers": [container({GPU: 1}, env=[{"name": "~1/", "value": "$(A)\n\t\u2028ü"}], lifecycle={})],
}


def test_all_that_is_not_ours_passes_unchanged(plane: ControlPlane, where: str) -> None:
    """F24: less what we add, the pod is the one that the API server makes without us."""
    pod = plain_pod(where, **RICH)

    admitted = create_pod(plane, pod)

    assert admitted["metadata"]["annotations"].pop(DECISION)
    assert admitted["spec"].pop("runtimeClassName") == "nvidia"
    admitted["spec"]["tolerations"].remove(COPIED)
    assert admitted["spec"].pop("affinity")  # the products that batch inference prefers
    assert exempt_twin(plane, pod) == written(admitted)
