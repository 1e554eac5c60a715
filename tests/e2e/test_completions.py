# SPDX-License-Identifier: Apache-2.0
"""What policies add to a pod: classes, defaults, other slices, needs as affinity."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.builders import container, policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import KubectlResult, Object
from tests.e2e.offers import dra_path
from tests.e2e.stage import (
    OURS,
    Service,
    authored_fields,
    create_namespace,
    create_pod,
    eventually,
    install_webhooks,
    own_policies,
    plain_pod,
    read_pod,
    serving,
    tolerated,
    wait_for_node,
    wait_for_refusal,
)

GPU, SMALL, LARGE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"
SIZED = f"{GPU} replaced by {LARGE}"
DONE, NOT_DONE = (
    f"{SIZED}: gpu-memory asks for 15360 MiB, and the slice has 20480 MiB",
    f"not done, policy only warns: {SIZED}",
)
AT_LEAST = {"mig-profile": ">=1g.10gb"}
ANY_GPU = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}


def gpu_node(name: str, product: str, driver: str, offers: Object, memory: int, capability: str, **more: str) -> Object:
    """Write a node with the labels of GPU Feature Discovery; `more` holds further labels of it."""
    major, minor = capability.split(".")
    size = {"memory": str(memory), "compute.major": major, "compute.minor": minor}
    features = {"present": "true", "count": str(offers.get(GPU, 1)), **size, **more}
    return node_object(
        name, product, driver, offers, labels={f"nvidia.com/gpu.{key}": features[key] for key in features}
    )


TIME_SLICED = {"sharing-strategy": "time-slicing", "count": "8", "replicas": "8"}
FLEET = (
    gpu_node("h100", "NVIDIA-H100-80GB-HBM3", "570.124.06", {GPU: 64}, 81559, "9.0"),
    gpu_node("t4", "Tesla-T4", "470.82.01", {GPU: 64}, 15360, "7.5"),
    gpu_node("l4", "NVIDIA-L4-SHARED", "570.124.06", {GPU: 64}, 23034, "8.9", **TIME_SLICED),
    gpu_node("slices", "NVIDIA-A100-SXM4-80GB", "570.124.06", {LARGE: 3}, 81920, "8.0"),
    node_object("cpu", None, None, {}),
)
CLASSES: Mapping[str, Object] = {
    **{f"/apis/node.k8s.io/v1/runtimeclasses/{name}": {"handler": "x"} for name in ("nvidia", "nvidia-cdi")},
    "/apis/node.k8s.io/v1/runtimeclasses/nvidia-b": {"handler": "x", "scheduling": {"nodeSelector": {"zone": "b"}}},
    "/apis/scheduling.k8s.io/v1/priorityclasses/gpu-high": {"value": 1000},
    "/apis/scheduling.k8s.io/v1/priorityclasses/gpu-low": {"value": 10, "preemptionPolicy": "Never"},
}
OWN = {
    "class": "admission: {priorityClassName: gpu-high}",
    "override": "admission: {override: true, priorityClassName: gpu-high, runtimeClassName: nvidia-cdi,"
    f" schedulerName: {OURS}}}",
    "defaults": "admission: {defaults: {cpuPerGPU: '4', memoryPerGPU: 16Gi, driverCapabilities: 'compute,utility'}}",
    "memory": "admission: {defaults: {sharedMemory: 8Gi}}",
    "zone": "admission: {runtimeClassName: nvidia-b}",
    "sizing": "admission: {rightSizing: true}",
    "sizing-warn": "action: Warn, admission: {rightSizing: true}",
}
"""Policies by the value of the pod label `test`."""


@pytest.fixture(scope="module")
def service(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service with the shipped policies and those of these tests."""
    match = "priority: 9, match: {{podSelector: {{matchLabels: {{test: {}}}}}}}"
    texts = {f"own-{name}": policy(f"own-{name}", f"{match.format(name)}, {spec}") for name, spec in OWN.items()}
    folder = own_policies(tmp_path_factory.mktemp("own"), texts)
    add_nodes(plane.api, FLEET)
    for path, fields in CLASSES.items():
        plane.api.create(path.rpartition("/")[0], {"metadata": {"name": path.rpartition("/")[2]}, **fields})
    with serving(plane, policies=str(folder)) as running:
        install_webhooks(plane, running)
        yield running


