# SPDX-License-Identifier: Apache-2.0
"""GPU pods while their nodes change: a kubelet that dies, a driver that is upgraded, victims that take their time."""

import pytest

from tests.e2e.stage import create_pod, eventually, read_pod, wait_for_node, wait_for_refusal
from tests.realnodes.cluster import Cluster
from tests.realnodes.seen_devices import container_pod, delete_pod, wait_for_phase

GPU = "nvidia.com/gpu"


def test_container_outlives_its_kubelet_and_the_node_comes_back(cluster: Cluster, namespace: str) -> None:
    """F41: while the kubelet is dead its node takes no pod; afterwards the old pod still runs, and new ones do."""
    node = cluster.nodes["node-1"]
    first, second = (container_pod(f"survivor-{n}", namespace, {GPU: 1}) for n in (1, 2))
    create_pod(cluster.plane, first)
    started = wait_for_phase(cluster, first)["status"]["containerStatuses"][0]["containerID"]

    node.stop("kubelet")
    eventually("its node is NotReady", lambda: not node.ready())
    create_pod(cluster.plane, second)
    assert "untolerated taint" in wait_for_refusal(cluster.plane, second)
    node.start_kubelet()

    assert wait_for_node(cluster.plane, second) == "node-1"
    wait_for_phase(cluster, second)
    assert read_pod(cluster.plane, first)["status"]["containerStatuses"][0]["containerID"] == started
    for pod in (first, second):
        delete_pod(cluster, pod)


def test_pod_that_waits_for_a_driver_runs_once_the_node_has_it(cluster: Cluster, namespace: str) -> None:
    """F31, F40: drained, upgraded, uncordoned; the label that NVIDIA's component writes wakes the pod."""
    node = cluster.nodes["node-1"]
    world = node.world
    pod = container_pod("new-cuda", namespace, {GPU: 1}, annotations={"cuda": "13.0"})
    create_pod(cluster.plane, pod)
    assert "0/3 nodes" in wait_for_refusal(cluster.plane, pod)

    assert cluster.plane.kubectl("drain", node.name, "--ignore-daemonsets", "--force").code == 0
    node.change_driver("580.65.06", "13.0")
    assert cluster.plane.kubectl("uncordon", node.name).code == 0

    assert wait_for_node(cluster.plane, pod) == "node-1"
    wait_for_phase(cluster, pod)
    delete_pod(cluster, pod)
    node.change_world(world)


@pytest.fixture
def priority_class(cluster: Cluster) -> str:
    """A priority above the default."""
    document = {"metadata": {"name": "urgent"}, "value": 1000}
    cluster.plane.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", document)
    return "urgent"


def test_preemptor_waits_until_its_victim_has_ended(cluster: Cluster, namespace: str, priority_class: str) -> None:
    """F43: the victim ignores SIGTERM for its five seconds of grace, and nobody takes its GPUs meanwhile."""
    victim = container_pod("victim", namespace, {GPU: 8})
    victim["spec"]["terminationGracePeriodSeconds"] = 5
    victim["spec"]["containers"][0]["command"] = ["sh", "-c", "trap : TERM; while true; do sleep 1; done"]
    create_pod(cluster.plane, victim)
    wait_for_phase(cluster, victim)

    preemptor = container_pod("preemptor", namespace, {GPU: 8}, priorityClassName=priority_class)
    create_pod(cluster.plane, preemptor)
    nominated = lambda: read_pod(cluster.plane, preemptor)["status"].get("nominatedNodeName")  # noqa: E731
    eventually("it is nominated", nominated)
    assert not read_pod(cluster.plane, preemptor)["spec"].get("nodeName"), "the victim has not ended yet"

    assert wait_for_node(cluster.plane, preemptor) == "node-1"
    wait_for_phase(cluster, preemptor)
    delete_pod(cluster, preemptor)
