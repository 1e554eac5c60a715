# SPDX-License-Identifier: Apache-2.0
"""While the service is down: the exported policies on a real kube-apiserver, without our webhooks."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from app.cli.verbs import app
from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.e2e.stage import create_namespace, eventually, plain_pod

GPU = "nvidia.com/gpu"
Make = Callable[[str], Object]
STRICT = "admission: {visibleDevices: Strip, privileged: Deny, extendedResources: {requestsOnly: CopyToLimits}}"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
MOUNT = {"name": "x", "mountPath": "/var/run/nvidia-container-devices/0"}


def exported(folder: Path) -> list[Object]:
    """Export the strict policy."""
    folder.mkdir(exist_ok=True)
    (folder / "default.yaml").write_text(policy("default", STRICT), "utf-8")
    result = CliRunner().invoke(app, ["export", "admission-policies", "--policies", str(folder)])
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.stdout))


@pytest.fixture(scope="module")
def namespace(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A namespace of a cluster where the fallback of the strict policy is in force."""
    documents = exported(tmp_path_factory.mktemp("own") / "policies")
    result = plane.kubectl.create(*documents)
    assert result.code == 0, result.err
    made = create_namespace(plane, "fallback")
    bad = gpu_pod_in(made, privileged=True)
    eventually("the policy is in force", lambda: plane.kubectl.create(bad, dry_run=True).code != 0)
    return made


def gpu_pod_in(
    namespace: str,
    limits: Mapping[str, Any] | None = None,
    privileged: bool = False,
    main: Object | None = None,
    **spec: Any,
) -> Object:
    """Write a pod that requests a GPU, for the scheduler `ours`; `main` holds further fields of its container."""
    made = copy.deepcopy(plain_pod(namespace, limits or {GPU: 1}))
    made["spec"] |= {"schedulerName": "ours", **spec}
    made["spec"]["containers"][0] |= {"securityContext": {"privileged": True}} if privileged else {}
    made["spec"]["containers"][0] |= main or {}
    return made


def annotated(made: Object, key: str, value: str) -> Object:
    return {**made, "metadata": {**made["metadata"], "annotations": {key: value}}}


def env_variable(name: str = VISIBLE, **more: Any) -> Object:
    return {"env": [{"name": name, **more}]}


