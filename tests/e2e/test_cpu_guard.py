# SPDX-License-Identifier: Apache-2.0
"""The component cpu-guard keeps CPU pods off GPU nodes, as the label of their namespace says."""

import base64
import json
import zlib
from collections.abc import Iterator

import pytest
import yaml

from app.admission.node_affinity import CPU_GUARD
from app.nodes.conditions import PRESENT
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.e2e.stage import (
    DEPLOY,
    Service,
    create_namespace,
    create_pod,
    eventually,
    install_webhooks,
    plain_pod,
    serving,
    wait_for_node,
)

FLEET = (
    node_object("h100", labels={PRESENT: "true"}),
    node_object("t4", "Tesla-T4", "470.82.01", {"nvidia.com/gpu": 4}, labels={PRESENT: "true"}),
    node_object("cpu", None, None, {}),
)


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """The service with the shipped policies, and the webhook of the cpu-guard."""
    add_nodes(plane.api, FLEET)
    plane.api.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    with serving(plane) as running:
        install_webhooks(plane, running)
        install_cpu_guard(plane, running)
        yield running


def install_cpu_guard(plane: ControlPlane, service: Service) -> None:
    """Install the webhook of the component with the URL of the process."""
    document = yaml.safe_load((DEPLOY / "components" / "cpu-guard" / "webhook.yaml").read_text("utf-8"))
    ca = base64.b64encode(service.ca.read_bytes()).decode()
    for webhook in document["webhooks"]:
        webhook["clientConfig"] = {"url": service.url + webhook["clientConfig"]["service"]["path"], "caBundle": ca}
    assert plane.kubectl("apply", "-f", "-", stdin=json.dumps(document)).code == 0
    probe = plain_pod(create_namespace(plane, "cpu-guard-probe", **{CPU_GUARD: "required"}), {"cpu": 1})
    eventually("the API server calls it", lambda: PRESENT in plane.kubectl.create(probe, dry_run=True).out)


@pytest.fixture(scope="module")
def scheduler(plane: ControlPlane, service: Service) -> None:
    """A plain kube-scheduler without an extender."""
    assert service.process.running
    plane.start_scheduler({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"})


@pytest.fixture
def namespace(service: Service, request: pytest.FixtureRequest) -> str:
    """The name of a namespace of the test's own, which the test creates with the label that it needs."""
    assert service.process.running
    return f"cpu-guard-{zlib.crc32(request.node.name.encode()):08x}"


@pytest.mark.parametrize("how", ["preferred", "required", "none"])
def test_cpu_pod_keeps_off_gpu_nodes_as_its_namespace_says(plane: ControlPlane, namespace: str, how: str) -> None:
    """F47."""
    labelled = create_namespace(plane, namespace, **{CPU_GUARD: how})

    pod = create_pod(plane, plain_pod(labelled, {"cpu": 1}))

    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    assert list(affinity) == ([] if how == "none" else [f"{how}DuringSchedulingIgnoredDuringExecution"])
    assert str(affinity).count(PRESENT) == len(affinity)


@pytest.mark.usefixtures("scheduler")
def test_cpu_pods_are_bound_off_the_gpu_nodes(plane: ControlPlane, namespace: str) -> None:
    """P39, F47: a plain kube-scheduler binds them to the node without GPUs."""
    labelled = create_namespace(plane, namespace, **{CPU_GUARD: "required"})

    pods = [create_pod(plane, plain_pod(labelled, {"cpu": 1}, f"p{number}")) for number in range(6)]

    assert {wait_for_node(plane, pod) for pod in pods} == {"cpu"}
