# SPDX-License-Identifier: Apache-2.0
"""GPU pods on nodes of four installations, with and without a RuntimeClass, and with and without gpu-usher.

The four are those of NVIDIA's GPU Operator: CDI (the default since 25.10), CDI with the NRI plugin, which configures no
runtime handler, and the toolkit's runtime, as containerd's default or only by its class. The NRI plugin itself serves
NVIDIA's own pods alone (nvidia-container-toolkit cmd/nvidia-ctk-installer/container/runtime/nri/plugin.go), so that
none runs here: users' pods get their GPUs by CDI through the kubelet. The handlers nvidia-cdi and nvidia-legacy are the
same program in its default mode.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.controlplane.kubectl import Object
from tests.e2e.stage import create_namespace, create_pod, eventually, read_pod
from tests.realnodes import containerd_module
from tests.realnodes.cluster import Cluster
from tests.realnodes.images import PAUSE, SHELL
from tests.realnodes.node import DEFAULT_INSTALLATION, Installation, Node
from tests.realnodes.seen_devices import SeenDevices, container_pod, delete_pod, read_seen
from tests.realnodes.toolkit import RUNTIME_CLASS, RUNTIME_CLASSES

ALL = ("nvidia", "nvidia-cdi", "nvidia-legacy")
INSTALLATIONS = {
    "CDI default": Installation(handlers=ALL, device_list_strategy="cdi-cri"),
    "NRI": Installation(handlers=(), device_list_strategy="cdi-cri"),
    "legacy default": Installation(handlers=ALL, default_runtime="nvidia"),
    "legacy not default": Installation(handlers=ALL),
}
NOT_STARTED = "no runtime for"
"""Part of containerd's words about a pod whose handler it does not have."""


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Node]:
    """The node whose installation the tests change; it has its own again afterwards."""
    programs = containerd_module.find()
    if isinstance(programs, str):
        pytest.skip(programs)
    node = cluster.nodes["node-1"]
    yield node
    node.change_installation(DEFAULT_INSTALLATION, ())
    if cluster.plane.api.client.get(f"{RUNTIME_CLASSES}/nvidia").is_error:
        cluster.plane.api.create(RUNTIME_CLASSES, RUNTIME_CLASS)


@pytest.fixture(scope="module", params=INSTALLATIONS)
def installed(request: pytest.FixtureRequest, cluster: Cluster, node: Node) -> str:
    """The name of an installation that the node has."""
    programs = containerd_module.find()
    assert isinstance(programs, Path)
    images = [cluster.archives[PAUSE], cluster.archives[SHELL]]
    node.change_installation(replace(INSTALLATIONS[request.param], programs=programs, state="containerd-2"), images)
    return str(request.param)


@pytest.fixture(params=[True, False], ids=["class exists", "class does not"])
def class_exists(request: pytest.FixtureRequest, cluster: Cluster) -> bool:
    """Whether there is a RuntimeClass nvidia."""
    path, api = f"{RUNTIME_CLASSES}/nvidia", cluster.plane.api
    present = api.client.get(path).is_success
    if request.param and not present:
        api.create(RUNTIME_CLASSES, RUNTIME_CLASS)
    elif present and not request.param:
        api.delete(path)
    return bool(request.param)


@pytest.fixture(scope="module")
def outside(cluster: Cluster) -> Iterator[str]:
    """A namespace whose pods do not reach the webhooks; it is deleted, as other tests look at all namespaces."""
    name = create_namespace(cluster.plane, "outside-of-gpu-usher", **{"gpu-usher.io/ignore": "true"})
    yield name
    path = f"/api/v1/namespaces/{name}"
    cluster.plane.api.delete(path)
    eventually("it is gone", lambda: cluster.plane.api.client.get(path).status_code == 404)


def run_pod(cluster: Cluster, name: str, namespace: str, **more: object) -> tuple[Object, SeenDevices | str]:
    """Run a pod of one GPU on the node; give it as admitted, and what its container sees, or why it does not start."""
    pod = container_pod(
        name, namespace, {"nvidia.com/gpu": 1}, nodeSelector={"kubernetes.io/hostname": "node-1"}, **more
    )
    admitted = create_pod(cluster.plane, pod)
    outcome, uid = list[str](), admitted["metadata"]["uid"]

    def decided() -> bool:
        phase = read_pod(cluster.plane, pod)["status"]["phase"]
        events = cluster.plane.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
        mine = [event["message"] for event in events if event["involvedObject"].get("uid") == uid]
        failures = [message for message in mine if NOT_STARTED in message or "OutOf" in message]
        outcome[:] = [phase] if phase != "Pending" else failures[:1]
        return bool(outcome)

    try:
        eventually(f"{name} runs, or its sandbox fails", decided)
        return admitted, read_seen(cluster, pod) if outcome == ["Running"] else outcome[0]
    finally:
        delete_pod(cluster, pod)  # else it holds its GPU, and the next pod of the name cannot be created


def test_no_pod_that_starts_without_us_fails_with_us(
    cluster: Cluster, installed: str, class_exists: bool, namespace: str, outside: str
) -> None:
    """F5, F6, S7: and its container sees a GPU where it did without us; a class that is needed makes it see one."""
    _, without = run_pod(cluster, "without", outside)
    expected = class_exists and installed != "NRI"
    admitted: list[Object] = []

    def admitted_as_expected() -> bool:
        """Tell whether the service, which watches classes and nodes, knows them by now."""
        admitted[:] = [dry_run(cluster, namespace)]
        return ("runtimeClassName" in admitted[0]["spec"]) is expected

    eventually("the service knows classes and nodes", admitted_as_expected)
    pod, with_us = run_pod(cluster, "with", namespace)

    assert isinstance(without, SeenDevices)
    assert isinstance(with_us, SeenDevices), with_us
    assert ("runtimeClassName" in pod["spec"]) is expected
    assert bool(without.libraries) is (installed != "legacy not default")
    assert bool(with_us.libraries) is (bool(without.libraries) or class_exists)


def dry_run(cluster: Cluster, namespace: str) -> Object:
    """Create a pod of one GPU by a dry run, which passes through admission and nothing else."""
    pod = container_pod("dry", namespace, {"nvidia.com/gpu": 1}, nodeSelector={"kubernetes.io/hostname": "node-1"})
    answer = cluster.plane.api.client.post(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", json=pod)
    assert answer.is_success, answer.text
    admitted: Object = answer.json()
    return admitted


@pytest.mark.parametrize("installed", ["NRI"], indirect=True)
@pytest.mark.usefixtures("installed")
def test_pod_that_names_a_class_without_handler_does_not_start_and_is_told_so(cluster: Cluster, outside: str) -> None:
    """F6: what the kubelet does with the class that we leave out, on the node that has no handler for it."""
    if cluster.plane.api.client.get(f"{RUNTIME_CLASSES}/nvidia").is_error:
        cluster.plane.api.create(RUNTIME_CLASSES, RUNTIME_CLASS)

    _, outcome = run_pod(cluster, "named", outside, runtimeClassName="nvidia", nodeName="node-1")

    assert isinstance(outcome, str)
    assert 'no runtime for "nvidia" is configured' in outcome
