# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims on real kubelets: what a claim was given, what its container can open, and the life of a claim."""

import datetime as dt
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

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
from tests.realnodes.claim_cases import CASES, CONVERTED, EXTENDED, GPU_CLASS, SHARED, exactly, product
from tests.realnodes.claim_stage import (
    CONFIG_MAPS,
    RESOURCE,
    allocated,
    claiming_pod,
    create_claim,
    delete_namespace,
    event_of,
    explained,
    files_of,
    generated_claim,
    make_templates,
    results_of,
    telling_service,
)
from tests.realnodes.cluster import Cluster
from tests.realnodes.control_plane import NAMES
from tests.realnodes.dra_devices import DRIVER
from tests.realnodes.images import SHELL
from tests.realnodes.migration import Migration, kinds, seconds_without_service
from tests.realnodes.node import Node
from tests.realnodes.results import Results
from tests.realnodes.seen_devices import container_pod, delete_pod, read_seen, wait_for_phase
from tests.realnodes.worlds import make_world

TAINT = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoExecute"}
"""A taint as NVIDIA's driver writes with the gate NVMLDeviceHealthCheck, which has the effect NoSchedule there."""
MOUNTING = {"name": "main", "image": SHELL, "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
ATTACHED = "gpu.nvidia.com/attached"
"""A binding condition; those of real drivers are of fabric-attached GPUs."""
WOKEN_SECONDS = 60
"""Bound on the time from a change to the binding; without an event kube-scheduler tries again after 300 s."""


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[Service]:
    """The service with Events."""
    with telling_service(cluster) as running:
        yield running


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("name", CASES)
def test_container_can_open_the_devices_of_its_claim_and_no_others(
    cluster: Cluster, dra_nodes: Mapping[str, Node], results: Results, name: str
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
    results.add_claim(name, devices, seen)

    assert len(devices) == case.devices
    assert seen.opened == files_of(dra_nodes[case.node], devices)
    assert seen.denied == frozenset()


def test_pods_that_share_a_claim_see_the_same_device(
    cluster: Cluster, dra_nodes: Mapping[str, Node], results: Results, namespace: str
) -> None:
    """F135."""
    path = create_claim(cluster, "shared", namespace, [exactly(GPU_CLASS)])
    pods = [claiming_pod(name, namespace, "shared", "node-1") for name in ("first", "second")]
    for pod in pods:
        create_pod(cluster.plane, pod)
        wait_for_phase(cluster, pod)
    seen = [read_seen(cluster, pod) for pod in pods]
    devices = allocated(cluster, path)
    for pod in pods:
        delete_pod(cluster, pod)
    results.add_claim(SHARED, devices, seen[1])

    assert [one.opened for one in seen] == [files_of(dra_nodes["node-1"], devices)] * 2


def test_request_of_an_extended_resource_is_served_by_dra(
    cluster: Cluster, dra_nodes: Mapping[str, Node], results: Results, namespace: str
) -> None:
    """F135: kube-scheduler makes the claim, since the DeviceClass has the resource's name."""
    pod = container_pod("extended", namespace, {"nvidia.com/gpu": 2}, nodeSelector={"kubernetes.io/hostname": "node-1"})
    create_pod(cluster.plane, pod)
    running = wait_for_phase(cluster, pod)
    seen = read_seen(cluster, pod)
    devices = allocated(cluster, generated_claim(running))
    delete_pod(cluster, pod)
    results.add_claim(EXTENDED, devices, seen)

    assert len(devices) == 2
    assert seen.opened == files_of(dra_nodes["node-1"], devices)


@pytest.mark.usefixtures("service")
def test_converted_pod_gets_its_gpus_by_a_claim(
    cluster: Cluster, dra_nodes: Mapping[str, Node], results: Results, tmp_path: Path
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
    devices = allocated(cluster, generated_claim(running))
    delete_pod(cluster, pod)
    cluster.plane.api.delete(f"{CONFIG_MAPS}/convert")
    delete_namespace(cluster, namespace)  # tests of installations look for whatever has our name
    results.add_claim(CONVERTED, devices, seen)

    assert "nvidia.com/gpu" not in str(running["spec"]["containers"][0]["resources"])
    assert len(devices) == 2
    assert seen.opened == files_of(dra_nodes["node-1"], devices)


def test_claim_that_the_driver_cannot_prepare_is_explained_and_starts_later(
    cluster: Cluster, dra_nodes: Mapping[str, Node], namespace: str
) -> None:
    """F83, F135: the Event is the kubelet's."""
    node = dra_nodes["node-1"]
    node.publish_devices(failure="GPU has fallen off the bus")
    create_claim(cluster, "unprepared", namespace, [exactly(GPU_CLASS)])
    pod = claiming_pod("unprepared", namespace, "unprepared", node.name)
    create_pod(cluster.plane, pod)
    eventually("explain says so", lambda: "could not prepare" in explained(cluster, pod))
    lines = explained(cluster, pod).splitlines()

    node.publish_devices()
    wait_for_phase(cluster, pod)
    delete_pod(cluster, pod)

    assert lines[0] == f"{namespace}/unprepared is bound to node-1, not started"
    assert lines[1].startswith("  FailedPrepareDynamicResources: the DRA driver on the node could not prepare")
    assert "read the log of the driver's kubelet plugin" in lines[1]
    assert lines[2].startswith("created again, it would fit on ")


@pytest.mark.usefixtures("dra_nodes")
@pytest.mark.parametrize(
    ("title", "change", "told"),
    [
        (
            "secret",
            {"volumes": [{"name": "data", "secret": {"secretName": "absent"}}], "containers": [MOUNTING]},
            "FailedMount: a volume of the pod cannot be mounted",
        ),
        (
            "image",
            {"containers": [{"name": "main", "image": "gpu-usher.test/absent:1", "imagePullPolicy": "Never"}]},
            "ErrImageNeverPull: the node does not have the image of a container",
        ),
        (
            "cpu",
            {
                "nodeName": "node-3",
                "containers": [{"name": "main", "image": SHELL, "resources": {"requests": {"cpu": 999}}}],
            },
            "the pods of the node held so much of the resource that too little was left",
        ),
    ],
)
def test_pod_that_its_node_cannot_start_is_explained_by_what_the_kubelet_says(
    cluster: Cluster, namespace: str, title: str, change: Object, told: str
) -> None:
    """F83: a Secret and an image that are not there, and a node that is named by hand and too small."""
    pod = container_pod(title, namespace, {}, nodeSelector={"kubernetes.io/hostname": "node-3"})
    pod["spec"] = {**pod["spec"], **change}
    create_pod(cluster.plane, pod)
    eventually("explain says so", lambda: told in explained(cluster, pod))
    lines = explained(cluster, pod).splitlines()
    delete_pod(cluster, pod)

    where = "was refused by the kubelet of node-3" if title == "cpu" else "is bound to node-3, not started"
    assert lines[0] == f"{namespace}/{title} {where}"


def test_taint_of_a_device_evicts_its_pod_and_the_next_one_gets_another(
    cluster: Cluster, dra_nodes: Mapping[str, Node], namespace: str
) -> None:
    """F83, F135, F139: what NVIDIA's driver publishes of a sick GPU, here with the effect NoExecute.

    The shell of the container ignores SIGTERM, so that it still ends when it is explained.
    """
    node = dra_nodes["node-1"]
    path = create_claim(cluster, "sick", namespace, [exactly(GPU_CLASS)])
    pod = claiming_pod("sick", namespace, "sick", node.name, terminationGracePeriodSeconds=20)
    create_pod(cluster.plane, pod)
    wait_for_phase(cluster, pod)
    [device] = allocated(cluster, path)
    node.publish_devices(changes={device: {"taints": [TAINT]}})
    eventually("the pod is evicted", lambda: read_pod(cluster.plane, pod)["metadata"].get("deletionTimestamp"))
    evicted = explained(cluster, pod)
    delete_pod(cluster, pod)
    every = create_claim(cluster, "all-eight", namespace, [exactly(GPU_CLASS, count=8)])
    waiting = claiming_pod("all-eight", namespace, "all-eight", node.name)
    create_pod(cluster.plane, waiting)
    wait_for_refusal(cluster.plane, waiting)
    explanation, event = explained(cluster, waiting), event_of(cluster, waiting)

    seconds = seconds_to_bind(cluster, waiting, node)
    wait_for_phase(cluster, waiting)
    seen = read_seen(cluster, waiting)
    devices = allocated(cluster, every)
    delete_pod(cluster, waiting)
    print(f"{event}; woken in {seconds:.1f} s")

    assert "it is being ended: DeletionByDeviceTaintManager: a device of its claims has a taint NoExecute" in evicted
    assert TAINT["key"] in explanation
    assert len(devices) == 8
    assert seen.opened == files_of(node, devices)


def seconds_to_bind(cluster: Cluster, pod: Object, node: Node) -> float:
    """Let the driver publish healthy devices, and return the seconds until a pod that waits is bound to the node."""
    began = time.monotonic()
    node.publish_devices()
    assert wait_for_node(cluster.plane, pod, WOKEN_SECONDS) == node.name
    return time.monotonic() - began


def test_pod_waits_while_the_driver_is_upgraded_and_starts_when_it_publishes_again(
    cluster: Cluster, dra_nodes: Mapping[str, Node], namespace: str
) -> None:
    """F135, F139: an upgrade that unpublishes the devices; a pod that runs keeps its own."""
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
    explanation, event = explained(cluster, waits), event_of(cluster, waits)

    began = time.monotonic()
    node.start_dra_driver()
    assert wait_for_node(cluster.plane, waits, WOKEN_SECONDS) == node.name
    seconds = time.monotonic() - began
    wait_for_phase(cluster, waits)
    phase = read_pod(cluster.plane, stays)["status"]["phase"]
    seen, devices = read_seen(cluster, waits), allocated(cluster, path)
    for pod in (waits, stays):
        delete_pod(cluster, pod)
    print(f"{event}; woken in {seconds:.1f} s, the driver's start included")

    assert f"{namespace}/waits fits on none of 3 nodes" in explanation
    assert phase == "Running"
    assert seen.opened == files_of(node, devices)


def test_pod_waits_for_the_binding_condition_of_its_device_and_is_told_so(
    cluster: Cluster, dra_nodes: Mapping[str, Node], namespace: str
) -> None:
    """F83, F135, F139: the test sets the condition, as the controller of a driver does."""
    node = dra_nodes["node-1"]
    gpu = node.world.machine.gpus[0]
    wanted = exactly(GPU_CLASS, f"device.attributes['{DRIVER}'].uuid == '{gpu.uuid}'")
    conditions = {"bindingConditions": [ATTACHED], "bindingFailureConditions": ["gpu.nvidia.com/failed"]}
    node.publish_devices(changes={f"gpu-{gpu.minor}": conditions})
    eventually("they are published", lambda: ATTACHED in str(node.slices()))
    path = create_claim(cluster, "attach", namespace, [wanted])
    pod = claiming_pod("attach", namespace, "attach", node.name)
    create_pod(cluster.plane, pod)
    eventually("the claim is allocated", lambda: results_of(cluster, path))
    explanation, event = explained(cluster, pod), event_of(cluster, pod)

    [result] = results_of(cluster, path)
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"type": ATTACHED, "status": "True", "reason": "Attached", "message": "", "lastTransitionTime": now}
    device = {**{key: result[key] for key in ("driver", "pool", "device")}, "conditions": [condition]}
    cluster.plane.api.patch(f"{path}/status", {"status": {"devices": [device]}})
    wait_for_phase(cluster, pod)
    seen, devices = read_seen(cluster, pod), allocated(cluster, path)
    delete_pod(cluster, pod)
    node.publish_devices()
    eventually("they are published without conditions", lambda: ATTACHED not in str(node.slices()))
    print(event)

    assert f"is not ready: kube-scheduler waits until its driver sets {ATTACHED}" in explanation
    assert event.startswith("NotStarted: ")
    assert ATTACHED in event
    assert seen.opened == files_of(node, devices)


def test_pod_of_a_drained_node_waits_and_gets_its_claim_when_the_node_is_back(
    cluster: Cluster, dra_nodes: Mapping[str, Node], namespace: str
) -> None:
    """F83, F135, F139: only node-1 has the product, so that the pod that replaces the evicted one waits."""
    node = dra_nodes["node-1"]
    template = {"spec": {"devices": {"requests": [exactly(GPU_CLASS, product("NVIDIA H100 80GB HBM3"))]}}}
    made = {"metadata": {"name": "h100"}, "spec": template}
    cluster.plane.api.create(f"{RESOURCE}/namespaces/{namespace}/resourceclaimtemplates", made)
    pod = claiming_pod("drained", namespace, "-", node.name)
    pod["spec"]["resourceClaims"] = [{"name": "devices", "resourceClaimTemplateName": "h100"}]
    del pod["spec"]["nodeSelector"]
    labels = {"app": "drained"}
    inner = {"metadata": {"labels": labels}, "spec": pod["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": inner}
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    cluster.plane.api.create(path, {"metadata": {"name": "drained"}, "spec": spec})
    first = wait_for_phase(cluster, only_pod(cluster, namespace))

    drained = cluster.plane.kubectl("drain", node.name, "--pod-selector=app=drained", "--timeout=60s")
    assert drained.code == 0, drained.err
    second = only_pod(cluster, namespace)
    wait_for_refusal(cluster.plane, second)
    explanation, event = explained(cluster, second), event_of(cluster, second)
    began = time.monotonic()
    assert cluster.plane.kubectl("uncordon", node.name).code == 0
    assert wait_for_node(cluster.plane, second, WOKEN_SECONDS) == node.name
    seconds = time.monotonic() - began
    running = wait_for_phase(cluster, second)
    seen, devices = read_seen(cluster, running), allocated(cluster, generated_claim(running))
    cluster.plane.api.delete(f"{path}/drained")
    eventually("its pods are gone", lambda: not pods_of_app(cluster, namespace))
    print(f"{event}; woken in {seconds:.1f} s")

    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert "node(s) were unschedulable" in explanation
    assert seen.opened == files_of(node, devices)


def pods_of_app(cluster: Cluster, namespace: str) -> list[Object]:
    """List the pods of the Deployment."""
    return cluster.plane.api.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector="app=drained")


def only_pod(cluster: Cluster, namespace: str) -> Object:
    """Wait until the Deployment has one pod, and return it."""
    eventually("there is one pod", lambda: len(pods_of_app(cluster, namespace)) == 1)
    [pod] = pods_of_app(cluster, namespace)
    return pod


@pytest.fixture
def alike(dra_nodes: Mapping[str, Node]) -> Iterator[tuple[Node, Node, Node]]:
    """Three nodes with 8 H100 each, whose GPUs are given by DRA, by both, and by the device plugin."""
    by_dra, by_both, by_plugin = (dra_nodes[name] for name in NAMES)
    worlds = {node: node.world for node in (by_both, by_plugin)}
    by_both.start_device_plugin()
    for node in worlds:
        node.change_world(make_world("h100", node.name))
    by_both.publish_devices()
    yield by_dra, by_both, by_plugin
    for node, world in worlds.items():
        if not node.offers():
            node.start_device_plugin()
        node.change_world(world)


@pytest.mark.usefixtures("service")
def test_half_migrated_cluster_moves_to_claims_with_a_rollback_in_the_middle(
    cluster: Cluster, alike: tuple[Node, Node, Node], tmp_path: Path
) -> None:
    """F135: one manifest on a node by DRA, one by both and one by the device plugin; the pods fill two of the three."""
    by_dra, by_both, by_plugin = alike
    migration = Migration(cluster, 16)
    stages: list[list[Object]] = []

    def settle() -> None:
        stages.append(migration.wait())
        assert migration.held_twice(stages[-1]) == []
        print({name: dict(counts) for name, counts in kinds(stages[-1]).items()}, f"{migration.drained[-1]:.1f} s")

    with migration.running(tmp_path):
        settle()
        migration.convert(True)
        migration.drain(by_plugin)
        by_plugin.stop_device_plugin()
        by_plugin.start_dra_driver()
        migration.uncordon(by_plugin)
        settle()
        migration.convert(False)
        migration.drain(by_plugin)
        by_plugin.stop_dra_driver()
        by_plugin.start_device_plugin()
        migration.uncordon(by_plugin)
        settle()
        migration.convert(True)
        for node in (by_plugin, by_both):
            migration.drain(node)
            node.stop_device_plugin()
            if node is by_plugin:
                node.start_dra_driver()
            migration.uncordon(node)
            settle()
        migration.drain(by_dra)
        migration.uncordon(by_dra)
        settle()
    gaps = [seconds for pair in pairwise(stages) for seconds in seconds_without_service(*pair)]
    print(f"{len(gaps)} pods replaced, {sum(gaps) / len(gaps):.1f} s without service each, {max(gaps):.0f} s at most")

    assert sum(kinds(stages[0])[by_plugin.name].values()) + sum(kinds(stages[0]).get(by_both.name, {}).values()) > 0
    assert all(set(counts) == {"converted"} for counts in kinds(stages[-1]).values())
