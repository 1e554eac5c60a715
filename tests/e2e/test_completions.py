# SPDX-License-Identifier: Apache-2.0
"""What policies add to a pod: classes, defaults, other slices, needs as affinity, a place off the GPU nodes."""

import base64
import json
import shutil
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from app.admission.cpu_guard import CPU_GUARD, PRESENT
from app.cluster.files import shipped_policies
from tests.builders import container, policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object, Said
from tests.e2e.stage import (
    DEPLOY,
    OURS,
    Service,
    create_pod,
    eventually,
    install_webhooks,
    namespace,
    node_of,
    plain_pod,
    read_pod,
    refused,
    serving,
    tolerated,
    written,
)

GPU, SMALL, LARGE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"
SIZED = f"{GPU} made {LARGE}"
DONE, NOT_DONE = f"{SIZED}: 15360 MiB is all that gpu-memory asks", f"not done, policy only warns: {SIZED}"
AT_LEAST = {"mig-profile": ">=1g.10gb"}
ANY_GPU = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}


def gpu_node(name: str, product: str, driver: str, offers: Object, memory: int, capability: str, **more: str) -> Object:
    """Make a node with GPU Feature Discovery's labels; `more`: others of them."""
    major, minor = capability.split(".")
    size = {"memory": str(memory), "compute.major": major, "compute.minor": minor}
    found = {"present": "true", "count": str(offers.get(GPU, 1)), **size, **more}
    return node_object(name, product, driver, offers, labels={f"nvidia.com/gpu.{key}": found[key] for key in found})


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
    """The service with the shipped policies and the tests' own, and the webhook of the cpu-guard."""
    folder = shutil.copytree(shipped_policies(), tmp_path_factory.mktemp("own") / "policies")
    for name, spec in OWN.items():
        match = f"priority: 9, match: {{podSelector: {{matchLabels: {{test: {name}}}}}}}"
        (folder / f"own-{name}.yaml").write_text(policy(f"own-{name}", f"{match}, {spec}"), "utf-8")
    add_nodes(plane.api, FLEET)
    for path, fields in CLASSES.items():
        plane.api.create(path.rpartition("/")[0], {"metadata": {"name": path.rpartition("/")[2]}, **fields})
    with serving(plane, policies=str(folder)) as running:
        install_webhooks(plane, running)
        install_cpu_guard(plane, running)
        yield running


def install_cpu_guard(plane: ControlPlane, service: Service) -> None:
    """Install the webhook of the component, pointed at the process."""
    document = yaml.safe_load((DEPLOY / "components" / "cpu-guard" / "webhook.yaml").read_text("utf-8"))
    ca = base64.b64encode(service.ca.read_bytes()).decode()
    for webhook in document["webhooks"]:
        webhook["clientConfig"] = {"url": service.url + webhook["clientConfig"]["service"]["path"], "caBundle": ca}
    assert plane.kubectl("apply", "-f", "-", stdin=json.dumps(document)).code == 0
    probe = plain_pod(namespace(plane, "cpu-guard-probe", **{CPU_GUARD: "required"}), {"cpu": 1})
    eventually("the API server calls it", lambda: PRESENT in plane.kubectl.create(probe, dry_run=True).out)


