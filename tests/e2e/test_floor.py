# SPDX-License-Identifier: Apache-2.0
"""The exported policies on a real kube-apiserver: without gpu-usher they make the same pods, and with it no others.

Every manifest of the corpus, and three situations of each rule, are created three times: with the webhooks alone, with
the exported policies alone, and with both.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from app.cli.verbs import app
from app.kube.pods import DECISION
from tests.builders import policy
from tests.controlplane.binaries import Binaries
from tests.controlplane.cluster import ControlPlane, control_plane
from tests.controlplane.kubectl import Object
from tests.corpus.shapes import PLURALS, SHAPES
from tests.e2e.stage import eventually, gpu_pod, install_webhooks, remove_webhooks, serving

GPU, MIG, AMD, VISIBLE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "amd.com/gpu", "NVIDIA_VISIBLE_DEVICES"
SUBSET = """admission: {
  runtimeClassName: nvidia, schedulerName: gpu-usher-scheduler, priorityClassName: gpu-batch,
  tolerations: {fromNodeTaints: false}, extendedResources: {requestsOnly: CopyToLimits, mismatch: UseLimits},
  visibleDevices: %s, memoryRequests: UseLimits, privileged: Deny, bypass: Deny, maxGPUsPerPod: 16}"""
KIND = "mutatingadmissionpolicies"
ROOT = "/apis/admissionregistration.k8s.io/v1"


@dataclass(frozen=True)
class Stored:
    """What became of a manifest: what its author and admission wrote, or that it was refused; and what we recorded."""

    written: Object | None
    actions: tuple[str, ...] = ()


def own(limits: Mapping[str, Any] | None = None, **more: Any) -> Object:
    """Write a pod of the scheduler `default-scheduler`, which requests a GPU if nothing else is said."""
    container = more.pop("main", {})
    made = gpu_pod("own", "team-a", limits, **{"schedulerName": "default-scheduler", **more})
    made["spec"]["containers"][0] |= container
    return made


def resources(requests: Mapping[str, Any], limits: Mapping[str, Any] | None = None) -> Object:
    return {"resources": {"requests": dict(requests), **({"limits": dict(limits)} if limits else {})}}


def env(*pairs: tuple[str, str]) -> Object:
    return {"env": [{"name": name, "value": value} for name, value in pairs]}


def mounted(path: str) -> Object:
    return {"main": {"volumeMounts": [{"name": "x", "mountPath": path}]}, "volumes": [{"name": "x", "emptyDir": {}}]}


def host_path(path: str) -> Object:
    return {"volumes": [{"name": "x", "hostPath": {"path": path}}]}


MEMORY = {"resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "3Gi"}}}
PRIVILEGED = {"securityContext": {"privileged": True}}
FIELD = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
TOLERATES = {"operator": "Exists", "effect": "NoSchedule"}
ALWAYS = {"restartPolicy": "Always"}
SIDE = {"name": "side", "image": "x"}
CDI: Object = {"metadata": {"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=all"}}}
SITUATIONS: dict[str, Object] = {
    "limits: of two resources": own(main=resources({GPU: 2, AMD: 1, "cpu": 1}, {"cpu": 2})),
    "limits: of an init container": own(initContainers=[{**SIDE, **resources({MIG: 1})}]),
    "limits: of zero beside one": own(initContainers=[{**SIDE, **resources({GPU: 0})}]),
    "requests: fewer than limits": own(main=resources({GPU: 1}, {GPU: 2})),
    "requests: of a sidecar": own(
        initContainers=[{**SIDE, "restartPolicy": "Always", **resources({MIG: 2}, {MIG: 1})}]
    ),
    "requests: the same amount in other words": own(main=resources({GPU: "2000m"}, {GPU: 2})),
    "tolerations: the key is tolerated already": own(tolerations=[{"key": GPU, **TOLERATES}]),
    "tolerations: one value of the key is": own(tolerations=[{"key": GPU, "value": "present", "effect": "NoSchedule"}]),
    "tolerations: everything is": own(tolerations=[{"operator": "Exists"}]),
    "tolerations: of slices of two vendors": own({MIG: 1, AMD: 1}),
    "tolerations: of what others give": own({"nvidia.com/GH100_H100_PCIE": 1, "volcano.sh/vgpu-number": 1}),
    "runtime class: of another vendor": own({AMD: 1}),
    "runtime class: chosen by the pod": own(runtimeClassName="kata"),
    "runtime class: the pod's nodes are others": own(nodeSelector={"toolkit": "no"}),
    "scheduler: of the pod's own": own(schedulerName="volcano"),
    "scheduler: ours": own(schedulerName="gpu-usher-scheduler"),
    "scheduler: no GPU": own({"cpu": 1}, main=env((VISIBLE, "void"))),
    "priority: of the pod's own": own(priorityClassName="system-node-critical"),
    "priority: with a policy of preemption": own(preemptionPolicy="Never"),
    "priority: two containers": own(
        containers=[{**SIDE, **resources({GPU: 1}, {GPU: 1})}, {"name": "b", "image": "x"}]
    ),
    "memory: a request less than its limit": own(main=resources({GPU: 1, "memory": "1Gi"}, {GPU: 1, "memory": "2Gi"})),
    "memory: a request alone": own(main=resources({GPU: 1, "memory": "1Gi"})),
    "memory: a limit alone, and a neighbour": own({GPU: 1, "memory": "1Gi"}, initContainers=[{**SIDE, **MEMORY}]),
    "memory: of no GPU": own({"cpu": 1}, main=env((VISIBLE, "void")), initContainers=[{**SIDE, **MEMORY}]),
    "devices: all": own(main=env(("A", "1"), (VISIBLE, "all"), ("B", "2"))),
    "devices: all beside no GPU": own({"cpu": 1}, main=env((VISIBLE, "0"), ("NVIDIA_IMEX_CHANNELS", "1"))),
    "devices: from a field": own({"cpu": 1}, main={"env": [{"name": VISIBLE, **FIELD}]}),
    "devices: of a legacy image": own({"cpu": 1}, main=env(("CUDA_VERSION", "12.0"))),
    "devices: of a legacy image, hidden last": own(
        {"cpu": 1}, main=env(("CUDA_VERSION", "12.0"), (VISIBLE, "all"), (VISIBLE, "void"))
    ),
    "devices: of a legacy image, shown last": own(
        {"cpu": 1}, main=env(("CUDA_VERSION", "12.0"), (VISIBLE, "void"), (VISIBLE, "all"))
    ),
    "devices: a neighbour has the GPU": own(initContainers=[{**SIDE, **env(("NVIDIA_GDS", "enabled"))}]),
    "devices: storage beside its GPU": own(main=env(("NVIDIA_GDS", "enabled"), ("NVIDIA_NVSWITCH", "$(X)"))),
    "devices: mounted": own(**mounted("/var/run/nvidia-container-devices/0")),
    "devices: mounted by a longer path": own({"cpu": 1}, **mounted("//var/./run//nvidia-container-devices/1")),
    "devices: mounted elsewhere": own(**mounted("/data/nvidia-container-devices")),
    "devices: by an annotation": own() | {"metadata": {**own()["metadata"], **CDI["metadata"]}},
    "device files: of GPUs": own(**host_path("/dev/nvidia0")),
    "device files: all": own({"cpu": 1}, **host_path("/dev")),
    "device files: of shared memory": own(**host_path("/dev/shm")),
    "privileged: the GPU's container": own(main=PRIVILEGED),
    "privileged: a neighbour": own(initContainers=[{**SIDE, **PRIVILEGED}]),
    "privileged: no GPU": own({"cpu": 1}, main=PRIVILEGED),
    "bypass: a node": own(nodeName="n"),
    "bypass: a node and no GPU": own({"cpu": 1}, nodeName="n"),
    "bypass: another scheduler": own(schedulerName="kai-scheduler"),
    "too many: seventeen": own({GPU: 17}),
    "too many: sixteen in two resources": own({GPU: 8, MIG: 8}),
    "too many: seventeen in two resources": own({GPU: 8, MIG: 9}),
}
CORPUS = {f"corpus {name}": shape.object for name, shape in SHAPES.items()}
OUTSIDE = {
    "corpus needs-unreadable": "an annotation that does not parse, which no policy for the API server reads",
    "devices: mounted elsewhere": "a path that the toolkit does not read, which the validating policy refuses",
}
"""Manifests that are judged otherwise, and why: what the head of the exported file says that it cannot."""


def exported(folder: Path, spec: str) -> list[Object]:
    """Export a directory with one policy."""
    folder.mkdir(exist_ok=True)
    (folder / "default.yaml").write_text(policy("default", spec), "utf-8")
    result = CliRunner().invoke(app, ["export", "admission-policies", "--policies", str(folder)])
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.stdout))


def place_of(name: str) -> tuple[str, str]:
    """Return the namespace of a manifest, and the path under which its kind is created."""
    shape = SHAPES.get(name.removeprefix("corpus "))
    namespace, kind = (shape.namespace, shape.kind) if shape else ("team-a", "Pod")
    version, plural = PLURALS[kind]
    return namespace, f"/{'apis' if '/' in version else 'api'}/{version}/namespaces/{namespace}/{plural}"


def created(plane: ControlPlane, name: str, manifest: Object) -> Stored:
    """Create an object, and return what is stored, as the API server answers it; a pod is deleted again."""
    document = copy.deepcopy(manifest)
    _, path = place_of(name)
    is_pod = path.endswith("/pods")
    answer = plane.api.try_create(path + ("" if is_pod else "?dryRun=All"), document)
    if answer.status_code != 201:
        assert answer.status_code in (400, 403, 422), answer.text
        return Stored(None)
    named = answer.json()["metadata"]  # of a Job, UID and generated name are labels too
    stored = json.loads(answer.text.replace(named["uid"], "uid").replace(named["name"], "name"))
    if is_pod:
        plane.api.delete(f"{path}/{named['name']}?gracePeriodSeconds=0")
    annotations = dict(stored["metadata"].get("annotations") or {})
    decision = json.loads(annotations.pop(DECISION, "{}"))
    # A Job without labels of its own gets those of its template, some of them only after a webhook was called.
    written = {
        "annotations": annotations,
        "labels": is_pod and stored["metadata"].get("labels"),
        "spec": stored["spec"],
    }
    return Stored(written, tuple(decision.get("actions", ())))


def all_created(plane: ControlPlane) -> dict[str, Stored]:
    return {name: created(plane, name, manifest) for name, manifest in (CORPUS | SITUATIONS).items()}


@pytest.fixture(scope="module")
def plane(binaries: Binaries) -> Iterator[ControlPlane]:
    """A control plane without controllers, which would delete pods of owners that do not exist."""
    with control_plane(binaries, controllers=False) as running:
        yield running


@pytest.fixture(scope="module")
def prepared(plane: ControlPlane) -> ControlPlane:
    """A cluster with the namespaces of the corpus, the runtime classes and the priority class."""
    if not plane.api.client.get(f"{ROOT}/{KIND}").is_success:
        pytest.skip("This Kubernetes has no MutatingAdmissionPolicy v1. Use 1.36 or newer.")
    for name in ("nvidia", "kata"):
        scheduling = {"scheduling": {"nodeSelector": {"toolkit": "yes"}}} if name == "nvidia" else {}
        plane.api.create(
            "/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": name}, "handler": name, **scheduling}
        )
    plane.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "gpu-batch"}, "value": 7})
    namespaces = {"team-a": dict[str, str](), "gpu-usher": {}}
    for shape in SHAPES.values():
        namespaces.setdefault(shape.namespace, {}).update(shape.namespace_labels)
    for name, labels in namespaces.items():
        if name != "kube-system":
            plane.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    return plane


@dataclass(frozen=True)
class Compared:
    """What became of each manifest with the webhooks alone, with the exported policies alone, and with both."""

    webhooks: Mapping[str, Stored]
    floor: Mapping[str, Stored]
    both: Mapping[str, Stored]


@pytest.fixture(scope="module", params=["Strip", "Void"])
def compared(
    prepared: ControlPlane, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Compared]:
    """The three creations of every manifest, under one mode of visibleDevices."""
    folder = tmp_path_factory.mktemp(request.param) / "policies"
    documents = exported(folder, SUBSET % request.param)
    plane = prepared
    with serving(plane, f"gpu-usher-{request.param}", policies=str(folder)) as service:
        install_webhooks(plane, service)
        webhooks = all_created(plane)
        remove_webhooks(plane)
        install(plane, documents)
        floor = all_created(plane)
        install_webhooks(plane, service)
        both = all_created(plane)
        remove_webhooks(plane)
    yield Compared(webhooks, floor, both)
    for document in documents:
        result = plane.kubectl("delete", document["kind"], document["metadata"]["name"])
        assert result.code == 0, result.err


def install(plane: ControlPlane, documents: list[Object]) -> None:
    """Install the exported policies, and wait until each of them is in force."""
    result = plane.kubectl.create(*documents)
    assert result.code == 0, result.err
    probe = own(main=resources({GPU: 1}))
    workload = SHAPES[next(name for name, shape in SHAPES.items() if shape.kind == "Job")].object

    def in_force() -> bool:
        pod = created(plane, "probe", probe).written
        job = copy.deepcopy(workload)
        job["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {GPU: 1}}
        _, path = place_of(f"corpus {next(name for name, s in SHAPES.items() if s.object is workload)}")
        repaired = plane.api.try_create(f"{path}?dryRun=All", job).status_code == 201
        refused = created(plane, "probe", own(main=PRIVILEGED)).written is None
        reached = created(plane, "probe", own({"cpu": 1}, main=PRIVILEGED)).written is None
        return bool(pod and pod["spec"].get("runtimeClassName") and repaired and refused and reached)

    eventually("the exported policies are in force", in_force)


def differences(one: Mapping[str, Stored], other: Mapping[str, Stored]) -> dict[str, list[str]]:
    """List for each manifest what is stored otherwise, by path; a refused one has nothing."""
    found = {name: list(paths_that_differ(one[name].written, other[name].written)) for name in one}
    return {name: lines for name, lines in found.items() if lines and name not in OUTSIDE}


def paths_that_differ(one: Any, other: Any, path: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from paths_that_differ(one.get(key), other.get(key), f"{path}.{key}")
    elif one != other:
        yield f"{path}: {str(one)[:200]} | {str(other)[:200]}"


def test_stored_objects_are_those_of_the_webhooks(compared: Compared) -> None:
    """F161, F12, F14, F18: difference 0 over the corpus and the situations of our own."""
    assert differences(compared.webhooks, compared.floor) == {}


def test_webhooks_have_nothing_left_to_change(compared: Compared) -> None:
    """F161, F23: the API server evaluates the exported policies first; 0 changes by gpu-usher after them."""
    changed = {
        name: [action for action in stored.actions if not action.endswith("not set")]
        for name, stored in compared.both.items()
        if name not in OUTSIDE
    }

    assert {name: actions for name, actions in changed.items() if actions} == {}
    assert differences(compared.floor, compared.both) == {}


def test_comparison_has_something_to_compare(compared: Compared) -> None:
    """F161: most manifests are changed or refused, so that equal results are no accident."""
    changed = [name for name, stored in compared.webhooks.items() if stored.actions or stored.written is None]
    refused = [name for name in changed if compared.webhooks[name].written is None]

    assert len(changed) >= 100
    assert len(refused) >= 15