@pytest.fixture(scope="module")
def scheduler(plane: ControlPlane, service: Service) -> None:
    """A plain kube-scheduler without an extender."""
    assert service.process.running
    plane.start_scheduler({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"})


def created_spec(plane: ControlPlane, namespace: str, test: str, limits: Object | None = None, **more: Any) -> Object:
    """Create a pod under one of these tests' policies, and return its spec."""
    return dict(create_pod(plane, plain_pod(namespace, limits, labels={"test": test}, **more))["spec"])


def idle_deployment(pod: Object) -> Object:
    """Write a Deployment of no pods whose template is that of a pod."""
    metadata = {"labels": {"app": "a"}, "annotations": pod["metadata"]["annotations"]}
    template = {"metadata": metadata, "spec": pod["spec"]}
    spec = {"selector": {"matchLabels": {"app": "a"}}, "template": template, "replicas": 0}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {**pod["metadata"], "name": "w"}, "spec": spec}


HIGH, LOW = ("gpu-high", 1000, "PreemptLowerPriority"), ("gpu-low", 10, "Never")


def priority(spec: Object) -> tuple[str, int, str]:
    return spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]


@pytest.mark.parametrize(("named", "expected"), [({}, HIGH), ({"priorityClassName": "gpu-low"}, LOW)])
def test_priority_class_of_the_policy(plane: ControlPlane, namespace: str, named: Object, expected: object) -> None:
    """The policy's class is set only where the pod names none; the API server then resolves the priority anew."""
    assert priority(created_spec(plane, namespace, "class", **named)) == expected


def test_classes_of_the_pod_are_overridden_where_the_policy_says_so(plane: ControlPlane, namespace: str) -> None:
    spec = created_spec(plane, namespace, "override", priorityClassName="gpu-low", runtimeClassName="nvidia")

    assert (priority(spec), spec["runtimeClassName"], spec["schedulerName"]) == (HIGH, "nvidia-cdi", OURS)


def test_scheduler_of_the_pod_is_overridden_where_the_policy_says_so(plane: ControlPlane, namespace: str) -> None:
    """The policy's schema describes this effect of `override`."""
    assert created_spec(plane, namespace, "override", schedulerName="volcano")["schedulerName"] == OURS


def test_pod_of_another_scheduler_is_what_it_is_without_us(plane: ControlPlane, namespace: str) -> None:
    """S14: a pod that names another scheduler is left as its author wrote it."""
    exempt = create_namespace(plane, f"{namespace}-exempt", **{"gpu-usher.io/ignore": "true"})
    pods = [plain_pod(name, schedulerName="volcano", labels={"test": "defaults"}) for name in (namespace, exempt)]

    assert plane.kubectl.create(*pods) == KubectlResult(0, "pod/p created\n" * 2, "")

    assert authored_fields(read_pod(plane, pods[0])) == authored_fields(read_pod(plane, pods[1]))


def test_containers_that_ask_for_gpus_get_what_they_do_not_say(plane: ControlPlane, namespace: str) -> None:
    """The policy's CPU and memory per GPU and its driver capabilities fill in what a container leaves out."""
    name = "NVIDIA_DRIVER_CAPABILITIES"
    says = container({GPU: 1, "cpu": 1}, name="says", env=[{"name": name, "value": "video"}])

    spec = created_spec(
        plane, namespace, "defaults", containers=[container({GPU: 2}, name="two"), says, container(name="none")]
    )

    two, one, none = ((document["resources"].get("requests"), document.get("env")) for document in spec["containers"])
    assert two == ({GPU: "2", "cpu": "8", "memory": "32Gi"}, [{"name": name, "value": "compute,utility"}])
    assert one == ({GPU: "1", "cpu": "1", "memory": "16Gi"}, [{"name": name, "value": "video"}])
    assert none == (None, None)