FIELD = {"fieldRef": {"fieldPath": "metadata.name"}}
LEGACY, VOID = {"name": "CUDA_VERSION", "value": "12.0"}, {"name": VISIBLE, "value": "void"}
DATA = {"name": "x", "mountPath": "/data"}
SHARED = [{"name": "s", "hostPath": {"path": "/dev/shm"}}]
VOLUME = [{"name": "x", "emptyDir": {}}]
SIDE = {"name": "side", "image": "x", **env_variable(value="all")}
BAD: dict[str, Make] = {
    "privileged": lambda namespace: gpu_pod_in(namespace, privileged=True),
    "all devices": lambda namespace: gpu_pod_in(namespace, main=env_variable(value="all")),
    "devices from elsewhere": lambda namespace: gpu_pod_in(namespace, main=env_variable(valueFrom=FIELD)),
    "MIG control": lambda namespace: gpu_pod_in(namespace, main=env_variable("NVIDIA_MIG_CONFIG_DEVICES", value="all")),
    "a legacy image": lambda namespace: gpu_pod_in(
        namespace, {"cpu": 1}, main=env_variable("CUDA_VERSION", value="12.0")
    ),
    "a legacy image of zero GPUs": lambda namespace: gpu_pod_in(
        namespace, {GPU: 0}, main=env_variable("CUDA_VERSION", value="12.0")
    ),
    "channels": lambda namespace: gpu_pod_in(namespace, main=env_variable("NVIDIA_IMEX_CHANNELS", value="0")),
    "the fabric": lambda namespace: gpu_pod_in(namespace, main=env_variable("NVIDIA_NVSWITCH", value="enabled")),
    "storage of no GPU": lambda namespace: gpu_pod_in(
        namespace, {"cpu": 1}, main=env_variable("NVIDIA_GDS", value="enabled")
    ),
    "a neighbour's environment": lambda namespace: gpu_pod_in(namespace, initContainers=[SIDE]),
    "a device mount": lambda namespace: gpu_pod_in(namespace, main={"volumeMounts": [MOUNT]}, volumes=VOLUME),
    "a CDI annotation": lambda namespace: annotated(gpu_pod_in(namespace), "cdi.k8s.io/x", "nvidia.com/gpu=all"),
}
GOOD: dict[str, Make] = {
    "one GPU": gpu_pod_in,
    "eight network cards": lambda namespace: gpu_pod_in(namespace, {GPU: 1, "nvidia.com/hostdev": 8}),
    "four GPUs": lambda namespace: gpu_pod_in(namespace, {GPU: 4}),
    "void": lambda namespace: gpu_pod_in(namespace, main=env_variable(value="void")),
    "an empty value": lambda namespace: gpu_pod_in(namespace, main=env_variable(value="")),
    "other variables": lambda namespace: gpu_pod_in(
        namespace, main=env_variable("NVIDIA_DRIVER_CAPABILITIES", value="all")
    ),
    "a CUDA version beside a GPU": lambda namespace: gpu_pod_in(
        namespace, main=env_variable("CUDA_VERSION", value="12.0")
    ),
    "a CUDA version beside void": lambda namespace: gpu_pod_in(namespace, {"cpu": 1}, main={"env": [LEGACY, VOID]}),
    "storage beside a GPU": lambda namespace: gpu_pod_in(namespace, main=env_variable("NVIDIA_GDS", value="enabled")),
    "a switch that is off": lambda namespace: gpu_pod_in(
        namespace, main=env_variable("NVIDIA_NVSWITCH", value="disabled")
    ),
    "shared memory of the node": lambda namespace: gpu_pod_in(namespace, volumes=SHARED),
    "other mounts": lambda namespace: gpu_pod_in(namespace, main={"volumeMounts": [DATA]}, volumes=VOLUME),
    "another vendor's CDI": lambda namespace: annotated(gpu_pod_in(namespace), "cdi.k8s.io/x", "example.com/nic=all"),
    "a CPU pod on a node": lambda namespace: gpu_pod_in(
        namespace, {"cpu": 1}, nodeName="n", schedulerName="default-scheduler"
    ),
}
WORDS = {
    "a legacy image": "set NVIDIA_VISIBLE_DEVICES: void beside it",
    "a legacy image of zero GPUs": "set NVIDIA_VISIBLE_DEVICES: void beside it",
    "privileged": "is privileged, which lets it use every GPU of its node",
    "a device mount": "has a mount below",
    "a CDI annotation": "an annotation cdi.k8s.io/",
}


@pytest.mark.parametrize("name", BAD)
def test_pod_that_we_would_refuse_or_repair_is_refused_without_us(
    plane: ControlPlane, namespace: str, name: str
) -> None:
    """F12, F13, F14, F26: the API server evaluates each expression."""
    result = plane.kubectl.create(BAD[name](namespace), dry_run=True)

    assert result.code == 1
    assert "ValidatingAdmissionPolicy 'gpu-usher-fallback'" in result.err
    assert WORDS.get(name, "remove it, and request GPUs in resources.limits") in result.err


@pytest.mark.parametrize("path", ["/dev/nvidia0", "//dev", "/", None], ids=str)
def test_pod_that_reaches_the_nodes_devices_is_refused_without_us(
    plane: ControlPlane, namespace: str, path: str
) -> None:
    """F12, F14: the path None stands for a privileged container."""
    volumes: Object = {"volumes": [{"name": "v", "hostPath": {"path": path}}]} if path else {}

    result = plane.kubectl.create(gpu_pod_in(namespace, {"cpu": 1}, privileged=path is None, **volumes), dry_run=True)

    assert "ValidatingAdmissionPolicy 'gpu-usher-fallback-devices'" in result.err


