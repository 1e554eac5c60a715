# SPDX-License-Identifier: Apache-2.0
"""`scheduler-config --no-extender` on a real kube-scheduler: its own loader reads it, and GPUs keep their CPU."""

from collections.abc import Iterator

import pytest
import yaml
from typer.testing import CliRunner

from app.cli.verbs import app
from tests.controlplane.cluster import ControlPlane, Scheduler
from tests.controlplane.fleet import add_nodes, node_object, pod_path
from tests.controlplane.kubectl import Object
from tests.e2e.stage import OURS, create_namespace, create_pod, eventually, gpu_pod, pods_of, wait_for_node

GPU = "nvidia.com/gpu"
WHERE = "packed"
NODES = 6
LIST = [{"name": "PodTopologySpread", "args": {"defaultingType": "List"}}]
UNREACHABLE: Object = {
    "urlPrefix": "http://127.0.0.1:9/scheduler",
    "filterVerb": "filter",
    "managedResources": [{"name": "example.com/other", "ignoredByScheduler": False}],
}
"""An extender that no pod here concerns."""


@pytest.fixture(scope="module", autouse=True)
def _nodes(plane: ControlPlane) -> None:
    """Register nodes of eight GPUs each."""
    add_nodes(plane.api, [node_object(f"gpu-{index}") for index in range(NODES)])
    create_namespace(plane, WHERE)


@pytest.fixture(params=["second", "default"])
def scheduler(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Scheduler]:
    """Start kube-scheduler with what the command prints."""
    words = ["scheduler-config", "--no-extender", "--for", request.param]
    running = plane.start_scheduler(yaml.safe_load(CliRunner().invoke(app, words).output), OURS)
    yield running
    plane.stop(OURS)
    for pod in pods_of(plane, WHERE):
        plane.api.delete(pod_path(pod))
    eventually("the pods are gone", lambda: not pods_of(plane, WHERE))


def place(plane: ControlPlane, name: str, gpus: int, cores: int) -> str:
    """Create a pod, and return its node."""
    pod = gpu_pod(name, WHERE, {GPU: gpus, "cpu": cores})
    return wait_for_node(plane, create_pod(plane, pod))


def hints_used(scheduler: Scheduler) -> float:
    """Return how many pods got the node that was found for an equal one before them."""
    lines = [line for line in scheduler.metrics().splitlines() if line.startswith("scheduler_batch_attempts_total{")]
    return sum(float(line.split()[-1]) for line in lines if 'result="hint_used"' in line)


def test_pods_with_much_cpu_join_one_with_many_gpus(plane: ControlPlane, scheduler: Scheduler) -> None:
    """F88: GPUs and CPU of a node of 8 GPUs and 64 cores are used up together, while five nodes are empty."""
    first = place(plane, "gpus", 4, 1)
    others = [place(plane, f"cores-{index}", 1, 24) for index in range(2)]

    assert scheduler.process.running
    assert others == [first, first]


def create_together(plane: ControlPlane, count: int, scheduler_name: str = OURS) -> None:
    """Create pods that each fill a node, while no scheduler runs."""
    for index in range(count):
        pod = gpu_pod(f"whole-{index}", WHERE, {GPU: 8})
        pod["spec"]["schedulerName"] = scheduler_name
        create_pod(plane, pod)


@pytest.mark.parametrize(
    ("extenders", "batched"), [([], True), ([UNREACHABLE], False)], ids=["no extender", "an extender of others"]
)
def test_extender_switches_batching_off_for_pods_that_it_is_not_asked_about(
    plane: ControlPlane, extenders: list[Object], batched: bool
) -> None:
    """F88: equal pods that fill a node each get their nodes by the result for the first, unless there is an extender.

    See docs/reference/control-plane.md#batching.
    """
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "batching", "pluginConfig": LIST}],
        "extenders": extenders,
    }
    create_together(plane, NODES, "batching")
    running = plane.start_scheduler(document, "batching")
    try:
        eventually("all are placed", lambda: all(pod["spec"].get("nodeName") for pod in pods_of(plane, WHERE)))
        assert (hints_used(running) > 0) is batched
    finally:
        plane.stop("batching")
        for pod in pods_of(plane, WHERE):
            plane.api.delete(pod_path(pod))
        eventually("the pods are gone", lambda: not pods_of(plane, WHERE))