MEMORY = {"name": "gpu-usher-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
OWN_VOLUME = {"name": "mine", "emptyDir": {"medium": "Memory"}}
MOUNTING = container({GPU: 2}, volumeMounts=[{"name": "mine", "mountPath": "/dev/shm"}])
OWN_MOUNT: Object = {"containers": [MOUNTING], "volumes": [OWN_VOLUME]}
SHARED = [({"limits": {GPU: 1}}, []), ({"limits": {GPU: 2}}, [MEMORY]), (OWN_MOUNT, [OWN_VOLUME])]


@pytest.mark.parametrize(("pod", "volumes"), SHARED, ids=["one GPU", "two", "two, mounted already"])
def test_shared_memory_is_for_two_gpus(plane: ControlPlane, namespace: str, pod: Object, volumes: list[Object]) -> None:
    """F129."""
    spec = created_spec(plane, namespace, "memory", **pod)

    assert spec.get("volumes", []) == volumes
    assert [mount["name"] for mount in spec["containers"][0].get("volumeMounts", [])] == [v["name"] for v in volumes]


def test_runtime_class_that_selects_other_nodes_is_not_set(plane: ControlPlane, namespace: str) -> None:
    """F6: the API server would refuse a pod with that class, because the node selectors conflict."""
    pod = plain_pod(namespace, labels={"test": "zone"}, nodeSelector={"zone": "a"})

    answer = plane.kubectl.create(pod)

    words = "RuntimeClass nvidia-b selects nodes with zone=b, the pod others: runtimeClassName not set"
    assert answer == KubectlResult(0, "pod/p created\n", f"Warning: {words}\n")
    assert "runtimeClassName" not in read_pod(plane, pod)["spec"]


def test_slice_that_no_node_has_is_made_the_smallest_that_covers_it(plane: ControlPlane, namespace: str) -> None:
    """F59 (docs/reference/sharing-and-memory.md#mig-at-least)."""
    pod = plain_pod(namespace, {SMALL: 1}, annotations=AT_LEAST)

    answer = plane.kubectl.create(pod)

    assert answer == KubectlResult(0, "pod/p created\n", f"Warning: {SMALL} replaced by {LARGE}: no node has {SMALL}\n")
    assert read_pod(plane, pod)["spec"]["containers"][0]["resources"]["requests"] == {LARGE: "1"}


def test_slice_in_a_template_is_left_as_it_is(plane: ControlPlane, namespace: str) -> None:
    """F59, F18: the fleet may have changed by the time when the template's pods are created."""
    answer = plane.kubectl.create(idle_deployment(plain_pod(namespace, {SMALL: 1}, annotations=AT_LEAST)))

    template = plane.api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/w")["spec"]["template"]
    assert answer == KubectlResult(0, "deployment.apps/w created\n", "")
    assert template["spec"]["containers"][0]["resources"] == {"limits": {SMALL: "1"}}


@pytest.mark.parametrize(("test", "expected", "words"), [("sizing", LARGE, DONE), ("sizing-warn", GPU, NOT_DONE)])
def test_gpu_is_made_a_slice(plane: ControlPlane, namespace: str, test: str, expected: str, words: str) -> None:
    """F130."""
    pod = plain_pod(namespace, labels={"test": test}, annotations={"gpu-memory": "15Gi"})

    answer = plane.kubectl.create(pod)

    assert answer == KubectlResult(0, "pod/p created\n", f"Warning: {words}\n")
    assert read_pod(plane, pod)["spec"]["containers"][0]["resources"]["limits"] == {expected: "1"}


def test_pod_that_claims_a_gpu_is_completed_too(plane: ControlPlane, namespace: str) -> None:
    """S13: the ResourceClaimTemplate that the pod names says what it claims."""
    dra = dra_path(plane)
    plane.api.create(f"{dra}/deviceclasses", {"metadata": {"name": "gpu.nvidia.com"}})
    claim_spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    template = {"metadata": {"name": "one"}, "spec": {"spec": claim_spec}}
    plane.api.create(f"{dra}/namespaces/{namespace}/resourceclaimtemplates", template)
    claiming: Object = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}
    pod = plain_pod(namespace, containers=[{**container(), "resources": {"claims": [{"name": "gpu"}]}}], **claiming)
    eventually("we know the template", lambda: GPU in plane.kubectl.create(pod, dry_run=True).out)

    admitted = create_pod(plane, pod)

    assert tolerated(admitted) == [ANY_GPU]
    assert "runtimeClassName" not in admitted["spec"]  # the DRA driver hands devices over by itself


NEEDS = {"gpu-memory: 40Gi": ("h100", "l4"), "compute-capability: 8.0": ("l4", "t4"), "cuda: 12.4": ("l4", "t4")}
NEEDS |= {"sharing: Exclusive": ("t4", "l4"), "sharing: Shared": ("l4", "h100"), "products: T4": ("t4", "h100")}
"""Annotation → a node that fits, and one that does not."""


@pytest.mark.usefixtures("scheduler")
@pytest.mark.parametrize("need", NEEDS)
def test_need_is_honoured_by_a_scheduler_that_asks_nobody(plane: ControlPlane, namespace: str, need: str) -> None:
    """P16, P28, F10, F136: the need is written as node affinity that the API server accepts."""
    key, _, value = need.partition(": ")
    selections: list[Object] = [
        {"name": node, "nodeSelector": {"kubernetes.io/hostname": node}} for node in NEEDS[need]
    ]

    pods = [create_pod(plane, plain_pod(namespace, annotations={key: value}, **selection)) for selection in selections]

    assert wait_for_node(plane, pods[0]) == NEEDS[need][0]
    assert "didn't match Pod's node affinity/selector" in wait_for_refusal(plane, pods[1])
