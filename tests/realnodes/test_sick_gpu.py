# SPDX-License-Identifier: Apache-2.0
"""A GPU reports an XID while a pod uses it: what the node offers from then on, and what gpu-usher says of the pods."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.controlplane.kubectl import Object
from tests.e2e.stage import create_pod, eventually, read_pod, wait_for_refusal
from tests.realnodes.cluster import Cluster
from tests.realnodes.containers import requested_environment
from tests.realnodes.node import Node
from tests.realnodes.nvml_config import Gpu, report_xid
from tests.realnodes.seen_devices import container_pod, delete_pod, wait_for_phase

GPU = "nvidia.com/gpu"
FATAL_XID = 79
"""The GPU has fallen off the bus (NVIDIA's XID catalog)."""
UNHEALTHY = "'health': 'Unhealthy'"
"""In the status of a container (allocatedResourcesStatus), from Kubernetes 1.36 on."""


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Node]:
    """A node with eight GPUs, which the device plugin trusts again afterwards."""
    chosen = cluster.nodes["node-1"]
    yield chosen
    chosen.restart_device_plugin()
    eventually("all GPUs are back", lambda: chosen.allocatable()[GPU] == "8")


def run_ours(cluster: Cluster, *words: str) -> str:
    """Give what a command of ours says of the cluster, in lines that nothing breaks."""
    config = f"--kubeconfig={cluster.plane.kubeconfig('admin')}"
    done = subprocess.run(
        [sys.executable, "-m", "app.cli.main", *words, config],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    return done.stdout


def gpu_of(node: Node, running: Object) -> Gpu:
    """Find the first GPU that a running pod was given."""
    devices = requested_environment(node, running)["NVIDIA_VISIBLE_DEVICES"].split(",")
    return next(gpu for gpu in node.world.machine.gpus if gpu.uuid in devices)


def test_running_pod_keeps_its_sick_gpu_and_the_waiting_one_is_told_of_it(
    cluster: Cluster, namespace: str, node: Node
) -> None:
    """F42, F83: the plugin withdraws the GPU; nobody evicts the pod that uses it, and its node has fewer free ones."""
    running, waiting = (
        container_pod(name, namespace, {GPU: count}) for name, count in (("running", 2), ("waiting", 6))
    )
    create_pod(cluster.plane, running)
    sick = gpu_of(node, wait_for_phase(cluster, running))

    def withdrawn() -> bool:
        report_xid(node.folder / "machine", sick, FATAL_XID)
        return node.allocatable()[GPU] == "7"

    eventually("the plugin has withdrawn it", withdrawn)
    create_pod(cluster.plane, waiting)
    eventually(
        "the kubelet has said so of the pod", lambda: UNHEALTHY in str(read_pod(cluster.plane, running)["status"])
    )

    assert "0/3 nodes" in wait_for_refusal(cluster.plane, waiting)
    of_running, of_waiting = (run_ours(cluster, "explain", f"{namespace}/{name}") for name in ("running", "waiting"))
    assert f"holds a device that is unhealthy: {GPU} {sick.uuid}; it keeps it until it ends" in of_running
    assert "not enough free GPUs: wants 6 nvidia.com/gpu, has at most 5 free (InsufficientGPUs, 1 node)" in of_waiting
    assert f"free 1 {GPU} on node-1, held by {namespace}/running" in of_waiting
    assert f"1 of 8 {GPU} withdrawn by the device plugin" in run_ours(cluster, "doctor")
    assert read_pod(cluster.plane, running)["status"]["phase"] == "Running"
    for pod in (running, waiting):
        delete_pod(cluster, pod)
