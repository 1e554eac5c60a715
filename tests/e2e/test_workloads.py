# SPDX-License-Identifier: Apache-2.0
"""Pods that controllers create are repaired like those of people; exempt pods and CPU pods stay as they are."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from app.kube.pods import DECISION, PREFIX
from tests.builders import container
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import KubectlResult, Object
from tests.e2e.stage import (
    Service,
    authored_fields,
    counted_calls,
    create_namespace,
    create_pod,
    decision,
    eventually,
    install_webhooks,
    plain_pod,
    pods_of,
    serving,
    tolerated,
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
    """The pods of the GPU Operator's operands on a cluster where none of our webhooks is installed."""
    add_nodes(plane.api, FLEET)
    plane.api.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    create_namespace(plane, "gpu-operator")
    return {name: create_operand(plane, name) for name in OPERANDS}


@pytest.fixture(scope="module")
def service(plane: ControlPlane, operands_without_us: dict[str, Object]) -> Iterator[Service]:
    """The service as it is shipped, on a fleet of which one node is tainted."""
    assert operands_without_us.keys() == OPERANDS.keys()
    with serving(plane) as running:
        install_webhooks(plane, running)
        yield running


CHOSEN = {"selector": {"matchLabels": LABELS}}
KINDS: Mapping[str, tuple[str, Object]] = {
    "ReplicaSet": ("apps/v1", CHOSEN),
    "Deployment": ("apps/v1", CHOSEN),
    "StatefulSet": ("apps/v1", {**CHOSEN, "serviceName": "none"}),
    "DaemonSet": ("apps/v1", CHOSEN),
    "Job": ("batch/v1", {}),
}


def workload(kind: str, namespace: str, **pod: Any) -> Object:
    """Write a workload of one pod; arguments as for `plain_pod`."""
    if kind == "Pod":
        return plain_pod(namespace, name="w", **pod)
    if kind == "CronJob":
        job = {"spec": workload("Job", namespace, **pod)["spec"]}
        spec = {"schedule": "0 0 1 1 *", "suspend": True, "jobTemplate": job}
        return {"apiVersion": "batch/v1", "kind": kind, "metadata": {"name": "w", "namespace": namespace}, "spec": spec}
    version, more = KINDS[kind]
    restart: Object = {"restartPolicy": "Never"} if kind == "Job" else {}
    template = plain_pod(namespace, labels=LABELS, **pod, **restart)
    spec = {**more, "template": {"metadata": template["metadata"], "spec": template["spec"]}}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "w", "namespace": namespace}, "spec": spec}


@pytest.mark.parametrize("kind", ["Pod", *KINDS, "CronJob"])
def test_pods_of_every_workload_are_repaired(plane: ControlPlane, namespace: str, kind: str) -> None:
    """F3, F5, F25: a controller creates its pods without a name, and as another user than the workload's."""
    assert plane.kubectl.create(workload(kind, namespace)).code == 0
    if kind == "CronJob":
        assert plane.kubectl("create", "job", "now", "--from=cronjob/w", "-n", namespace).code == 0

    eventually("its pod is made", lambda: pods_of(plane, namespace))

    (pod,) = pods_of(plane, namespace)
    assert tolerated(pod) == [COPIED]
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    first, second, *others = decision(pod)["actions"]
    assert (first, second) == ("runtimeClassName set to nvidia", f"toleration added for {GPU}")
    states = ["required node affinity added on nvidia.com/mig.config.state"]
    assert [action[: len(states[0])] for action in others] == ([] if kind == "DaemonSet" else states)  # its node is set


WORDS = (
    'admission webhook "mutate.gpu-usher.io" denied the request: gpu-usher: gpu-usher.io/cuda does not parse:'
    " version: got 'new', wants digits with dots such as 12.4; correct the annotation, or remove it"
)


def remove(plane: ControlPlane, kind: str, namespace: str, name: str = "w") -> None:
    """Delete a workload and all that it created at once, so that its controller does not try again."""
    result = plane.kubectl("delete", kind, name, "-n", namespace, "--cascade=foreground", "--timeout=20s")
    assert result.code == 0, result.err


