# SPDX-License-Identifier: Apache-2.0
"""A GPU pod from its manifest to its container: webhook, scheduler, kubelet, NVIDIA's device plugin and runtime."""

import re
from collections.abc import Iterator

import pytest

from tests.e2e.stage import create_pod, wait_for_node
from tests.realnodes.cluster import Cluster
from tests.realnodes.containers import allowed_devices, requested_environment
from tests.realnodes.node import Node
from tests.realnodes.nvml_config import CAPS_MAJOR, NVIDIA_MAJOR, UVM_MAJOR
from tests.realnodes.results import Results
from tests.realnodes.seen_devices import container_pod, delete_pod, read_seen, wait_for_phase
from tests.realnodes.whole_path_cases import CASES, device_files, device_numbers
from tests.realnodes.worlds import make_world

CHANGING = "node-1"
"""The node that becomes another machine where no node has the wanted world."""


@pytest.fixture(scope="module")
def changing(cluster: Cluster) -> Iterator[Node]:
    """The node whose world tests change; it has its own again afterwards."""
    node = cluster.nodes[CHANGING]
    world = node.world
    yield node
    if node.world != world:
        node.change_world(world)


def node_with(cluster: Cluster, changing: Node, world: str) -> Node:
    """Find the node with a world, or let one become it."""
    for node in cluster.nodes.values():
        if node.world.name == world:
            return node
    changing.change_world(make_world(world, changing.name))
    return changing


@pytest.mark.parametrize("name", CASES)
def test_container_sees_the_devices_that_it_asked_for_and_no_others(
    cluster: Cluster, changing: Node, namespace: str, results: Results, name: str
) -> None:
    """F1, F31: requests alone, which the API server refuses, become limits; the rest is NVIDIA's and the kubelet's."""
    case = CASES[name]
    node = node_with(cluster, changing, case.world)
    where = {"kubernetes.io/hostname": node.name}
    pod = container_pod(re.sub(r"\W", "-", name).lower(), namespace, {}, requests=dict(case.limits), nodeSelector=where)
    create_pod(cluster.plane, pod)
    assert wait_for_node(cluster.plane, pod) == node.name
    running = wait_for_phase(cluster, pod)
    seen = read_seen(cluster, pod)
    allowed = allowed_devices(running, (NVIDIA_MAJOR, UVM_MAJOR, CAPS_MAJOR))
    devices = requested_environment(node, running)["NVIDIA_VISIBLE_DEVICES"].split(",")
    delete_pod(cluster, pod)

    files = device_files(node.world.machine, devices)
    assert len(devices) == case.devices
    assert all(device.startswith(f"{case.kind}-") for device in devices)
    assert seen.devices == ("void",)
    assert (set(seen.opened), set(seen.denied)) == (files, set())
    assert allowed == device_numbers(node.world.machine, files)
    assert running["spec"]["runtimeClassName"] == "nvidia"
    assert seen.libraries == (f"libnvidia-ml.so.{node.world.machine.driver}",)
    assert bool(seen.mps) == case.mps
    results.add_path(name, node.world, seen, allowed)
