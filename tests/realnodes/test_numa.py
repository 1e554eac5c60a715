# SPDX-License-Identifier: Apache-2.0
"""A real kubelet with a topology manager ends just the pods with TopologyAffinityError that explain predicts.

The machine's sysfs is covered by one with two NUMA nodes, each with a CPU and half of the GPUs (numa.sh): the kubelet
reads it by cadvisor, and NVIDIA's device plugin tells the kubelet the NUMA node of each GPU. The NodeResourceTopology
is written here, as its exporters do it, from the kubelet's own checkpoint of devices.
"""

import asyncio
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.cli.explain import OPTIONAL, snapshot_of
from app.cluster.kubeconfig import find_cluster
from app.cluster.listing import read_objects
from app.explain.pending_pod import explain
from app.kube.api_kinds import FLEET
from app.values.computations import finish
from tests.controlplane.kubectl import Object
from tests.e2e.settling import QUICK
from tests.e2e.stage import create_namespace, create_pod, eventually, read_pod
from tests.realnodes.cluster import Cluster
from tests.realnodes.node import Node
from tests.realnodes.seen_devices import container_pod, delete_pod

GPU, ERROR = "nvidia.com/gpu", "TopologyAffinityError"
PLAIN = "plain-scheduler"
GROUP, NODE = "topology.node.k8s.io", "node-1"
OBJECTS = f"/apis/{GROUP}/v1alpha2/noderesourcetopologies"
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
SCRIPT = Path(__file__).with_name("numa.sh")
CRD: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"noderesourcetopologies.{GROUP}",
        "annotations": {"api-approved.kubernetes.io": "unapproved"},
    },
    "spec": {
        "group": GROUP,
        "scope": "Cluster",
        "names": {"kind": "NodeResourceTopology", "plural": "noderesourcetopologies"},
        "versions": [
            {
                "name": "v1alpha2",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
SETTINGS: tuple[tuple[str, str, int], ...] = (
    ("single-numa-node", "container", 9),
    ("single-numa-node", "pod", 6),
    ("restricted", "container", 12),
    ("best-effort", "container", 2),
)
"""Policy and scope of the topology manager, and the number of pods."""
REQUESTS = ([2], [3], [3], [3], [4], [5], [1, 2], [2, 2], [3, 2], [3, 3])
"""GPUs that the containers of a pod ask for; a NUMA node has four."""


@pytest.fixture(scope="module")
def two_numa_nodes(cluster: Cluster) -> Iterator[Node]:
    """A node with two NUMA nodes, and a served kind NodeResourceTopology; afterwards all is as it was."""
    node = cluster.nodes[NODE]
    addresses = [gpu.bus.lower()[-12:] for gpu in node.world.machine.gpus]
    half = len(addresses) // 2
    node.run("sh", str(SCRIPT), " ".join(addresses[:half]), " ".join(addresses[half:]))
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    cluster.plane.api.create(path, CRD)
    eventually("the kind is served", lambda: cluster.plane.api.client.get(OBJECTS).is_success)
    header = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    cluster.plane.start_scheduler({**header, **QUICK, "profiles": [{"schedulerName": PLAIN}]}, PLAIN)
    yield node
    cluster.plane.stop(PLAIN)
    cluster.plane.api.delete(f"{path}/{CRD['metadata']['name']}")
    node.run("sh", str(SCRIPT), "off")
    restart(node, {})


def restart(node: Node, settings: Mapping[str, Any]) -> None:
    """Start the kubelet with settings, which forgets what topology its devices had, and the device plugin anew."""
    node.stop_device_plugin()
    node.kubelet_settings = settings
    node.stop("kubelet")
    node.run("rm", "-f", "/var/lib/kubelet/cpu_manager_state", "/var/lib/kubelet/memory_manager_state")
    node.start_kubelet()
    eventually("the node is Ready", node.ready)
    node.start_device_plugin()
    wanted = str(len(node.world.machine.gpus))
    eventually("the node offers its GPUs", lambda: node.allocatable().get(GPU) == wanted)


def topology(node: Node, settings: Mapping[str, Any], running: set[str]) -> Object:
    """Write the node's NodeResourceTopology: its GPUs by NUMA node, and those that no running pod has."""
    checkpoint = json.loads(node.run("cat", CHECKPOINT))["Data"]
    total = [len(node.world.machine.gpus) // 2] * 2
    free = list(total)
    for entry in checkpoint["PodDeviceEntries"] or ():
        if entry["PodUID"] in running:
            for zone, devices in entry["DeviceIDs"].items():
                free[int(zone)] -= len(devices)
    amounts = [{"name": GPU, "capacity": str(all_), "allocatable": str(all_), "available": str(left)} for all_, left in
               zip(total, free, strict=True)]  # fmt: skip
    return {
        "apiVersion": f"{GROUP}/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node.name},
        "attributes": [{"name": name, "value": value} for name, value in settings.items()],
        "zones": [{"name": f"node-{zone}", "type": "Node", "resources": [one]} for zone, one in enumerate(amounts)],
    }


def predicted(cluster: Cluster, pod: Object) -> bool:
    """Ask explain, which reads the cluster as the command does."""
    objects = asyncio.run(
        read_objects(find_cluster(cluster.plane.kubeconfig("admin"), None), *FLEET, optional=OPTIONAL)
    )
    explanation = finish(explain(pod, snapshot_of(objects, None)))
    assert explanation.fits == 1, explanation.primary
    return any(note.startswith(ERROR) for note in explanation.notes)


def pod_of(name: str, namespace: str, amounts: Sequence[int]) -> Object:
    """Write a pod for the node whose containers ask for so many GPUs."""
    pod = container_pod(name, namespace, {GPU: amounts[0]}, nodeSelector={"kubernetes.io/hostname": NODE})
    pod["spec"]["schedulerName"] = PLAIN
    first = pod["spec"]["containers"][0]
    pod["spec"]["containers"] = [
        {**first, "name": f"c{number}", "resources": {"limits": {GPU: amount}}} for number, amount in enumerate(amounts)
    ]
    return pod


def wait_until_decided(cluster: Cluster, pod: Object) -> None:
    """Wait until the kubelet runs a pod, or has ended it."""
    eventually("it runs or is refused", lambda: read_pod(cluster.plane, pod)["status"]["phase"] != "Pending")


@pytest.mark.parametrize(("policy", "scope", "count"), SETTINGS, ids=lambda value: str(value))
def test_kubelet_refuses_just_the_pods_that_explain_predicts(
    cluster: Cluster, two_numa_nodes: Node, policy: str, scope: str, count: int
) -> None:
    """F83."""
    node, chance = two_numa_nodes, random.Random(f"{policy} {scope}")
    settings = {"topologyManagerPolicy": policy, "topologyManagerScope": scope}
    restart(node, settings)
    namespace = create_namespace(cluster.plane, f"numa-{policy}-{scope}")
    gpus = len(node.world.machine.gpus)
    running: dict[str, tuple[Object, int]] = {}
    seen: list[tuple[bool, bool]] = []
    for number in range(count):
        amounts = chance.choice(REQUESTS)
        while running and sum(amounts) > gpus - sum(held for _, held in running.values()):
            uid = next(iter(running))
            delete_pod(cluster, running.pop(uid)[0])
        cluster.plane.api.delete(f"{OBJECTS}/{node.name}")
        cluster.plane.api.create(OBJECTS, topology(node, settings, set(running)))
        pod = pod_of(f"p{number}", namespace, amounts)
        expected = predicted(cluster, pod)
        create_pod(cluster.plane, pod)
        wait_until_decided(cluster, pod)
        stored = read_pod(cluster.plane, pod)
        refused = stored["status"].get("reason") == ERROR
        assert refused or stored["status"]["phase"] == "Running", stored["status"]
        seen.append((expected, refused))
        print(policy, scope, amounts, "predicted" if expected else "-", stored["status"].get("reason", "runs"))
        if refused:
            delete_pod(cluster, pod)
        else:
            running[stored["metadata"]["uid"]] = stored, sum(amounts)
    for stored, _ in running.values():
        delete_pod(cluster, stored)

    right = sum(expected == refused for expected, refused in seen)
    print(f"{policy} {scope}: {right} of {count} right, {sum(refused for _, refused in seen)} refused")
    assert right == count
    assert any(refused for _, refused in seen) == (policy != "best-effort")