def create_denied_workload(plane: ControlPlane, kind: str, namespace: str) -> None:
    """Create a workload in an exempt namespace which then is exempt no more, as if the policy had come later."""
    label = f"{PREFIX}ignore"
    plane.kubectl("label", "namespace", namespace, f"{label}=true")
    eventually("the API server exempts it", lambda: plane.kubectl.create(idle_workload(kind, namespace)).code == 0)
    plane.kubectl("label", "namespace", namespace, f"{label}-")
    assert plane.kubectl("scale", kind, "w", "-n", namespace, "--replicas=1").code == 0


def idle_workload(kind: str, namespace: str) -> Object:
    """Write a workload of no pods, with an annotation that does not parse."""
    document = workload(kind, namespace, annotations={"cuda": "new"})
    document["spec"]["replicas"] = 0
    return document


@pytest.mark.parametrize("kind", ["ReplicaSet", "Deployment", "StatefulSet"])
def test_denied_pod_of_a_workload_shows_our_words_in_an_event(plane: ControlPlane, namespace: str, kind: str) -> None:
    """F8: `kubectl describe` of the workload says what to change, as there is no pod that could show it."""
    chosen = ["--field-selector=reason=FailedCreate", "-o", "jsonpath={.items[0].message}"]

    create_denied_workload(plane, kind, namespace)
    eventually("the event is there", lambda: plane.kubectl("get", "events", "-n", namespace, *chosen).out)

    assert plane.kubectl("get", "events", "-n", namespace, *chosen).out.endswith(WORDS)
    assert pods_of(plane, namespace) == []
    remove(plane, kind, namespace)


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


def create_operand(plane: ControlPlane, name: str) -> Object:
    """Create an operand, wait for its pod, delete both, and return what is written in the pod."""
    kind, shape = OPERANDS[name]
    result = plane.kubectl.create(workload(kind, "gpu-operator", **shape))
    assert result == KubectlResult(0, result.out, "")
    eventually("its pod is made", lambda: pods_of(plane, "gpu-operator"))
    (pod,) = pods_of(plane, "gpu-operator")
    if kind == "Pod":
        plane.api.delete("/api/v1/namespaces/gpu-operator/pods/w")  # no kubelet would finish its deletion
    else:
        remove(plane, kind, "gpu-operator")
    return authored_fields(pod)


@pytest.mark.parametrize("name", OPERANDS)
def test_operand_of_the_gpu_operator_is_what_it_is_without_us(
    plane: ControlPlane, service: Service, operands_without_us: dict[str, Object], name: str
) -> None:
    """F21, S2: it costs no call, also while we are down, and equals the one without us byte for byte."""
    with counted_calls(service) as calls:
        operand = create_operand(plane, name)

    assert calls == [0, 0]
    assert json.dumps(operands_without_us[name], sort_keys=True) == json.dumps(operand, sort_keys=True)


def exempt_twin(plane: ControlPlane, pod: Object) -> Object:
    """Create the same pod in an exempt namespace, and return what is written in it."""
    exempt = create_namespace(plane, f"{pod['metadata']['namespace']}-exempt", **{"gpu-usher.io/ignore": "true"})
    return authored_fields(create_pod(plane, {**pod, "metadata": {**pod["metadata"], "namespace": exempt}}))


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


def test_all_that_is_not_ours_passes_unchanged(plane: ControlPlane, namespace: str) -> None:
    """F24: without what we add, the pod equals the one that the API server makes without us."""
    pod = plain_pod(namespace, **RICH)

    admitted = create_pod(plane, pod)

    assert admitted["metadata"]["annotations"].pop(DECISION)
    assert admitted["spec"].pop("runtimeClassName") == "nvidia"
    admitted["spec"]["tolerations"].remove(COPIED)
    assert admitted["spec"].pop("affinity")  # the products that batch inference prefers
    assert exempt_twin(plane, pod) == authored_fields(admitted)