@pytest.mark.parametrize("name", GOOD)
def test_pod_that_we_would_let_in_is_let_in_without_us(plane: ControlPlane, namespace: str, name: str) -> None:
    """F22: no expression fails on a pod that lacks the fields which it reads."""
    result = plane.kubectl.create(GOOD[name](namespace), dry_run=True)

    assert result.code == 0, result.err


TWO = {"amd.com/gpu": 1, GPU: 2}
JOB = {"apiVersion": "batch/v1", "kind": "Job"}
DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment"}


@pytest.mark.parametrize("kind", [None, JOB, DEPLOYMENT], ids=["Pod", "Job", "Deployment"])
def test_requests_are_copied_to_limits(plane: ControlPlane, namespace: str, kind: Object | None) -> None:
    """F161, F7: in a pod and in a template, whose requests the API server would refuse without limits."""
    if not plane.api.client.get("/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies").is_success:
        pytest.skip("This Kubernetes has no MutatingAdmissionPolicy v1. Use 1.36 or newer.")
    first = {"name": "first", "image": "x", "resources": {"requests": {GPU: 1}}}
    made = gpu_pod_in(namespace, main={"resources": {"requests": TWO, "limits": {"cpu": 1}}}, initContainers=[first])
    if kind is not None:
        spec = {**made["spec"], "restartPolicy": "Never" if kind is JOB else "Always"}
        template = {"metadata": {"labels": {"app": "x"}}, "spec": spec}
        selector = {} if kind is JOB else {"selector": {"matchLabels": {"app": "x"}}}
        made = {
            **kind,
            "metadata": {"name": "copied", "namespace": namespace},
            "spec": {"template": template, **selector},
        }

    stored = plane.kubectl("create", "--dry-run=server", "-o", "yaml", "-f", "-", stdin=yaml.safe_dump(made))

    assert stored.code == 0, stored.err
    spec = yaml.safe_load(stored.out)["spec"]
    pod = spec if kind is None else spec["template"]["spec"]
    assert pod["initContainers"][0]["resources"]["limits"] == {GPU: "1"}
    assert pod["containers"][0]["resources"]["limits"] == {"cpu": "1", "amd.com/gpu": "1", GPU: "2"}


@pytest.mark.parametrize(("value", "code"), [("all", 1), ("void", 0)])
def test_debug_container_is_looked_at_alone(plane: ControlPlane, namespace: str, value: str, code: int) -> None:
    """F12: the policy judges a new ephemeral container, which comes through the subresource."""
    made = gpu_pod_in(namespace)
    made["metadata"] |= {"name": f"debugged-{value}"}
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", made)
    path = f"/api/v1/namespaces/{namespace}/pods/debugged-{value}/ephemeralcontainers"
    extra = {"name": "debug", "image": "x", **env_variable(value=value)}

    answer = plane.api.client.patch(
        path,
        json={"spec": {"ephemeralContainers": [extra]}},
        headers={"Content-Type": "application/strategic-merge-patch+json"},
    )

    assert (answer.status_code == 200) is (code == 0), answer.text


@pytest.mark.parametrize(("name", "code"), [("gpu-operator", 0), ("labelled", 0), ("kube-things", 1)])
def test_exempt_namespaces_are_exempt(plane: ControlPlane, namespace: str, name: str, code: int) -> None:
    """F21: by exact name and by label, because a tenant could create any name with the same prefix."""
    assert namespace
    made = create_namespace(plane, name, **({"gpu_usher.io__infrastructure": "true"} if name == "labelled" else {}))

    result = plane.kubectl.create(gpu_pod_in(made, privileged=True), dry_run=True)

    assert result.code == code, result.err
