# SPDX-License-Identifier: Apache-2.0
"""A GPU pod from its manifest to its container: webhook, scheduler, kubelet, NVIDIA's device plugin, runc."""

import re

import pytest

from tests.e2e.stage import (
    create_pod,
    eventually,
    read_pod,
    wait_for_node,
)
from tests.realnodes.cluster import Cluster
from tests.realnodes.nvml_config import report_xid
from tests.realnodes.seen_devices import container_pod, delete_pod, read_seen, wait_for_phase

GPU, SLICE, LARGE_SLICE, SHARE = (f"nvidia.com/{name}" for name in ("gpu", "mig-1g.10gb", "mig-3g.40gb", "gpu.shared"))


@pytest.mark.parametrize(
    ("limits", "node", "prefix", "gpus", "capabilities"),
    [
        pytest.param({GPU: 1}, "node-1", "GPU-", 1, 0, id="a whole GPU"),
        pytest.param({GPU: 3}, "node-1", "GPU-", 3, 0, id="three whole GPUs"),
        pytest.param({SLICE: 1}, "node-2", "MIG-", 1, 2, id="a MIG slice"),
        pytest.param({LARGE_SLICE: 1}, "node-2", "MIG-", 1, 2, id="a larger MIG slice"),
        pytest.param({SHARE: 1}, "node-3", "GPU-", 1, 0, id="a share of a GPU"),
    ],
)
def test_container_sees_the_devices_that_it_asked_for_and_no_others(
    cluster: Cluster, namespace: str, limits: dict[str, int], node: str, prefix: str, gpus: int, capabilities: int
) -> None:
    """F1, F31: requests alone, which the API server refuses, become limits; the rest is NVIDIA's and the kubelet's."""
    name = "p" + re.sub(r"\W", "-", next(iter(limits))).lower() + str(next(iter(limits.values())))
    pod = container_pod(name, namespace, {}, requests=limits)
    create_pod(cluster.plane, pod)

    assert wait_for_node(cluster.plane, pod) == node
    wait_for_phase(cluster, pod)
    seen = read_seen(cluster, pod)

    assert len(seen.devices) == sum(limits.values())
    assert all(device.startswith(prefix) for device in seen.devices)
    assert (len(seen.gpus), len(seen.capabilities), seen.denied) == (gpus, capabilities, ())
    delete_pod(cluster, pod)


def test_sick_gpu_is_taken_from_the_node_and_from_nobody_else(cluster: Cluster, namespace: str) -> None:
    """F42: the plugin withdraws a GPU with an XID; a pod that wants all eight is told why it waits."""
    node = cluster.nodes["node-1"]
    first = node.world.machine.gpus[0]

    def withdrawn() -> bool:
        report_xid(node.folder / "machine", first, 79)
        return node.allocatable()[GPU] == "7"

    eventually("the plugin has withdrawn it", withdrawn)
    pod = container_pod("eight", namespace, {GPU: 8})
    create_pod(cluster.plane, pod)
    eventually("the scheduler has refused it", lambda: "0/3 nodes" in str(read_pod(cluster.plane, pod)["status"]))

    delete_pod(cluster, pod)
    node.restart_device_plugin()
    eventually("it is back", lambda: node.allocatable()[GPU] == "8")
