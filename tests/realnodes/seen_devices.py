# SPDX-License-Identifier: Apache-2.0
"""Pods whose container says which devices it sees and can open, and what such a container said."""

import re
from dataclasses import dataclass
from typing import Any

from tests.controlplane.kubectl import Object
from tests.e2e.stage import eventually, gpu_pod, read_pod
from tests.realnodes.cluster import Cluster

LOOK = """echo "devices=$NVIDIA_VISIBLE_DEVICES"
for file in ${FOLDER:-/dev}/nvidia[0-9]* ${FOLDER:-/dev}/nvidia-caps/*; do
  if [ -e "$file" ]; then echo "$file: $( { : < "$file"; } 2>&1 )"; fi
done
sleep 1000
"""
"""What the container runs: the devices that it was told of, and for each device file what opening it gives.

The mock driver has no kernel module: a device that the container may open gives ENXIO, one that its device cgroup keeps
from it gives EPERM.
"""
ALLOWED, KEPT_FROM_IT = "No such device or address", "Operation not permitted"


@dataclass(frozen=True, slots=True)
class SeenDevices:
    """What a container saw: devices by UUID, GPUs and MIG capabilities that it may open, and files that it may not."""

    devices: tuple[str, ...]
    gpus: tuple[str, ...]
    capabilities: tuple[str, ...]
    denied: tuple[str, ...]


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
    eventually("it has said what it sees", lambda: cluster.plane.kubectl(*words).out)
    first, *lines = cluster.plane.kubectl(*words).out.splitlines()
    devices = first.removeprefix("devices=")
    opened = [line.partition(":")[0].rpartition("/")[2] for line in lines if ALLOWED in line]
    return SeenDevices(
        tuple(devices.split(",")) if devices else (),
        tuple(name for name in opened if re.fullmatch(r"nvidia\d+", name)),
        tuple(name for name in opened if name.startswith("nvidia-cap")),
        tuple(line.partition(":")[0] for line in lines if KEPT_FROM_IT in line),
    )


def delete_pod(cluster: Cluster, pod: Object) -> None:
    """Delete a pod, and wait until the kubelet has let it go."""
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
    cluster.plane.api.delete(path)
    eventually("it is gone", lambda: cluster.plane.api.client.get(path).status_code == 404)
