# SPDX-License-Identifier: Apache-2.0
"""A refusal for each cause that can end while the pod stays as it is: a node, a pod, and the change that ends it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.controlplane.fleet import node_object
from tests.controlplane.kubectl import Object

GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"
SHARED = {
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
    "nvidia.com/gpu.replicas": "4",
    "nvidia.com/gpu.count": "1",
}
NEW_DRIVER = {"nvidia.com/cuda.driver-version.full": "570.124.06", "nvidia.com/cuda.driver-version.major": "570"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refusal. `node` are arguments of node_object, `pod` those of gpu_pod; `holder` is a pod that must go first.

    `labels` and `allocatable` are the change of the node that ends the refusal; without both the holder is deleted.
    """

    code: str
    node: Mapping[str, Any] = field(default_factory=dict)
    pod: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    holder: Mapping[str, Any] | None = None

    @property
    def change(self) -> str:
        """What ends the refusal, in words."""
        if self.labels:
            return "label edit"
        return "allocatable change" if self.allocatable else "deletion of a pod"

    def node_object(self, name: str) -> Object:
        """Write the node, which alone has its name as the label `turn`."""
        labels = {**self.node.get("labels", {}), "turn": name}
        return node_object(name, **{**self.node, "labels": labels})


REFUSALS = (
    Refusal(
        "ProductNotAllowed",
        {"product": "Tesla-T4"},
        {"annotations": {"products": "A10"}},
        {PRODUCT: "NVIDIA-A10"},
    ),
    Refusal("DriverTooOld", {"driver": "470.82.01"}, {"annotations": {"cuda": "12.4"}}, NEW_DRIVER),
    Refusal(
        "ImageRequirementUnmet",
        {"driver": "535.104.05"},
        {"env": [{"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=12.4 driver>=550"}]},
        NEW_DRIVER,
    ),
    Refusal(
        "ComputeCapabilityTooLow",
        {"product": "Tesla-T4"},
        {"annotations": {"compute-capability": "8.0"}},
        {PRODUCT: "NVIDIA-A10"},
    ),
    Refusal(
        "GPUMemoryTooSmall",
        {"product": "NVIDIA-A10"},
        {"annotations": {"gpu-memory": "40Gi"}},
        {PRODUCT: "NVIDIA-H100-80GB-HBM3"},
    ),
    Refusal(
        "SharingNotAllowed",
        {"product": "NVIDIA-A10-SHARED", "offers": {GPU: 4}, "labels": SHARED},
        {"annotations": {"sharing": "Exclusive"}},
        {PRODUCT: "NVIDIA-A10", "nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/gpu.replicas": "1",
         "nvidia.com/gpu.count": "4"},
    ),
    Refusal(
        "MIGInvalid",
        {"product": "NVIDIA-A100-SXM4-80GB-MIG-INVALID", "labels": {"nvidia.com/mig.strategy": "single"}},
        {},
        {PRODUCT: "NVIDIA-A100-SXM4-80GB"},
    ),
    Refusal("MIGReconfiguring", {"labels": {"nvidia.com/mig.config.state": "pending"}}, {},
            {"nvidia.com/mig.config.state": "success"}),
    Refusal("MIGLayoutFailed", {"labels": {"nvidia.com/mig.config.state": "failed"}}, {},
            {"nvidia.com/mig.config.state": "success"}),
    Refusal("DriverUpgrading", {"labels": {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}}, {},
            {"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}),
    Refusal(
        "InterconnectAbsent",
        {"product": "NVIDIA-A100-PCIE-40GB"},
        {"annotations": {"interconnect": "NVLink"}},
        {PRODUCT: "NVIDIA-A100-SXM4-40GB"},
    ),
    Refusal(
        "GPUFactsMissing",
        {"product": None, "driver": None, "offers": {GPU: 8}},
        {"annotations": {"products": "H100"}},
        {PRODUCT: "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"},
    ),
    Refusal(
        "DriverUnknown",
        {"driver": None},
        {"annotations": {"cuda": "12.4"}, "labels": {"only": "DriverUnknown"}},
        NEW_DRIVER,
    ),
    Refusal(
        "ComputeCapabilityUnsupported",
        {"product": "Tesla-V100-SXM2-32GB", "driver": "580.65.06"},
        {"image": "nvidia/cuda:13.0.0-base-ubuntu24.04"},
        {PRODUCT: "NVIDIA-A10"},
    ),
    Refusal(
        "FormFactorNotAllowed",
        {"product": "NVIDIA-H100-PCIe"},
        {"labels": {"only": "FormFactorNotAllowed"}},
        {PRODUCT: "NVIDIA-H100-80GB-HBM3"},
    ),
    Refusal("NodeExcluded", {}, {"labels": {"only": "NodeExcluded"}}, {"pool": "training"}),
    Refusal("ResourceNotOffered", {"product": None, "driver": None, "offers": {}}, {}, allocatable={GPU: "8"}),
    Refusal("GhostGPUs", {"offers": {}}, {}, allocatable={GPU: "8"}),
    Refusal("RequestExceedsNode", {"offers": {GPU: 2}}, {"limits": {GPU: 4}}, allocatable={GPU: "4"}),
    Refusal(
        "MIGProfileAbsent",
        {"product": "NVIDIA-A100-SXM4-80GB"},
        {"limits": {"nvidia.com/mig-1g.10gb": 1}},
        allocatable={"nvidia.com/mig-1g.10gb": "7"},
    ),
    Refusal("GPUUnhealthy", {"offers": {GPU: 7}, "capacity": {GPU: 8}}, {}, allocatable={GPU: "8"}),
    Refusal("InsufficientGPUs", {"offers": {GPU: 1}}, {}, holder={}),
    Refusal(
        "NamespaceLimitReached",
        {"product": "NVIDIA-L40S", "offers": {GPU: 2}},
        {"labels": {"only": "NamespaceLimitReached"}},
        holder={},
    ),
    Refusal(
        "GPUMemoryBudgetExceeded",
        {"product": "NVIDIA-A10-SHARED", "offers": {GPU: 4},
         "labels": {**SHARED, "nvidia.com/gpu.memory": "23028"}},
        {"annotations": {"gpu-memory": "8Gi"}},
        holder={"annotations": {"gpu-memory": "20Gi"}},
    ),
)  # fmt: skip
POLICIES = {
    "DriverUnknown": "unknownFacts: Refuse",
    "FormFactorNotAllowed": "formFactor: [SXM]",
    "NamespaceLimitReached": "namespaceLimits: [{products: [L40S], gpus: 1}]",
    "NodeExcluded": "nodeSelector: {matchExpressions: [{key: pool, operator: In, values: [training]}]}",
}
"""What a policy places by, for the pods that have the code as their label `only`."""
NOT_STAGED = {
    "NodeNotKnown": "ends as soon as our own watch has the node",
    "ArchitectureNotAllowed": "ends as ProductNotAllowed does, when the labels change",
    "ConfidentialComputingOff": "ends when the CC manager changes its labels",
    "GPUModeNotAllowed": "ends when GFD changes its label",
    "LayoutDoesNotFit": "ends as InsufficientGPUs does, by the deletion of a pod",
    "ImageForOtherMachine": "ends by another image or a node of another architecture alone",
    "ImageWithoutCodeForGPU": "ends by another image or another GPU alone",
    "GPUHeldByClaim": "ends as InsufficientGPUs does, by the deletion of the pods with claims there",
    "GPUHeldByDevicePlugin": "ends as InsufficientGPUs does, by the deletion of the pods with GPUs of the plugin there",
    "InsufficientGPUsOnNUMANode": "ends as InsufficientGPUs does, or when the NodeResourceTopology changes",
    "RequestExceedsNUMANode": "ends when the NodeResourceTopology changes",
    "OfferedByClaimOnly": "ends as ResourceNotOffered does, when a device plugin offers the resource",
    "RuntimeHandlerAbsent": "ends when the kubelet reports the handler in the node's status",
    "GPUWithoutCUDA": "ends by another image or a node of another vendor alone",
    "InvalidAnnotation": "ends by an edit of the pod itself alone",
}
"""The codes that refuse nodes and have no row above, and how such a refusal ends."""
