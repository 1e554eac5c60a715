# SPDX-License-Identifier: Apache-2.0
"""A node while its MIG layout or driver changes: the edit of its state label wakes the pods that wait for it (F10)."""

from collections.abc import Iterator

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.e2e.stage import (
    Service,
    create_namespace,
    create_pod,
    gpu_pod,
    install_webhooks,
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


GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
