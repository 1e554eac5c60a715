# SPDX-License-Identifier: Apache-2.0
"""A node while its MIG layout or driver changes: the edit of its state label wakes the pods that wait for it (F10)."""

from collections.abc import Iterator
from functools import partial

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import wait_until
from tests.e2e.stage import (
    SOON_SECONDS,
    Service,
    create_namespace,
    create_pod,
    gpu_pod,
    install_webhooks,
    read_pod,
    refusal,
    serving,
    start_scheduler,
    wait_for_node,
    wait_for_refusal,
)

AT_ONCE_SECONDS = 5
"""Seconds from the label's edit to the pod's binding; kube-scheduler flushes its queue after 300 s."""
MIG, UPGRADE = "nvidia.com/mig.config.state", "nvidia.com/gpu-driver-upgrade-state"
PLUGIN = "nvidia.com/gpu.deploy.device-plugin"


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """The service with webhooks and a scheduler that calls it."""
    with serving(plane) as running:
        install_webhooks(plane, running)
        start_scheduler(plane, running)
        yield running


pytestmark = pytest.mark.usefixtures("service")


@pytest.mark.parametrize(
    ("key", "changing", "settled"),
    [
        pytest.param(MIG, "pending", "success", id="MIG layout"),
        pytest.param(MIG, "failed", "success", id="MIG layout that failed"),
        pytest.param(UPGRADE, "drain-required", "upgrade-done", id="driver upgrade"),
        pytest.param(PLUGIN, "paused-for-mig-change", "true", id="device plugin paused"),
    ],
)
def test_pod_that_waits_for_the_end_of_a_change_is_woken_by_the_labels_edit(
    plane: ControlPlane, key: str, changing: str, settled: str
) -> None:
    """In this cluster no other event happens that could wake the pod."""
    name = f"n-{changing}"
    namespace = create_namespace(plane, f"of-{name}")
    add_nodes(plane.api, [node_object(name, labels={key: changing, "turn": name})])
    pod = create_pod(plane, gpu_pod("waits", namespace, nodeSelector={"turn": name}))
    wait_for_refusal(plane, pod)

    plane.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {key: settled}}})

    assert wait_for_node(plane, pod, AT_ONCE_SECONDS) == name


def test_required_affinity_names_the_states(plane: ControlPlane) -> None:
    """NodeAffinity then refuses the node, and its queueing hint reacts to changes of node labels."""
    namespace = create_namespace(plane, "states")
    add_nodes(plane.api, [node_object("settled", labels={MIG: "success"})])
    pod = create_pod(plane, gpu_pod("asks", namespace))

    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]

    (term,) = required["nodeSelectorTerms"]
    assert {expression["key"]: expression["operator"] for expression in term["matchExpressions"]} == dict.fromkeys(
        (MIG, UPGRADE, PLUGIN), "NotIn"
    )


def test_no_pod_is_bound_to_a_new_node_before_its_slices_are_made(plane: ControlPlane) -> None:
    """F45, F46: kubelet, labels, device plugin, MIG Manager; two pods are tried after each step, a GPU's and a slice's.

    Without the rule for wished layouts four of these eight pods were bound to whole GPUs and to none that there is.
    """
    namespace, turn = create_namespace(plane, "coming-up"), {"turn": "coming-up"}
    wished = {**turn, "nvidia.com/mig.config": "all-1g.10gb"}
    add_nodes(plane.api, [node_object("coming-up", None, None, {}, labels=wished)])
    tried: list[Object] = []

    for step, (labels, units) in enumerate(COMING_UP):
        plane.api.patch("/api/v1/nodes/coming-up", {"metadata": {"labels": labels}})
        amounts = {name: str(amount) for name, amount in units.items()}
        status = {"status": {"allocatable": amounts, "capacity": amounts}}
        plane.api.patch("/api/v1/nodes/coming-up/status", status)
        for resource in (GPU, SLICE):
            name = f"{'slice' if resource == SLICE else 'gpu'}-{step}"
            tried.append(create_pod(plane, gpu_pod(name, namespace, {resource: 1}, nodeSelector=turn)))
            wait_until(f"{name} is tried", partial(was_tried, plane, tried[-1]), SOON_SECONDS)

    bound = [pod["metadata"]["name"] for pod in tried if read_pod(plane, pod)["spec"].get("nodeName")]
    plane.api.patch("/api/v1/nodes/coming-up", {"metadata": {"labels": {MIG: "success"}}})

    assert bound == []
    for pod in tried:
        if pod["metadata"]["name"].startswith("slice"):
            assert wait_for_node(plane, pod) == "coming-up"
        else:
            assert not read_pod(plane, pod)["spec"].get("nodeName")


def was_tried(plane: ControlPlane, pod: Object) -> bool:
    stored = read_pod(plane, pod)
    return bool(stored["spec"].get("nodeName") or refusal(stored))


GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
DEPLOY = "nvidia.com/gpu.deploy."
DISCOVERED = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mig.strategy": "mixed",
    "nvidia.com/cuda.driver-version.full": "570.124.06",
    f"{DEPLOY}mig-manager": "true",
}
COMING_UP: tuple[tuple[dict[str, str], dict[str, int]], ...] = (
    ({}, {}),
    ({"nvidia.com/gpu.present": "true", f"{DEPLOY}driver": "true", PLUGIN: "true"}, {}),
    ({}, {GPU: 8}),
    (DISCOVERED, {GPU: 8}),
    ({PLUGIN: "paused-for-mig-change", MIG: "pending"}, {GPU: 0}),
    ({PLUGIN: "true"}, {GPU: 0, SLICE: 56}),
)
"""What changes at each step: labels, and the GPU resources that the kubelet reports."""
