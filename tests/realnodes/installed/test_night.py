# SPDX-License-Identifier: Apache-2.0
"""Scenes of a night with failures in which kubelets decide: the first line of `doctor` is the cause (F87).

The scenes that need none are played by tests/e2e/test_night.py. A silent node that is minutes old may be starting, so
that its line, though the first, may be advice.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.e2e.night_scenes import FIRST_LINES, MIG, label, pending_for_hours
from tests.e2e.stage import eventually
from tests.e2e.test_doctor import doctor, findings_in
from tests.realnodes.cluster import Cluster
from tests.realnodes.node import Node
from tests.realnodes.nvml_config import report_xid
from tests.realnodes.printed_install import PrintedInstallation

GPU, NODE = "nvidia.com/gpu", "/api/v1/nodes/node-1"
FATAL_XID = 79
"""The GPU has fallen off the bus (NVIDIA's XID catalog)."""


def first_line(cluster: Cluster, name: str) -> str:
    """Return the text of the first line, which must be the one that is expected of a scene."""
    check, words = FIRST_LINES[name]
    found = findings_in(doctor(cluster.plane, user="admin"))
    print(name, *(f"{one['level']} {one['check']} {one['nodes']} {one['what']}" for one in found), sep="\n  ")
    assert (found[0]["check"], words in found[0]["what"]) == (check, True), found[0]
    return str(found[0]["what"])


@contextmanager
def gpu_withdrawn(node: Node) -> Iterator[None]:
    """A GPU falls off the bus, and the device plugin withdraws it."""

    def offers_seven() -> bool:
        report_xid(node.folder / "machine", node.world.machine.gpus[5], FATAL_XID)
        return node.allocatable().get(GPU) == "7"

    eventually("the device plugin has withdrawn it", offers_seven)
    yield
    node.restart_device_plugin()
    eventually("all GPUs are offered", lambda: node.allocatable().get(GPU) == "8")


SCENES: dict[str, Callable[[Cluster], AbstractContextManager[None]]] = {
    "GPU withdrawn": lambda cluster: gpu_withdrawn(cluster.nodes["node-1"]),
    "MIG pending": lambda cluster: pending_for_hours(NODE)(cluster.plane),
    "MIG failed": lambda cluster: label(NODE, MIG, "failed")(cluster.plane),
}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", SCENES)
def test_first_line_is_the_cause(cluster: Cluster, name: str) -> None:
    """F87."""
    with SCENES[name](cluster):
        first_line(cluster, name)


def test_silent_nodes_come_before_all_that_their_silence_causes(
    cluster: Cluster, installed: PrintedInstallation
) -> None:
    """F87, F41: a kubelet is killed, and then another node is cut off; replicas of ours run on both."""
    ours = sorted({pod["spec"]["nodeName"] for pod in installed.pods()})
    killed, cut_off = (cluster.nodes[name] for name in ours[:2])
    try:
        killed.stop("kubelet")
        eventually("the first is not Ready", lambda: not killed.ready())
        one = first_line(cluster, "kubelet gone")
        cut_off.set_network(False)
        eventually("the second is not Ready", lambda: not cut_off.ready())
        two = first_line(cluster, "two nodes gone")
    finally:
        cut_off.set_network(True)
        if not killed.ready():
            killed.start_kubelet()
        eventually("both are Ready", lambda: killed.ready() and cut_off.ready())
        installed.wait_until_admitting()

    assert one.endswith("Kubelet stopped posting node status.")
    assert two.endswith("Kubelet stopped posting node status.")
