# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims on real kubelets: what a claim was given, and what its container can open.

The node runs containerd 2, since Debian's 1.6 has no CDI and starts such containers without their devices.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.verbs import app
from tests.builders import policy
from tests.controlplane.kubectl import Object
from tests.e2e.stage import (
    Service,
    create_namespace,
    create_pod,
    eventually,
    read_pod,
    wait_for_node,
    wait_for_refusal,
)
from tests.realnodes import containerd_module
from tests.realnodes.claim_cases import CASES, GPU_CLASS, exactly
from tests.realnodes.cluster import Cluster
from tests.realnodes.dra_devices import device_classes, driver_file
from tests.realnodes.images import PAUSE, SHELL
from tests.realnodes.node import DEFAULT_INSTALLATION, Node
from tests.realnodes.seen_devices import container_pod, delete_pod, read_seen, wait_for_phase

RESOURCE = "/apis/resource.k8s.io/v1"
CONFIG_MAPS = "/api/v1/namespaces/gpu-usher/configmaps"
TAINT = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoExecute"}
"""A taint as NVIDIA's driver writes with the gate NVMLDeviceHealthCheck, which has the effect NoSchedule there."""
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


@pytest.mark.usefixtures("service")
def test_converted_pod_gets_its_gpus_by_a_claim(
    cluster: Cluster, dra_nodes: Mapping[str, Node], tmp_path: Path
) -> None:
    """F135: a pod that requests nvidia.com/gpu, where a policy has convertToClaims and the template exists."""
    namespace = create_namespace(cluster.plane, "converted", converted="yes")
    text = policy("convert", "priority: 9, match: {namespaceSelector: {matchLabels: {converted: 'yes'}}}, "
                  "admission: {convertToClaims: true}")  # fmt: skip
    metadata = {"name": "convert", "labels": {"gpu-usher.io/policy": "true"}}
    cluster.plane.api.create(CONFIG_MAPS, {"metadata": metadata, "data": {"convert.yaml": text}})
    where = {"kubernetes.io/hostname": "node-1"}
    pod = container_pod("train", namespace, {"nvidia.com/gpu": 2}, nodeSelector=where)
    make_templates(cluster, pod, tmp_path)

    def is_converted() -> bool:
        path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
        return "resourceClaims" in cluster.plane.api.create(path, pod)["spec"]

    eventually("the service knows the policy and the template", is_converted)
    create_pod(cluster.plane, pod)
    running = wait_for_phase(cluster, pod)
    seen = read_seen(cluster, pod)
    [claim] = running["status"]["resourceClaimStatuses"]
    devices = allocated(cluster, f"{RESOURCE}/namespaces/{namespace}/resourceclaims/{claim['resourceClaimName']}")
    delete_pod(cluster, pod)
    cluster.plane.api.delete(f"{CONFIG_MAPS}/convert")
    delete_namespace(cluster, namespace)  # tests of installations look for whatever has our name

    assert "nvidia.com/gpu" not in str(running["spec"]["containers"][0]["resources"])
    assert len(devices) == 2
    assert seen.opened == files_of(dra_nodes["node-1"], devices)


def delete_namespace(cluster: Cluster, name: str) -> None:
    """Delete a namespace, and wait until all in it is gone."""
    path = f"/api/v1/namespaces/{name}"
    cluster.plane.api.delete(path)
    eventually(f"{name} is gone", lambda: cluster.plane.api.client.get(path).status_code == 404)


def make_templates(cluster: Cluster, pod: Object, folder: Path) -> None:
    """Apply the ResourceClaimTemplates that `plan claim-templates` writes for a pod."""
    file = folder / "pod.json"
    file.write_text(json.dumps(pod), "utf-8")
    words = ["-f", str(file), "-n", pod["metadata"]["namespace"], "--kubeconfig"]
    done = CliRunner().invoke(app, ["plan", "claim-templates", *words, str(cluster.plane.kubeconfig("admin"))])
    assert done.exit_code == 0, done.output
    applied = cluster.plane.kubectl("apply", "-f", "-", stdin=done.stdout)
    assert applied.code == 0, applied.err