@pytest.fixture(scope="module")
def scheduler(plane: ControlPlane, service: Service) -> None:
    """A plain kube-scheduler that asks nobody."""
    assert service.process.running
    plane.start_scheduler({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"})


@pytest.fixture
def where(plane: ControlPlane, service: Service, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own, where the webhooks are at work."""
    assert service.process.running
    return namespace(plane, f"completions-{zlib.crc32(request.node.name.encode()):08x}")


def made(plane: ControlPlane, where: str, test: str, limits: Object | None = None, **more: Any) -> Object:
    """Create a pod under one of the tests' own policies; gives its spec."""
    return dict(create_pod(plane, plain_pod(where, limits, labels={"test": test}, **more))["spec"])


def workload(kind: str, pod: Object) -> Object:
    """Make a workload of pods like this one; a Deployment makes none."""
    metadata = {"labels": {"app": "a"}, "annotations": pod["metadata"]["annotations"]}
    spec: Object = {"selector": {"matchLabels": {"app": "a"}}, "template": {"metadata": metadata, "spec": pod["spec"]}}
    spec |= {"replicas": 0} if kind == "Deployment" else {}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {**pod["metadata"], "name": "w"}, "spec": spec}


HIGH, LOW = ("gpu-high", 1000, "PreemptLowerPriority"), ("gpu-low", 10, "Never")


def priority(spec: Object) -> tuple[str, int, str]:
    return spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]


@pytest.mark.parametrize(("named", "expected"), [({}, HIGH), ({"priorityClassName": "gpu-low"}, LOW)])
def test_priority_class_of_the_policy(plane: ControlPlane, where: str, named: Object, expected: object) -> None:
    """Only where the pod names none; what the API server had worked out of that is worked out anew."""
    assert priority(made(plane, where, "class", **named)) == expected


def test_classes_of_the_pod_are_overridden_where_the_policy_says_so(plane: ControlPlane, where: str) -> None:
    spec = made(plane, where, "override", priorityClassName="gpu-low", runtimeClassName="nvidia")

    assert (priority(spec), spec["runtimeClassName"], spec["schedulerName"]) == (HIGH, "nvidia-cdi", OURS)


def test_scheduler_of_the_pod_is_overridden_where_the_policy_says_so(plane: ControlPlane, where: str) -> None:
    """As the policy's schema says of `override`."""
    assert made(plane, where, "override", schedulerName="volcano")["schedulerName"] == OURS


def test_pod_of_another_scheduler_is_what_it_is_without_us(plane: ControlPlane, where: str) -> None:
    """S14: its own scheduler knows what it wants of it."""
    exempt = namespace(plane, f"{where}-exempt", **{"gpu-usher.io/ignore": "true"})
    pods = [plain_pod(each, schedulerName="volcano", labels={"test": "defaults"}) for each in (where, exempt)]

    assert plane.kubectl.create(*pods) == Said(0, "pod/p created\n" * 2, "")

    assert written(read_pod(plane, pods[0])) == written(read_pod(plane, pods[1]))


def test_containers_that_ask_for_gpus_get_what_they_do_not_say(plane: ControlPlane, where: str) -> None:
    """CPU and memory for each GPU, and the driver's libraries."""
    name = "NVIDIA_DRIVER_CAPABILITIES"
    says = container({GPU: 1, "cpu": 1}, name="says", env=[{"name": name, "value": "video"}])

    spec = made(plane, where, "defaults", containers=[container({GPU: 2}, name="two"), says, container(name="none")])

    two, one, none = ((each["resources"].get("requests"), each.get("env")) for each in spec["containers"])
    assert two == ({GPU: "2", "cpu": "8", "memory": "32Gi"}, [{"name": name, "value": "compute,utility"}])
    assert one == ({GPU: "1", "cpu": "1", "memory": "16Gi"}, [{"name": name, "value": "video"}])
    assert none == (None, None)


MEMORY = {"name": "gpu-usher-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
MINE = {"name": "mine", "emptyDir": {"medium": "Memory"}}
MOUNTING = container({GPU: 2}, volumeMounts=[{"name": "mine", "mountPath": "/dev/shm"}])
OWN_MOUNT: Object = {"containers": [MOUNTING], "volumes": [MINE]}
SHARED = [({"limits": {GPU: 1}}, []), ({"limits": {GPU: 2}}, [MEMORY]), (OWN_MOUNT, [MINE])]


@pytest.mark.parametrize(("pod", "volumes"), SHARED, ids=["one GPU", "two", "two, mounted already"])
def test_shared_memory_is_for_two_gpus(plane: ControlPlane, where: str, pod: Object, volumes: list[Object]) -> None:
    """F129."""
    spec = made(plane, where, "memory", **pod)

    assert spec.get("volumes", []) == volumes
    assert [each["name"] for each in spec["containers"][0].get("volumeMounts", [])] == [v["name"] for v in volumes]


def test_runtime_class_that_selects_other_nodes_is_not_set(plane: ControlPlane, where: str) -> None:
    """F6: set, it would have the API server refuse the pod."""
    pod = plain_pod(where, labels={"test": "zone"}, nodeSelector={"zone": "a"})

    answer = plane.kubectl.create(pod)

    words = "RuntimeClass nvidia-b selects nodes with zone=b, the pod others: runtimeClassName not set"
    assert answer == Said(0, "pod/p created\n", f"Warning: {words}\n")
    assert "runtimeClassName" not in read_pod(plane, pod)["spec"]


def test_slice_that_no_node_has_is_made_the_smallest_that_covers_it(plane: ControlPlane, where: str) -> None:
    """F59 (docs/reference/sharing-and-memory.md#mig-at-least)."""
    pod = plain_pod(where, {SMALL: 1}, annotations=AT_LEAST)

    answer = plane.kubectl.create(pod)

    assert answer == Said(0, "pod/p created\n", f"Warning: {SMALL} made {LARGE}: no node has {SMALL}\n")
    assert read_pod(plane, pod)["spec"]["containers"][0]["resources"]["requests"] == {LARGE: "1"}


def test_slice_in_a_template_is_left_as_it_is(plane: ControlPlane, where: str) -> None:
    """F59, F18: the fleet may be another when its pods come."""
    answer = plane.kubectl.create(workload("Deployment", plain_pod(where, {SMALL: 1}, annotations=AT_LEAST)))

    template = plane.api.get(f"/apis/apps/v1/namespaces/{where}/deployments/w")["spec"]["template"]
    assert answer == Said(0, "deployment.apps/w created\n", "")
    assert template["spec"]["containers"][0]["resources"] == {"limits": {SMALL: "1"}}


@pytest.mark.parametrize(("test", "asked", "words"), [("sizing", LARGE, DONE), ("sizing-warn", GPU, NOT_DONE)])
def test_gpu_is_made_a_slice(plane: ControlPlane, where: str, test: str, asked: str, words: str) -> None:
    """F130."""
    pod = plain_pod(where, labels={"test": test}, annotations={"gpu-memory": "15Gi"})

    answer = plane.kubectl.create(pod)

    assert answer == Said(0, "pod/p created\n", f"Warning: {words}\n")
    assert read_pod(plane, pod)["spec"]["containers"][0]["resources"]["limits"] == {asked: "1"}


def test_pod_that_claims_a_gpu_is_completed_too(plane: ControlPlane, where: str) -> None:
    """S13: what it claims stands in the template that it names."""
    dra = "/apis/resource.k8s.io/v1"
    plane.api.create(f"{dra}/deviceclasses", {"metadata": {"name": "gpu.nvidia.com"}})
    asked = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    template = {"metadata": {"name": "one"}, "spec": {"spec": asked}}
    plane.api.create(f"{dra}/namespaces/{where}/resourceclaimtemplates", template)
    claiming: Object = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}
    pod = plain_pod(where, containers=[{**container(), "resources": {"claims": [{"name": "gpu"}]}}], **claiming)
    eventually("we know the template", lambda: GPU in plane.kubectl.create(pod, dry_run=True).out)

    admitted = create_pod(plane, pod)

    assert (tolerated(admitted), admitted["spec"]["runtimeClassName"]) == ([ANY_GPU], "nvidia")


@pytest.mark.parametrize("how", ["preferred", "required", "none"])
def test_cpu_pod_keeps_off_gpu_nodes_as_its_namespace_says(plane: ControlPlane, where: str, how: str) -> None:
    """F47."""
    labelled = namespace(plane, f"{where}-labelled", **{CPU_GUARD: how})

    pod = create_pod(plane, plain_pod(labelled, {"cpu": 1}))

    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    assert list(affinity) == ([] if how == "none" else [f"{how}DuringSchedulingIgnoredDuringExecution"])
    assert str(affinity).count(PRESENT) == len(affinity)


def test_gpu_pod_and_daemon_sets_pod_do_not_keep_off_gpu_nodes(plane: ControlPlane, where: str) -> None:
    """F47."""
    labelled = namespace(plane, f"{where}-labelled", **{CPU_GUARD: "required"})
    create_pod(plane, plain_pod(labelled))
    assert plane.kubectl.create(workload("DaemonSet", plain_pod(labelled, {"cpu": 1}))).code == 0
    path = f"/api/v1/namespaces/{labelled}/pods"
    eventually("its pods are made", lambda: len(plane.api.items(path)) == 1 + len(FLEET))

    assert [each["metadata"]["name"] for each in plane.api.items(path) if PRESENT in str(each["spec"])] == []


@pytest.mark.usefixtures("scheduler")
def test_cpu_pods_are_bound_off_the_gpu_nodes(plane: ControlPlane, where: str) -> None:
    """P39, F47: by kube-scheduler itself."""
    labelled = namespace(plane, f"{where}-labelled", **{CPU_GUARD: "required"})

    pods = [create_pod(plane, plain_pod(labelled, {"cpu": 1}, f"p{number}")) for number in range(6)]

    assert {node_of(plane, each) for each in pods} == {"cpu"}


NEEDS = {"gpu-memory: 40Gi": ("h100", "l4"), "compute-capability: 8.0": ("l4", "t4"), "cuda: 12.4": ("l4", "t4")}
NEEDS |= {"sharing: Exclusive": ("t4", "l4"), "sharing: Shared": ("l4", "h100"), "products: T4": ("t4", "h100")}
"""By annotation: a node that fits, and one that does not."""


@pytest.mark.usefixtures("scheduler")
@pytest.mark.parametrize("need", NEEDS)
def test_need_is_honoured_by_a_scheduler_that_asks_nobody(plane: ControlPlane, where: str, need: str) -> None:
    """P16, P28, F10, F136: as affinity that the API server takes."""
    key, _, value = need.partition(": ")
    asked: list[Object] = [{"name": each, "nodeSelector": {"kubernetes.io/hostname": each}} for each in NEEDS[need]]

    pods = [create_pod(plane, plain_pod(where, annotations={key: value}, **each)) for each in asked]

    assert node_of(plane, pods[0]) == NEEDS[need][0]
    assert "didn't match Pod's node affinity/selector" in refused(plane, pods[1])
