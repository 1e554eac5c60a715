# SPDX-License-Identifier: Apache-2.0
"""A small fleet of mixed nodes, and pods that wait on it, each for another cause that people meet."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.controlplane.fleet import node_object
from tests.controlplane.kubectl import Object
from tests.e2e.stage import gpu_pod

GPU = "nvidia.com/gpu"
HOPPER, AMPERE, ADA, TURING = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "NVIDIA-L4", "Tesla-T4"
DRIVER, OLD_DRIVER = "570.124.06", "470.82.01"


@dataclass(frozen=True, slots=True)
class WaitingCase:
    """A pod that waits: what its author wanted, the limits and the rest of `gpu_pod`, and the reason of its Event."""

    name: str
    wish: str
    reason: str
    limits: dict[str, Any] = field(default_factory=lambda: {GPU: 1})
    pod: dict[str, Any] = field(default_factory=dict)

    def document(self, namespace: str) -> Object:
        """Write the pod."""
        return gpu_pod(self.name, namespace, self.limits, **self.pod)


def wishes(**annotations: str) -> dict[str, Any]:
    """Write annotations of ours as `gpu_pod` takes them; names have `_` for `-`."""
    return {"annotations": {key.replace("_", "-"): value for key, value in annotations.items()}}


CASES = (
    WaitingCase("busy", "4 H100, of which 2 are free", "InsufficientGPUs", {GPU: 4}, wishes(products="H100")),
    WaitingCase("too-many", "16 GPUs in one pod", "RequestExceedsNode", {GPU: 16}),
    WaitingCase("not-here", "a B200, which the fleet has not", "ProductNotAllowed", pod=wishes(products="B200")),
    WaitingCase(
        "new-cuda", "CUDA 12.4 on an A100, whose driver is of 2021", "DriverTooOld",
        pod=wishes(products="A100", cuda="12.4"),
    ),
    WaitingCase("large-model", "200 GiB on one GPU", "GPUMemoryTooSmall", pod=wishes(gpu_memory="200Gi")),
    WaitingCase(
        "whole-gpu", "an L4 of its own, where L4 are time-sliced", "SharingNotAllowed",
        pod=wishes(products="L4", sharing="Exclusive"),
    ),
    WaitingCase("other-slice", "a MIG slice that no node has", "MIGProfileAbsent", {"nvidia.com/mig-3g.40gb": 1}),
    WaitingCase("amd", "an AMD GPU", "ResourceNotOffered", {"amd.com/gpu": 1}),
    WaitingCase("cordoned", "an A10, whose node is cordoned", "NodeUnschedulable", pod=wishes(products="A10")),
    WaitingCase("tainted", "a V100, whose node is another team's", "UntoleratedTaint", pod=wishes(products="V100")),
    WaitingCase(
        "other-zone", "a zone without nodes", "NodeAffinityMismatch",
        pod={"nodeSelector": {"topology.kubernetes.io/zone": "eu-1c"}},
    ),
    WaitingCase("many-cpus", "200 CPUs beside the GPU", "InsufficientResource", {GPU: 1, "cpu": "200"}),
    WaitingCase("ghost", "an A40, whose device plugin offers none", "GhostGPUs", pod=wishes(products="A40")),
    WaitingCase("nvlink", "NVLink between L4", "InterconnectAbsent", pod=wishes(products="L4", interconnect="NVLink")),
    WaitingCase("new-kernels", "compute capability 9.0 on a T4", "ComputeCapabilityTooLow",
                pod=wishes(products="T4", compute_capability="9.0")),
    WaitingCase("mig-changes", "an A30, whose MIG layout is being changed", "MIGReconfiguring",
                pod=wishes(products="A30")),
    WaitingCase("driver-changes", "an L40S, whose driver is being upgraded", "DriverUpgrading",
                pod=wishes(products="L40S")),
    WaitingCase("sick", "8 GPUs of a node that has one unhealthy", "GPUUnhealthy", {GPU: 8}, wishes(products="H200")),
    WaitingCase("image", "an image that wants CUDA 13", "ImageRequirementUnmet",
                pod={"env": [{"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=13.0"}]}),
    WaitingCase("full-node", "a node that runs as many pods as it may", "TooManyPods", pod=wishes(products="P100")),
)  # fmt: skip
"""The cases, each with the reason that a person would act upon."""


def holder(namespace: str) -> Object:
    """Write the pod that holds six of the eight H100."""
    return gpu_pod("holder", namespace, {GPU: 6}, **wishes(products="H100"))


def fleet() -> Iterator[Object]:
    """Write the nodes."""
    yield node_object("h100", HOPPER, DRIVER, {GPU: 8})
    yield node_object("a100", AMPERE, OLD_DRIVER, {GPU: 4})
    shared = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    yield node_object("l4", f"{ADA}-SHARED", DRIVER, {GPU: 8}, labels={**shared, "nvidia.com/gpu.count": "2"})
    yield node_object("t4", TURING, DRIVER, {GPU: 2}, labels={"nvidia.com/gpu.count": "2"})
    cordoned = node_object("a10", "NVIDIA-A10", DRIVER, {GPU: 1})
    yield {**cordoned, "spec": {"unschedulable": True}}
    dedicated = [{"key": "team", "value": "vision", "effect": "NoSchedule"}]
    yield node_object("v100", "Tesla-V100-SXM2-32GB", DRIVER, {GPU: 8}, taints=dedicated)
    yield node_object("a40", "NVIDIA-A40", DRIVER, {})
    yield node_object("a30", "NVIDIA-A30", DRIVER, {GPU: 4}, labels={"nvidia.com/mig.config.state": "pending"})
    upgrading = {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}
    yield node_object("l40s", "NVIDIA-L40S", DRIVER, {GPU: 4}, labels=upgrading)
    yield node_object("h200", "NVIDIA-H200", DRIVER, {GPU: 7}, capacity={GPU: 8})
    yield node_object("p100", "Tesla-P100-PCIE-16GB", DRIVER, {GPU: 2, "pods": 0})
    yield node_object("cpu", None, None, {})