@pytest.mark.usefixtures("service")
def test_claim_that_the_driver_cannot_prepare_is_explained_and_starts_later(
    cluster: Cluster, dra_nodes: Mapping[str, Node], namespace: str
) -> None:
    """F135."""
    node = dra_nodes["node-1"]
    node.publish_devices(failure="GPU has fallen off the bus")
    create_claim(cluster, "unprepared", namespace, [exactly(GPU_CLASS)])
    pod = claiming_pod("unprepared", namespace, "unprepared", node.name)
    create_pod(cluster.plane, pod)
    eventually("explain says so", lambda: "could not prepare" in explained(cluster, pod))
    explanation = explained(cluster, pod)

    node.publish_devices()
    wait_for_phase(cluster, pod)
    delete_pod(cluster, pod)

    assert "GPU has fallen off the bus" in explanation
    assert "read the log of the driver's kubelet plugin" in explanation


def explained(cluster: Cluster, pod: Object) -> str:
    """Return what `gpu-usher explain` prints of a pod of the cluster."""
    words = ["explain", pod["metadata"]["name"], "-n", pod["metadata"]["namespace"], "--kubeconfig"]
    return CliRunner().invoke(app, [*words, str(cluster.plane.kubeconfig("admin"))]).output


def test_taint_of_a_device_evicts_its_pod_and_the_next_one_gets_another(
    cluster: Cluster, dra_nodes: Mapping[str, Node], service: Service, namespace: str
) -> None:
    """F135: what NVIDIA's driver publishes of a sick GPU, here with the effect NoExecute."""
    node = dra_nodes["node-1"]
    path = create_claim(cluster, "sick", namespace, [exactly(GPU_CLASS)])
    pod = claiming_pod("sick", namespace, "sick", node.name)
    create_pod(cluster.plane, pod)
    wait_for_phase(cluster, pod)
    [device] = allocated(cluster, path)
    node.publish_devices(taints={device: TAINT})
    pod_path = f"/api/v1/namespaces/{namespace}/pods/sick"
    eventually("the pod is evicted", lambda: cluster.plane.api.client.get(pod_path).status_code == 404)
    every = create_claim(cluster, "all-eight", namespace, [exactly(GPU_CLASS, count=8)])
    waiting = claiming_pod("all-eight", namespace, "all-eight", node.name)
    create_pod(cluster.plane, waiting)
    wait_for_refusal(cluster.plane, waiting)
    asked = {"namespace": namespace, "name": "all-eight"}
    eventually("explain names the taint", lambda: TAINT["key"] in str(service.explain(asked)))

    node.publish_devices()
    assert wait_for_node(cluster.plane, waiting) == node.name
    wait_for_phase(cluster, waiting)
    seen = read_seen(cluster, waiting)
    devices = allocated(cluster, every)
    delete_pod(cluster, waiting)

    assert len(devices) == 8
    assert seen.opened == files_of(node, devices)


def test_pod_waits_while_the_driver_is_upgraded_and_starts_when_it_publishes_again(
    cluster: Cluster, dra_nodes: Mapping[str, Node], service: Service, namespace: str
) -> None:
    """F135: an upgrade that unpublishes the devices; a pod that runs keeps its own."""
    node = dra_nodes["node-1"]
    create_claim(cluster, "stays", namespace, [exactly(GPU_CLASS)])
    stays = claiming_pod("stays", namespace, "stays", node.name)
    create_pod(cluster.plane, stays)
    wait_for_phase(cluster, stays)
    node.stop_dra_driver()
    path = create_claim(cluster, "waits", namespace, [exactly(GPU_CLASS)])
    waits = claiming_pod("waits", namespace, "waits", node.name)
    create_pod(cluster.plane, waits)
    wait_for_refusal(cluster.plane, waits)
    explanation = service.explain({"namespace": namespace, "name": "waits"})

    node.start_dra_driver()
    assert wait_for_node(cluster.plane, waits) == node.name
    wait_for_phase(cluster, waits)
    phase = read_pod(cluster.plane, stays)["status"]["phase"]
    seen, devices = read_seen(cluster, waits), allocated(cluster, path)
    for pod in (waits, stays):
        delete_pod(cluster, pod)

    assert not explanation["fits"]
    assert phase == "Running"
    assert seen.opened == files_of(node, devices)
