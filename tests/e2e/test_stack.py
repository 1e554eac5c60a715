# SPDX-License-Identifier: Apache-2.0
"""Nodes with the labels and taints of each cloud and NVIDIA component: admission reads them, a plain scheduler obeys.

There is no extender: node affinity and tolerations alone must lead to the node, as on managed control planes.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from app.cluster.files import shipped_policies
from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object
from tests.e2e.stage import (
    Service,
    create_namespace,
    create_pod,
    install_webhooks,
    plain_pod,
    serving,
    wait_for_node,
)

GPU, SLICE, SHARE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"
WHERE = "stack"
PLAIN = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def taint(key: str, value: str) -> Object:
    return {"key": key, "value": value, "effect": "NoSchedule"}


def feature_labels(memory: int, major: int, **more: str) -> Object:
    """Return labels of GPU Feature Discovery besides product and driver; `more` has `__` for `/` and `_` for `-`."""
    labels = {key.replace("__", "/").replace("_", "-"): value for key, value in more.items()}
    return {"nvidia.com/gpu.memory": str(memory), "nvidia.com/gpu.compute.major": str(major), **labels}


def cloud_node(name: str, labels: Object, *taints: Object) -> Object:
    """Write a node that has only its cloud's labels."""
    return node_object(name, None, None, {GPU: 8}, labels=labels, taints=list(taints))


FLEET = (
    node_object("gfd-h100", labels=feature_labels(81559, 9), taints=[taint(GPU, "present"), taint("dedicated", "red")]),
    node_object(
        "gfd-t4", "Tesla-T4", "535.104.05", {GPU: 4}, labels=feature_labels(15360, 7), taints=[taint(GPU, "present")]
    ),
    node_object(
        "operator-old",
        "NVIDIA-A10",
        None,
        {GPU: 4},
        labels={
            **feature_labels(23028, 8),
            "nvidia.com/cuda.driver.major": "550",
            "nvidia.com/cuda.driver.minor": "54",
        },
    ),
    node_object("mig-mixed", "NVIDIA-A100-SXM4-80GB", offers={SLICE: 7}, labels=feature_labels(81920, 8)),
    node_object(
        "renamed",
        "Tesla-V100-SXM2-32GB",
        offers={SHARE: 4},
        labels={
            **feature_labels(32768, 7),
            "nvidia.com/gpu.sharing-strategy": "time-slicing",
            "nvidia.com/gpu.replicas": "4",
        },
    ),
    cloud_node("gke-l4", {"cloud.google.com/gke-accelerator": "nvidia-l4"}, taint(GPU, "present")),
    cloud_node(
        "eks-l40s",
        {"karpenter.k8s.aws/instance-gpu-name": "l40s", "karpenter.k8s.aws/instance-gpu-memory": "45776"},
        taint(GPU, "true"),
    ),
    cloud_node(
        "aks-a100",
        {"karpenter.azure.com/sku-gpu-name": "A100"},
        taint("sku", "gpu"),
        taint("kubernetes.azure.com/scalesetpriority", "spot"),
    ),
    cloud_node("aks-t4", {"karpenter.azure.com/sku-gpu-name": "T4"}, taint("sku", "gpu")),
)
RUNTIME_CLASSES: tuple[Object, ...] = (
    {"metadata": {"name": "nvidia"}, "handler": "nvidia"},
    {"metadata": {"name": "nvidia-cdi"}, "handler": "nvidia-cdi"},
    {"metadata": {"name": "crio"}, "handler": "nvidia-container-runtime"},
)
ONLY = "priority: 10, match: {{podSelector: {{matchLabels: {{test: {}}}}}}}, admission: {{{}}}"


@pytest.fixture(scope="module")
def service(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Nodes of every origin, the service with the shipped policies, and a plain scheduler."""
    folder = tmp_path_factory.mktemp("policies")
    for path in shipped_policies().glob("*.yaml"):
        (folder / path.name).write_text(path.read_text("utf-8"), "utf-8")
    (folder / "own.yaml").write_text(policy("crio", ONLY.format("crio", "runtimeClassName: crio")), "utf-8")
    add_nodes(plane.api, FLEET)
    plane.api.create_all("/apis/node.k8s.io/v1/runtimeclasses", RUNTIME_CLASSES)
    with serving(plane, policies=str(folder)) as running:
        install_webhooks(plane, running)
        plane.start_scheduler(PLAIN)
        create_namespace(plane, WHERE)
        yield running


pytestmark = pytest.mark.usefixtures("service")


@pytest.mark.parametrize(
    ("name", "limits", "annotations", "node"),
    [
        pytest.param("t4", {GPU: 1}, {"products": "T4"}, {"gfd-t4", "aks-t4"}, id="S1 S3 a product, by GFD or AKS"),
        pytest.param("slice", {SLICE: 1}, {}, {"mig-mixed"}, id="S4 a slice that MIG Manager made"),
        pytest.param("share", {SHARE: 1}, {"sharing": "Shared"}, {"renamed"}, id="S1 a share under its own name"),
        pytest.param("l4", {GPU: 1}, {"products": "L4"}, {"gke-l4"}, id="S9 GKE"),
        pytest.param("l40s", {GPU: 1}, {"products": "L40S"}, {"eks-l40s"}, id="S8 S9 EKS with Karpenter"),
        pytest.param("aks", {GPU: 1}, {"products": "T4", "gpu-memory": "8Gi"}, {"gfd-t4", "aks-t4"}, id="S9 AKS"),
        pytest.param("cuda", {GPU: 1}, {"products": "A10", "cuda": "12.4"}, {"operator-old"}, id="S2 S3 old labels"),
        pytest.param("big", {GPU: 1}, {"gpu-memory": "40Gi", "products": "!H100, !A100"}, {"eks-l40s"}, id="S8 memory"),
    ],
)
def test_pod_finds_its_node_by_labels_and_taints_alone(
    plane: ControlPlane, name: str, limits: Object, annotations: dict[str, str], node: set[str]
) -> None:
    """P28, S1, S2, S3, S4, S8, S9, F10: nodes with the labels of every origin are in one fleet."""
    pod = plain_pod(WHERE, limits, name=name, annotations=annotations)

    create_pod(plane, pod)

    assert wait_for_node(plane, pod) in node


@pytest.mark.parametrize(
    ("labels", "spec", "expected"),
    [
        pytest.param({}, {"annotations": {"products": "A10"}}, "nvidia", id="S5 the policy's"),
        pytest.param({}, {"runtimeClassName": "nvidia-cdi"}, "nvidia-cdi", id="S2 S5 CDI, chosen by the pod"),
        pytest.param({"test": "crio"}, {}, "crio", id="S7 CRI-O's handler"),
    ],
)
def test_runtime_class_is_all_that_a_container_runtime_wants(
    plane: ControlPlane, labels: dict[str, str], spec: dict[str, Any], expected: str
) -> None:
    """S2, S5, S7: containerd and CRI-O differ in the handler of the class, which the webhook need not know.

    The policy leaves the class out where a node that fits, such as that of GKE here, needs none.
    """
    name = f"class-{expected}"

    pod = create_pod(plane, plain_pod(WHERE, name=name, labels=labels, **spec))

    assert pod["spec"]["runtimeClassName"] == expected
