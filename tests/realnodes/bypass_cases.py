# SPDX-License-Identifier: Apache-2.0
"""Ways around gpu-usher to a node's GPUs: what a pod sets, what its container then gets, and what our guards say."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.controlplane.kubectl import Object
from tests.realnodes.seen_devices import container_pod
from tests.realnodes.whole_path_cases import GPU

ALL = ({"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},)
FOLDER = {"name": "FOLDER", "value": "/host"}
"""Where the container looks for device files, other than in its own /dev."""
PRIVILEGED: Mapping[str, Any] = {"privileged": True}
ADMINISTRATOR: Mapping[str, Any] = {"capabilities": {"add": ["SYS_ADMIN"]}}
STRICT, LISTS = (False, False), (False, True)
"""Whether the toolkit accepts the variable in every container, and device lists as volume mounts."""


@dataclass(frozen=True, slots=True)
class Bypass:
    """A pod's way around, under the runtime that `runtime` names.

    `host` is a path of the node, mounted at `mounted`. `toolkit` are settings of the container toolkit other than its
    own defaults. Of the node's eight GPUs the container may open `opened`, and sees the files of `denied` that it may
    not open. `refusal` is a part of our guards' message, empty where they let the pod pass.
    """

    opened: int
    refusal: str
    denied: int = 0
    runtime: str = "nvidia"
    env: tuple[Object, ...] = ()
    security: Mapping[str, Any] = field(default_factory=dict)
    host: str = ""
    mounted: str = "/host"
    limits: Mapping[str, int] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    toolkit: tuple[bool, bool] = (True, False)

    def pod(self, namespace: str, **spec: Any) -> Object:
        """Write the pod, whose container says what it sees."""
        pod = container_pod("bypass", namespace, dict(self.limits) or None, env=list(self.env), **spec)
        container = pod["spec"]["containers"][0]
        if not self.limits:
            container.pop("resources")
        container["securityContext"] = dict(self.security)
        pod["metadata"]["annotations"] = dict(self.annotations)
        if self.runtime != "runc":
            pod["spec"]["runtimeClassName"] = self.runtime
        if self.host:
            pod["spec"]["volumes"] = [{"name": "host", "hostPath": {"path": self.host}}]
            container["volumeMounts"] = [{"name": "host", "mountPath": self.mounted}]
        return pod


LIST_FOLDER = "/var/run/nvidia-container-devices/all"
BYPASSES: Mapping[str, Bypass] = {
    "`NVIDIA_VISIBLE_DEVICES=all`": Bypass(8, "NVIDIA_VISIBLE_DEVICES but requests no GPU", env=ALL),
    "`NVIDIA_VISIBLE_DEVICES=0,1`": Bypass(
        2, "NVIDIA_VISIBLE_DEVICES but requests no GPU", env=({"name": "NVIDIA_VISIBLE_DEVICES", "value": "0,1"},)
    ),
    "`NVIDIA_VISIBLE_DEVICES=all`, beside a request for one GPU": Bypass(
        8, "NVIDIA_VISIBLE_DEVICES beside the GPU that it requests", env=ALL, limits={GPU: 1}
    ),
    "`NVIDIA_VISIBLE_DEVICES=all`, runtime runc": Bypass(
        0, "NVIDIA_VISIBLE_DEVICES but requests no GPU", env=ALL, runtime="runc"
    ),
    "`NVIDIA_VISIBLE_DEVICES=all`, where the toolkit does not accept it": Bypass(
        0, "NVIDIA_VISIBLE_DEVICES but requests no GPU", env=ALL, toolkit=STRICT
    ),
    "the same with the capability SYS_ADMIN": Bypass(
        8, "NVIDIA_VISIBLE_DEVICES but requests no GPU", env=ALL, toolkit=STRICT, security=ADMINISTRATOR
    ),
    "`CUDA_VERSION=12.4.1`, as in an image of before 2018": Bypass(
        8, "CUDA_VERSION", env=({"name": "CUDA_VERSION", "value": "12.4.1"},)
    ),
    "`CUDA_VERSION` and `NVIDIA_REQUIRE_CUDA`": Bypass(
        0,
        "",
        env=({"name": "CUDA_VERSION", "value": "12.4.1"}, {"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=12.4"}),
    ),
    "`NVIDIA_MIG_CONFIG_DEVICES=all`": Bypass(
        0, "NVIDIA_MIG_CONFIG_DEVICES", env=({"name": "NVIDIA_MIG_CONFIG_DEVICES", "value": "all"},)
    ),
    "a device list as a volume mount": Bypass(0, "nvidia-container-devices", host="/dev/null", mounted=LIST_FOLDER),
    "a device list as a volume mount, where the toolkit accepts it": Bypass(
        8, "nvidia-container-devices", host="/dev/null", mounted=LIST_FOLDER, toolkit=LISTS
    ),
    "annotation `cdi.k8s.io/gpus: runtime.nvidia.com/gpu=all`": Bypass(
        0,
        "has annotation cdi.k8s.io/gpus but requests no GPU",
        annotations={"cdi.k8s.io/gpus": "runtime.nvidia.com/gpu=all"},
    ),
    "privileged": Bypass(8, "privileged: true, by which", runtime="runc", security=PRIVILEGED),
    "hostPath /dev": Bypass(
        0, "hostPath /dev, which reaches every GPU of the node", 8, "runc", host="/dev", env=(FOLDER,)
    ),
    "hostPath /dev/nvidia0": Bypass(
        0, "hostPath /dev/nvidia0", 1, "runc", host="/dev/nvidia0", mounted="/host/nvidia0", env=(FOLDER,)
    ),
    "privileged, hostPath /dev": Bypass(
        8,
        "privileged: true, by which",
        runtime="runc",
        security=PRIVILEGED,
        host="/dev",
        env=(FOLDER,),
    ),
    "hostPath /var/lib/kubelet, where the sockets of the device plugins are": Bypass(
        0, "", runtime="runc", host="/var/lib/kubelet"
    ),
}
"""What a pod does → what comes of it, on a node with eight GPUs."""
