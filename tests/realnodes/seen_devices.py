# SPDX-License-Identifier: Apache-2.0
"""Pods whose container says which devices it sees and can open, and what such a container said."""

import re
from dataclasses import dataclass
from typing import Any

from tests.controlplane.kubectl import Object
from tests.e2e.stage import eventually, gpu_pod, read_pod
from tests.realnodes.cluster import Cluster

LOOK = """echo "devices=$NVIDIA_VISIBLE_DEVICES"
echo "mps=$CUDA_MPS_PIPE_DIRECTORY"
echo "libraries=$(cd /usr/lib64 2>/dev/null && ls -d libnvidia-ml.so.*.* 2>/dev/null)"
for file in ${FOLDER:-/dev}/nvidia[0-9]* ${FOLDER:-/dev}/nvidia-caps/*; do
  if [ -e "$file" ]; then echo "$file: $( { : < "$file"; } 2>&1 )"; fi
done
echo end
sleep 1000
"""
"""What the container runs: what it was told of devices, the driver's libraries that were mounted, and for each device
file what opening it gives.

The mock driver has no kernel module: a device that the container may open gives ENXIO, one that its device cgroup keeps
from it gives EPERM.
"""
ALLOWED, KEPT_FROM_IT = "No such device or address", "Operation not permitted"


@dataclass(frozen=True, slots=True)
class SeenDevices:
    """What a container saw: devices by UUID, the folder of MPS, and the driver's libraries.

    `opened` are the device files of GPUs and of MIG capabilities that it may open, `denied` those that it may not.
    """

    devices: tuple[str, ...]
    mps: str
    libraries: tuple[str, ...]
    opened: frozenset[str]
    denied: frozenset[str]

    @property
    def gpus(self) -> frozenset[str]:
        """The device files of GPUs that it may open."""
        return frozenset(file for file in self.opened if "caps" not in file)


def container_pod(name: str, namespace: str, limits: dict[str, Any] | None, **more: Any) -> Object:
    """Write a pod whose container says what it sees, and ends at once when it is told to."""
    pod = gpu_pod(name, namespace, limits, image="gpu-usher.test/shell:1", terminationGracePeriodSeconds=1, **more)
    pod["spec"]["containers"][0]["command"] = ["sh", "-c", LOOK]
    return pod


def wait_for_phase(cluster: Cluster, pod: Object, phase: str = "Running") -> Object:
    """Wait until the kubelet reports a phase of a pod, and return the pod."""
    name = pod["metadata"]["name"]
    eventually(f"{name} is {phase}", lambda: read_pod(cluster.plane, pod)["status"]["phase"] == phase)
    return read_pod(cluster.plane, pod)


def read_seen(cluster: Cluster, pod: Object) -> SeenDevices:
    """Read what the container of a running pod said."""
    words = ["logs", "--namespace", pod["metadata"]["namespace"], pod["metadata"]["name"]]
    eventually("it has said what it sees", lambda: cluster.plane.kubectl(*words).out.endswith("end\n"))
    lines = cluster.plane.kubectl(*words).out.splitlines()
    told = dict(line.split("=", 1) for line in lines if re.match(r"\w+=", line))
    return SeenDevices(
        tuple(filter(None, told["devices"].split(","))),
        told["mps"],
        tuple(told["libraries"].split()),
        frozenset(line.partition(":")[0] for line in lines if ALLOWED in line),
        frozenset(line.partition(":")[0] for line in lines if KEPT_FROM_IT in line),
    )


def delete_pod(cluster: Cluster, pod: Object) -> None:
    """Delete a pod, and wait until the kubelet has let it go."""
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
    cluster.plane.api.delete(path)
    eventually("it is gone", lambda: cluster.plane.api.client.get(path).status_code == 404)
