# SPDX-License-Identifier: Apache-2.0
"""While we are down: the exported ValidatingAdmissionPolicy on a real kube-apiserver, without any webhook of ours."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from app.cli.main import app
from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.e2e.stage import eventually, namespace, plain_pod

GPU = "nvidia.com/gpu"
Make = Callable[[str], Object]
STRICT = "admission: {visibleDevices: Strip, privileged: Deny, bypass: Deny, schedulerName: ours, maxGPUsPerPod: 4}"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
MOUNT = {"name": "x", "mountPath": "/var/run/nvidia-container-devices/0"}


def exported(folder: Path, spec: str | None) -> list[Object]:
    """Export for a policy of this spec; None: for the shipped policies."""
    words = []
    if spec is not None:
        folder.mkdir(exist_ok=True)
        (folder / "default.yaml").write_text(policy("default", spec), "utf-8")
        words = ["--policies", str(folder)]
    found = CliRunner().invoke(app, ["export", "vap", *words])
    assert found.exit_code == 0, found.output
    return list(yaml.safe_load_all(found.stdout))


@pytest.fixture(scope="module")
def where(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A namespace of a cluster with the strict policy's fallback in force."""
    documents = exported(tmp_path_factory.mktemp("own") / "policies", STRICT)
    said = plane.kubectl.create(*documents)
    assert said.code == 0, said.err
    made = namespace(plane, "fallback")
    bad = asking(made, privileged=True)
    eventually("the policy is in force", lambda: plane.kubectl.create(bad, dry_run=True).code != 0)
    return made


def asking(
    where: str,
    limits: Mapping[str, Any] | None = None,
    privileged: bool = False,
    main: Object | None = None,
    **spec: Any,
) -> Object:
    """Make a pod that asks for a GPU of the scheduler `ours`; `main`: more of its container."""
    made = copy.deepcopy(plain_pod(where, limits or {GPU: 1}))
    made["spec"] |= {"schedulerName": "ours", **spec}
    made["spec"]["containers"][0] |= {"securityContext": {"privileged": True}} if privileged else {}
    made["spec"]["containers"][0] |= main or {}
    return made


def annotated(made: Object, key: str, value: str) -> Object:
    return {**made, "metadata": {**made["metadata"], "annotations": {key: value}}}


def variable(name: str = VISIBLE, **more: Any) -> Object:
    return {"env": [{"name": name, **more}]}


