# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims on real kubelets: what a claim was given, and what its container can open.

The node runs containerd 2, since Debian's 1.6 has no CDI and starts such containers without their devices.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.controlplane.kubectl import Object
from tests.e2e.stage import create_namespace, create_pod, wait_for_node
from tests.realnodes import containerd_module
from tests.realnodes.claim_cases import CASES, GPU_CLASS, exactly
from tests.realnodes.cluster import Cluster
from tests.realnodes.dra_devices import device_classes, driver_file
from tests.realnodes.images import PAUSE, SHELL
from tests.realnodes.node import DEFAULT_INSTALLATION, Node
from tests.realnodes.seen_devices import container_pod, delete_pod, read_seen, wait_for_phase

RESOURCE = "/apis/resource.k8s.io/v1"
DRA_NODES = ("node-1", "node-2")


@pytest.fixture(scope="module")
def dra_nodes(cluster: Cluster) -> Iterator[Mapping[str, Node]]:
    """Two nodes whose GPUs a DRA driver publishes, and not the device plugin, which comes back afterwards."""
    programs = containerd_module.find()
    if isinstance(programs, str):
        pytest.skip(programs)
    images = [cluster.archives[PAUSE], cluster.archives[SHELL]]
    installation = replace(DEFAULT_INSTALLATION, programs=programs, state="containerd-2")
    nodes = {name: cluster.nodes[name] for name in DRA_NODES}
    cluster.plane.api.create_all(f"{RESOURCE}/deviceclasses", device_classes())
    for node in nodes.values():
        node.change_installation(installation, images)
        node.stop_device_plugin()
        node.start_dra_driver()
    yield nodes
    for node in nodes.values():
        node.stop_dra_driver()
        node.change_installation(DEFAULT_INSTALLATION, ())
    for document in device_classes():
        cluster.plane.api.delete(f"{RESOURCE}/deviceclasses/{document['metadata']['name']}")


def create_claim(cluster: Cluster, name: str, namespace: str, requests: Any) -> str:
    """Create a claim, and return its path."""
    path = f"{RESOURCE}/namespaces/{namespace}/resourceclaims"
    spec = {"devices": {"requests": list(requests)}}
    cluster.plane.api.create(path, {"metadata": {"name": name}, "spec": spec})
    return f"{path}/{name}"


def claiming_pod(name: str, namespace: str, claim: str, node: str) -> Object:
    """Write a pod whose container uses a claim and says what it sees."""
    pod = container_pod(
        name,
        namespace,
        {},
        nodeSelector={"kubernetes.io/hostname": node},
        resourceClaims=[{"name": "devices", "resourceClaimName": claim}],
    )
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "devices"}]}
    return pod


def allocated(cluster: Cluster, path: str) -> list[str]:
    """List the devices that a claim was given."""
    claim = cluster.plane.api.get(path)
    return [result["device"] for result in claim["status"]["allocation"]["devices"]["results"]]


def files_of(node: Node, devices: list[str]) -> set[str]:
    """Name the device files of devices, by the file of the node's driver."""
    files = driver_file(node.world.machine)["files"]
    return {file for device in devices for file in files[device]}


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("name", CASES)
def test_container_can_open_the_devices_of_its_claim_and_no_others(
    cluster: Cluster, dra_nodes: Mapping[str, Node], name: str
) -> None:
    """F135."""
    case = CASES[name]
    title = name.replace(" ", "-").lower()
    labels = {"resource.kubernetes.io__admin_access": "true"} if case.admin else {}
    space = create_namespace(cluster.plane, f"claims-{title}", **labels)
    path = create_claim(cluster, title, space, case.requests)
    pod = claiming_pod(title, space, title, case.node)
    create_pod(cluster.plane, pod)
    assert wait_for_node(cluster.plane, pod) == case.node
    wait_for_phase(cluster, pod)
    seen = read_seen(cluster, pod)
    devices = allocated(cluster, path)
    delete_pod(cluster, pod)

    assert len(devices) == case.devices
    assert seen.opened == files_of(dra_nodes[case.node], devices)
    assert seen.denied == frozenset()


def test_pods_that_share_a_claim_see_the_same_device(
    cluster: Cluster, dra_nodes: Mapping[str, Node], namespace: str
) -> None:
    """F135."""
    path = create_claim(cluster, "shared", namespace, [exactly(GPU_CLASS)])
    pods = [claiming_pod(name, namespace, "shared", "node-1") for name in ("first", "second")]
    for pod in pods:
        create_pod(cluster.plane, pod)
        wait_for_phase(cluster, pod)
    seen = [read_seen(cluster, pod).opened for pod in pods]
    devices = allocated(cluster, path)
    for pod in pods:
        delete_pod(cluster, pod)

    assert seen == [files_of(dra_nodes["node-1"], devices)] * 2


def test_request_of_an_extended_resource_is_served_by_dra(
    cluster: Cluster, dra_nodes: Mapping[str, Node], namespace: str
) -> None:
    """F135: kube-scheduler makes the claim, since the DeviceClass has the resource's name."""
    pod = container_pod("extended", namespace, {"nvidia.com/gpu": 2}, nodeSelector={"kubernetes.io/hostname": "node-1"})
    create_pod(cluster.plane, pod)
    running = wait_for_phase(cluster, pod)
    seen = read_seen(cluster, pod)
    claim = running["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    devices = allocated(cluster, f"{RESOURCE}/namespaces/{namespace}/resourceclaims/{claim}")
    delete_pod(cluster, pod)

    assert len(devices) == 2
    assert seen.opened == files_of(dra_nodes["node-1"], devices)
