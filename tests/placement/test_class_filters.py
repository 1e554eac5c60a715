# SPDX-License-Identifier: Apache-2.0
"""Class filters: which nodes can never serve a demand, and the constant message for each refusal."""

import re
from dataclasses import replace
from typing import Any

import pytest

from app.knowledge.cuda_compatibility import AcceptedCompatibility
from app.placement.engine import judge_class
from app.policy.demand import Demand
from app.values.reasons import MESSAGE_LIMIT, Code
from app.whatif.node_template import node_template
from tests.builders import demand, gpus, knowledge, node, pod

SHARED = {"product": "NVIDIA-A10-SHARED", "labels": {"nvidia.com/gpu.sharing-strategy": "time-slicing"}}
MPS = {
    "product": "Tesla-T4-SHARED",
    "labels": {"nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/gpu.replicas": "2"},
}
SLICED = {"product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "labels": {"nvidia.com/mig.strategy": "single"}}
GEFORCE: dict[str, Any] = {
    "product": "NVIDIA-GeForce-RTX-4090",
    "driver": "550.54.15",
    "capacity": {"nvidia.com/gpu": 8},
}
SEVERAL = {**GEFORCE, "labels": {"nvidia.com/gpu.count": "4"}}
"""A node of eight GPUs, four of one model, which its labels describe, and four of another."""
CUDA_13 = "nvidia/cuda:13.0.0-base-ubuntu24.04"
TORCH = "nvcr.io/nvidia/pytorch:24.05-py3"


def mixed(state: str = "success", **offers: int) -> dict[str, Any]:
    """Describe a node of strategy mixed with slices 1g.10gb."""
    labels = {"nvidia.com/mig.strategy": "mixed", "nvidia.com/mig.config.state": state}
    return {"offers": {"nvidia.com/mig-1g.10gb": 7, **offers}, "labels": labels}


def wants(amount: int = 1, image: str = "train:1", resource: str = "nvidia.com/gpu", **annotations: str) -> Demand:
    named = {key.replace("_", "-"): value for key, value in annotations.items()}
    return demand(pod(gpus(amount, resource, image=image), annotations=named))


SLICE = "nvidia.com/mig-1g.10gb"
TABLE = [
    # product (F30, F31, F32)
    (wants(products="H100"), {}, None),
    (wants(products="A10"), {"product": "NVIDIA-A100-SXM4-80GB"}, "ProductNotAllowed"),
    (wants(products="A100"), {"product": "NVIDIA-A10"}, "ProductNotAllowed"),
    (wants(products="!H100"), {}, "ProductNotAllowed"),
    (wants(products="H100"), {"product": None}, "GPUFactsMissing"),
    (wants(products="A10"), SHARED, None),
    # sharing (F69): an exclusive demand never gets a share or a slice
    (wants(sharing="Exclusive"), {}, None),
    (wants(sharing="Exclusive"), SHARED, "SharingNotAllowed"),
    (wants(sharing="Exclusive"), MPS, "SharingNotAllowed"),
    (wants(sharing="Exclusive"), SLICED, "SharingNotAllowed"),
    (wants(sharing="Exclusive", resource=SLICE), mixed(), None),
    (wants(sharing="Shared"), SHARED, None),
    (wants(sharing="Shared"), MPS, None),
    (wants(sharing="Shared"), {}, "SharingNotAllowed"),
    # MIG (F45, F57, F59, F62, F63)
    (wants(resource=SLICE), mixed(), None),
    (wants(resource=SLICE), mixed("pending"), "MIGReconfiguring"),
    (wants(resource=SLICE), mixed("failed"), "MIGLayoutFailed"),
    (wants(resource=SLICE), mixed("rebooting"), "MIGReconfiguring"),
    (wants(), {"labels": {"nvidia.com/mig.config.state": "pending"}}, "MIGReconfiguring"),
    (wants(resource=SLICE), {}, "MIGProfileAbsent"),
    (wants(), {"product": "NVIDIA-A100-SXM4-80GB-MIG-INVALID", "offers": {"nvidia.com/gpu": 0}}, "MIGInvalid"),
    (wants(mig_profile="1g.10gb"), SLICED, None),
    (wants(mig_profile="2g.20gb"), SLICED, "MIGProfileAbsent"),
    (wants(mig_profile=">=1g.5gb"), SLICED, None),
    (wants(mig_profile=">=2g.20gb"), SLICED, "MIGProfileAbsent"),
    (wants(mig_profile=">=3g.40gb"), {"labels": {"nvidia.com/gpu.memory": "81559"}}, None),
    # driver and CUDA (F34, F36)
    (wants(image=TORCH), {"driver": "550.54.15"}, None),
    (wants(image=TORCH), {"driver": "525.60.13"}, None),
    (wants(image=TORCH), {"driver": "525.60.12"}, "DriverTooOld"),
    (wants(image=TORCH), {"driver": None}, None),
    (wants(cuda="12.4"), {"driver": "520.61.05"}, "DriverTooOld"),
    (wants(image="nvidia/cuda:12.4.1-base-ubuntu22.04"), {"driver": "545.23.08"}, "ImageRequirementUnmet"),
    (wants(image="nvidia/cuda:12.6.3-base-ubuntu22.04"), GEFORCE, "ImageRequirementUnmet"),
    (wants(image="nvidia/cuda:12.6.3-base-ubuntu22.04"), SEVERAL, "ImageRequirementUnmet"),
    # compute capability (F35), memory (F37), interconnect
    (wants(compute_capability="9.0"), {}, None),
    (wants(compute_capability="9.0"), {"product": "Tesla-T4"}, "ComputeCapabilityTooLow"),
    (wants(image=CUDA_13), {"product": "Tesla-V100-SXM2-32GB", "driver": "580.65.06"}, "ComputeCapabilityUnsupported"),
    (wants(gpu_memory="80Gi"), {"labels": {"nvidia.com/gpu.memory": "81559"}}, None),
    (wants(gpu_memory="80GB"), {"labels": {"nvidia.com/gpu.memory": "76185"}}, "GPUMemoryTooSmall"),
    (wants(gpu_memory="80Gi"), {"labels": {"nvidia.com/gpu.memory": "76186"}}, None),
    (wants(gpu_memory="40Gi"), {"product": "Tesla-T4"}, "GPUMemoryTooSmall"),
    (wants(gpu_memory="10Gi"), MPS, "GPUMemoryTooSmall"),
    (wants(gpu_memory="7Gi"), MPS, None),
    (wants(interconnect="NVLink"), {}, None),
    (wants(interconnect="NVLink"), {"product": "NVIDIA-H100-PCIe"}, "InterconnectAbsent"),
    (wants(interconnect="NVLink"), SLICED, "InterconnectAbsent"),
    # health and presence (F44, F46, P38, P42)
    (wants(), {"labels": {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}}, "DriverUpgrading"),
    (wants(), {"labels": {"nvidia.com/gpu-driver-upgrade-state": "upgrade-required"}}, None),
    (wants(), {"labels": {"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}}, None),
    (wants(), {"offers": {"nvidia.com/gpu": 0}}, "GhostGPUs"),
    (wants(), {"product": None, "offers": {}}, "ResourceNotOffered"),
    (wants(8), {}, None),
    (wants(9), {}, "RequestExceedsNode"),
    (wants(resource="amd.com/gpu"), {}, "ResourceNotOffered"),
    (wants(resource="amd.com/gpu"), {"offers": {"nvidia.com/gpu": 0}}, "ResourceNotOffered"),
    # an annotation that does not parse is refused everywhere (docs/reference/policy.md#annotations)
    (wants(cuda="new"), {}, "InvalidAnnotation"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("pod_demand", "made", "expected"), [pytest.param(*row, id=f"{index} {row[2]}") for index, row in enumerate(TABLE)]
)
def test_node_is_refused_for_the_right_reason_or_not_at_all(
    pod_demand: Demand, made: dict[str, Any], expected: str | None
) -> None:
    """F30 to F32, F34 to F37, F44 to F46, F57, F59, F62, F63, F69, P15, P38, P42."""
    refusal = judge_class(pod_demand, node(**made).node_class)

    assert expected == (refusal.code.name if refusal else None)


V100 = {"karpenter.azure.com/sku-gpu-name": "V100"}
"""AKS names a V100, and its labels do not say whether it has 16 or 32 GB."""
V100_OF_EC2 = {"karpenter.k8s.aws/instance-gpu-name": "v100", "karpenter.k8s.aws/instance-gpu-memory": "40960"}
"""EC2 names a V100, which has 16 or 32 GB, with a memory figure that is neither."""


@pytest.mark.parametrize(
    ("labels", "pod_demand", "expected"),
    [
        (V100, wants(mig_profile=">=1g.20gb"), None),
        (V100, wants(mig_profile=">=3g.40gb"), "MIGProfileAbsent"),
        (V100, wants(gpu_memory="32Gi"), None),
        (V100, wants(gpu_memory="40Gi"), "GPUMemoryTooSmall"),
        (V100_OF_EC2, wants(gpu_memory="32Gi"), None),
        (V100_OF_EC2, wants(gpu_memory="40Gi"), "GPUMemoryTooSmall"),
    ],
)
def test_memory_that_no_possible_product_has_is_not_hoped_for(
    labels: dict[str, str], pod_demand: Demand, expected: str | None
) -> None:
    """F37, F59: where several products of different sizes are possible, the node has at most the memory of the
    largest."""
    refusal = judge_class(pod_demand, node(product=None, driver=None, labels=labels).node_class)

    assert expected == (refusal.code.name if refusal else None)


def test_message_is_one_for_all_nodes_and_names_what_is_wanted_alone() -> None:
    """P23: kube-scheduler groups equal messages, so a message must not name anything of the node
    (docs/reference/reasons.md)."""
    pod_demand = wants(products="H100, H200", cuda="12.4")
    makes = [{"product": product, "driver": "470.57.02"} for product in ("Tesla-T4", "NVIDIA-A10", "NVIDIA-L4")]

    refusals = {judge_class(pod_demand, node(**make).node_class) for make in makes}  # type: ignore[arg-type]

    assert {refusal.message for refusal in refusals if refusal} == {"GPU product not allowed: wants H100 or H200"}


def test_every_message_is_short() -> None:
    many = ", ".join(f"NVIDIA-GPU-{index}" for index in range(30))

    refusal = judge_class(wants(products=many), node().node_class)

    assert refusal is not None
    assert len(refusal.message) <= MESSAGE_LIMIT


@pytest.mark.parametrize(
    ("handlers", "handler", "expected"),
    [
        pytest.param(None, "nvidia", None, id="not known"),
        pytest.param(["", "runc"], "", None, id="the pod has no class, or one that is not known"),
        pytest.param(["", "runc"], "nvidia", "RuntimeHandlerAbsent", id="not there"),
        pytest.param(["", "nvidia"], "nvidia", None, id="there"),
    ],
)
def test_node_without_the_handler_of_the_pods_class_is_refused(
    handlers: list[str] | None, handler: str, expected: str | None
) -> None:
    """F27: the kubelet of such a node would not start the pod."""
    known = None if handlers is None else frozenset(handlers)
    node_class = replace(node().node_class, runtime_handlers=known)

    refusal = judge_class(replace(wants(), runtime_handler=handler), node_class)

    assert (refusal.code.name if refusal else None) == expected


@pytest.mark.parametrize("accept", ["ForwardCompatible", "MinorVersion", "Native"])
@pytest.mark.parametrize("product", ["NVIDIA-A100-SXM4-80GB", "NVIDIA-GeForce-RTX-4090", "NVIDIA-L4"])
@pytest.mark.parametrize(
    "image",
    [
        *(
            f"nvidia/cuda:{tag}-runtime-ubuntu22.04"
            for tag in ("11.8.0", "12.1.1", "12.4.1", "12.6.3", "12.9.1", "13.0.0")
        ),
        *(f"nvcr.io/nvidia/pytorch:{tag}-py3" for tag in ("22.12", "24.06", "25.01", "25.09")),
        "pytorch/pytorch:2.6.0-cuda12.6-cudnn9-runtime",
        "vllm/vllm-openai:v0.7.3",
    ],
)
def test_a_driver_that_the_message_names_fits(image: str, product: str, accept: str) -> None:
    """The drivers that DriverTooOld and a node template name, put on the node, are refused no more."""
    asked = replace(wants(image=image), accept=AcceptedCompatibility[accept])
    refusal = judge_class(asked, node(product=product, driver="418.40.04").node_class)

    assert refusal is not None
    assert refusal.code is Code.DriverTooOld
    named = refusal.message.partition("wants ")[2].partition(", or policy field")[0]
    drivers = [f"{branch}.999.99" for branch in re.findall(r"(?<![\d.])\d{3}(?![\d.])", named.partition("branch")[2])]
    drivers += [*re.findall(r">= ([\d.]+)", named), node_template(asked, {}, knowledge()).driver]
    for driver in drivers:
        assert judge_class(asked, node(product=product, driver=driver).node_class) is None, (driver, refusal.message)