FIELD = {"fieldRef": {"fieldPath": "metadata.name"}}
LEGACY, VOID = {"name": "CUDA_VERSION", "value": "12.0"}, {"name": VISIBLE, "value": "void"}
DATA = {"name": "x", "mountPath": "/data"}
SHARED = [{"name": "s", "hostPath": {"path": "/dev/shm"}}]
VOLUME = [{"name": "x", "emptyDir": {}}]
SIDE = {"name": "side", "image": "x", **variable(value="all")}
BAD: dict[str, Make] = {
    "privileged": lambda where: asking(where, privileged=True),
    "five GPUs": lambda where: asking(where, {GPU: 5}),
    "slices and GPUs": lambda where: asking(where, {GPU: 3, "nvidia.com/mig-1g.10gb": 2}),
    "five by their class": lambda where: asking(where, {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": 5}),
    "five of a virtual machine": lambda where: asking(where, {"nvidia.com/GH100_H100_PCIE": 5}),
    "all devices": lambda where: asking(where, main=variable(value="all")),
    "devices from elsewhere": lambda where: asking(where, main=variable(valueFrom=FIELD)),
    "MIG control": lambda where: asking(where, main=variable("NVIDIA_MIG_CONFIG_DEVICES", value="all")),
    "a legacy image": lambda where: asking(where, {"cpu": 1}, main=variable("CUDA_VERSION", value="12.0")),
    "a legacy image of zero GPUs": lambda where: asking(where, {GPU: 0}, main=variable("CUDA_VERSION", value="12.0")),
    "channels": lambda where: asking(where, main=variable("NVIDIA_IMEX_CHANNELS", value="0")),
    "the fabric": lambda where: asking(where, main=variable("NVIDIA_NVSWITCH", value="enabled")),
    "storage of no GPU": lambda where: asking(where, {"cpu": 1}, main=variable("NVIDIA_GDS", value="enabled")),
    "a neighbour's environment": lambda where: asking(where, initContainers=[SIDE]),
    "a device mount": lambda where: asking(where, main={"volumeMounts": [MOUNT]}, volumes=VOLUME),
    "a CDI annotation": lambda where: annotated(asking(where), "cdi.k8s.io/x", "nvidia.com/gpu=all"),
    "a node of its own": lambda where: asking(where, nodeName="n"),
    "another scheduler": lambda where: asking(where, schedulerName="default-scheduler"),
}
GOOD: dict[str, Make] = {
    "one GPU": asking,
    "eight network cards": lambda where: asking(where, {GPU: 1, "nvidia.com/hostdev": 8}),
    "four GPUs": lambda where: asking(where, {GPU: 4}),
    "void": lambda where: asking(where, main=variable(value="void")),
    "an empty value": lambda where: asking(where, main=variable(value="")),
    "other variables": lambda where: asking(where, main=variable("NVIDIA_DRIVER_CAPABILITIES", value="all")),
    "a CUDA version beside a GPU": lambda where: asking(where, main=variable("CUDA_VERSION", value="12.0")),
    "a CUDA version beside void": lambda where: asking(where, {"cpu": 1}, main={"env": [LEGACY, VOID]}),
    "storage beside a GPU": lambda where: asking(where, main=variable("NVIDIA_GDS", value="enabled")),
    "a switch that is off": lambda where: asking(where, main=variable("NVIDIA_NVSWITCH", value="disabled")),
    "shared memory of the node": lambda where: asking(where, volumes=SHARED),
    "other mounts": lambda where: asking(where, main={"volumeMounts": [DATA]}, volumes=VOLUME),
    "another vendor's CDI": lambda where: annotated(asking(where), "cdi.k8s.io/x", "example.com/nic=all"),
    "a CPU pod on a node": lambda where: asking(where, {"cpu": 1}, nodeName="n", schedulerName="default-scheduler"),
}
WORDS = {
    "a legacy image": "wants NVIDIA_VISIBLE_DEVICES: void beside it",
    "a legacy image of zero GPUs": "wants NVIDIA_VISIBLE_DEVICES: void beside it",
    "privileged": "privileged in a GPU pod",
    "five by their class": "at most 4 GPUs per pod",
    "five of a virtual machine": "at most 4 GPUs per pod",
    "five GPUs": "at most 4 GPUs per pod",
    "slices and GPUs": "at most 4 GPUs per pod",
    "a device mount": "a mount below",
    "a CDI annotation": "an annotation cdi.k8s.io/",
    "a node of its own": "spec.nodeName is set",
    "another scheduler": "wants schedulerName ours",
}


@pytest.mark.parametrize("name", BAD)
def test_pod_that_we_would_refuse_or_repair_is_refused_without_us(plane: ControlPlane, where: str, name: str) -> None:
    """F12, F13, F14, F26: each expression, evaluated by the API server."""
    said = plane.kubectl.create(BAD[name](where), dry_run=True)

    assert said.code == 1
    assert "ValidatingAdmissionPolicy 'gpu-usher-fallback'" in said.err
    assert WORDS.get(name, "wants no such setting") in said.err


@pytest.mark.parametrize("path", ["/dev/nvidia0", "//dev", "/", None], ids=str)
def test_pod_that_reaches_the_nodes_devices_is_refused_without_us(plane: ControlPlane, where: str, path: str) -> None:
    """F12, F14: None stands for a privileged one."""
    volumes: Object = {"volumes": [{"name": "v", "hostPath": {"path": path}}]} if path else {}

    said = plane.kubectl.create(asking(where, {"cpu": 1}, privileged=path is None, **volumes), dry_run=True)

    assert "ValidatingAdmissionPolicy 'gpu-usher-fallback-devices'" in said.err


@pytest.mark.parametrize("name", GOOD)
def test_pod_that_we_would_let_in_is_let_in_without_us(plane: ControlPlane, where: str, name: str) -> None:
    """F22: no expression fails on a pod that lacks what it looks at."""
    said = plane.kubectl.create(GOOD[name](where), dry_run=True)

    assert said.code == 0, said.err


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"requests": {GPU: 1}}, "Limit must be set for non overcommitable resources"),
        ({"requests": {GPU: 1}, "limits": {GPU: 2}}, "must be equal to nvidia.com/gpu limit"),
        ({"limits": {GPU: "500m"}}, "must be an integer"),
        ({"limits": {GPU: -1}}, "must be greater than or equal to 0"),
    ],
)
def test_amounts_are_refused_by_the_api_server_itself(
    plane: ControlPlane, where: str, resources: Object, words: str
) -> None:
    """F7, F8: which is why no expression is about them; it validates before it asks any policy."""
    said = plane.kubectl.create(asking(where, main={"resources": resources}), dry_run=True)

    assert said.code == 1
    assert words in said.err
    assert "gpu-usher" not in said.err


@pytest.mark.parametrize(("value", "code"), [("all", 1), ("void", 0)])
def test_debug_container_is_looked_at_alone(plane: ControlPlane, where: str, value: str, code: int) -> None:
    """F12: new ephemeral containers, by the subresource."""
    made = asking(where)
    made["metadata"] |= {"name": f"debugged-{value}"}
    plane.api.create(f"/api/v1/namespaces/{where}/pods", made)
    path = f"/api/v1/namespaces/{where}/pods/debugged-{value}/ephemeralcontainers"
    extra = {"name": "debug", "image": "x", **variable(value=value)}

    answer = plane.api.client.patch(
        path,
        json={"spec": {"ephemeralContainers": [extra]}},
        headers={"Content-Type": "application/strategic-merge-patch+json"},
    )

    assert (answer.status_code == 200) is (code == 0), answer.text


@pytest.mark.parametrize(("name", "code"), [("gpu-operator", 0), ("labelled", 0), ("kube-things", 1)])
def test_exempt_namespaces_are_exempt(plane: ControlPlane, where: str, name: str, code: int) -> None:
    """F21: by exact name and by label; a tenant could make any name that begins like one."""
    assert where
    made = namespace(plane, name, **({"gpu_usher.io__infrastructure": "true"} if name == "labelled" else {}))

    said = plane.kubectl.create(asking(made, privileged=True), dry_run=True)

    assert said.code == code, said.err


def test_what_the_shipped_policies_warn_of_only_warns(plane: ControlPlane, where: str, tmp_path: Path) -> None:
    """F12: a second policy whose binding says Warn."""
    documents = exported(tmp_path / "none", None)
    names = ["gpu-usher-fallback-warn", "gpu-usher-fallback-devices-warn"]
    assert [each["metadata"]["name"] for each in documents] == [name for name in names for _ in ("policy", "binding")]
    assert plane.kubectl.create(*documents).code == 0
    made = asking(where, nodeName="n")

    def warned() -> bool:
        said = plane.kubectl.create({**made, "metadata": {**made["metadata"], "name": "w"}}, dry_run=True)
        return any("gpu-usher-fallback-warn" in each for each in said.warnings)

    eventually("the warning is there", warned)
