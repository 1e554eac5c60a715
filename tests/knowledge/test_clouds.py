# SPDX-License-Identifier: Apache-2.0
"""Cloud labels and machine types: which product they mean, and what is known where they may mean several."""

from typing import Any

import pytest

from app.knowledge.clouds import InstanceTypes
from app.placement.engine import judge_class
from tests.builders import demand, gpus, knowledge, node, pod, policies, policy

INSTANCE = "node.kubernetes.io/instance-type"
GKE = "cloud.google.com/gke-accelerator"
KARPENTER, KARPENTER_MEMORY = "karpenter.k8s.aws/instance-gpu-name", "karpenter.k8s.aws/instance-gpu-memory"
AUTO, AUTO_MEMORY = "eks.amazonaws.com/instance-gpu-name", "eks.amazonaws.com/instance-gpu-memory"
AKS = "karpenter.azure.com/sku-gpu-name"
CLASS, MODEL = "gpu.nvidia.com/class", "gpu.nvidia.com/model"


def made(labels: dict[str, str], **more: Any) -> Any:
    return node(product=None, driver=None, labels=labels, **more).node_class


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("g5.xlarge", "a10g"),
        ("g5g.xlarge", "t4g"),
        ("gr6f.4xlarge", "l4-12q"),
        ("p3.16xlarge", "v100-sxm2-16gb"),
        ("p6e-gb200.36xlarge", "gb200"),
        ("BM.GPU.H100.8", "h100-80gb-hbm3"),
        ("BM.GPU.A100-v2.8", "a100-sxm4-80gb"),
        ("VM.GPU.A10.2", "a10"),
        ("BM.GPU4.8", "a100-sxm4-40gb"),
        ("Standard_NC24ads_A100_v4", "a100-80gb-pcie"),
        ("Standard_NC6s_v3", "v100-pcie-16gb"),
        ("Standard_ND96isr_H100_v5", "h100-80gb-hbm3"),
        ("a2-highgpu-8g", "a100-sxm4-40gb"),
        ("g2-standard-24", "l4"),
        ("Standard_ND128isr_NDR_GB200_v6", "gb200"),
        ("Standard_ND128isr_GB300_v6", "gb300"),
        ("Standard_ND96isr_MI300X_v5", "amd-instinct-mi300x-oam"),
        ("gpu-h100x8-640gb", "h100-80gb-hbm3"),
        ("gpu-l40sx1-48gb", "l40s"),
        ("gx3.16x80.l4", "l4"),
        ("gx3d.160x1792.8h200", "h200"),
        ("gx2-16x128x1v100", "v100-pcie-16gb"),
        ("L40S-2-48G", "l40s"),
        ("H100-1-80G", "h100-pcie"),
        ("H100-SXM-8-80G", "h100-80gb-hbm3"),
        ("l4-360", "l4"),
        ("h100-380", None),
        ("gpu_8x_a100_80gb_sxm4", "a100-sxm4-80gb"),
        ("gpu_1x_gh200", "gh200-480gb"),
        ("ecs.gn7i-c8g1.2xlarge", "a10"),
        ("ecs.gn6e-c12g1.24xlarge", "v100-sxm2-32gb"),
        ("GT4.41XLARGE948", None),
        ("vcg-h100-216c-1914gb-640vram", None),
        ("p2s.16xlarge.8", "v100-pcie-32gb"),
        ("g2-gpu-rtx4000a1-m", "rtx-4000-ada-generation"),
        ("gpu-b200-sxm", "b200"),
        ("l4", None),
        ("GT4", None),
        ("vcg-a100-1c-6g-4vram", None),
        ("g5", None),
        ("m5.xlarge", None),
        ("BM.GPU", None),
        ("BM.GPU.H100x8", None),
        ("", None),
    ],
)
def test_machine_type_tells_the_product_in_each_clouds_grammar(name: str, expected: str | None) -> None:
    """S3: EKS, OKE and AKS without node auto-provisioning have no other label of the product."""
    assert expected == made({INSTANCE: name}).product


def test_every_machine_type_in_the_table_is_found_by_its_own_row() -> None:
    """A row would never count if an earlier row's pattern matched its machine types."""
    types: InstanceTypes = knowledge().clouds.instances

    for row in types.rows:
        for text in row.pattern.pattern.split("|"):
            name = text.replace("[^/]*", "1").replace("\\", "")
            assert types.find(name) is row, name


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param({CLASS: "A100_NVLINK_80GB"}, "a100-sxm4-80gb", id="CoreWeave, class"),
        pytest.param({MODEL: "H100_NVLINK_80GB"}, "h100-80gb-hbm3", id="CoreWeave, model"),
        pytest.param({CLASS: "H100", MODEL: "H100_NVLINK_80GB"}, "h100-80gb-hbm3", id="CoreWeave, class and model"),
        pytest.param({CLASS: "unheard", MODEL: "A40"}, "a40", id="CoreWeave, a class that no table has"),
        pytest.param({CLASS: "A40", MODEL: "H200"}, "a40", id="CoreWeave, class and model at odds"),
        pytest.param({AUTO: "l4"}, "l4", id="EKS Auto Mode"),
        pytest.param({AUTO: "a100", AUTO_MEMORY: "81920"}, "a100-sxm4-80gb", id="EKS Auto Mode, by memory"),
        pytest.param({"doks.digitalocean.com/gpu-model": "h100"}, "h100-80gb-hbm3", id="DigitalOcean"),
        pytest.param({"nebius.com/gpu-name": "B200"}, "b200", id="Nebius"),
        pytest.param(
            {"nebius.com/gpu-name": "RTX6000"}, "rtx-pro-6000-blackwell-server-edition", id="Nebius, no Quadro"
        ),
        pytest.param({"aliyun.accelerator/nvidia_name": "NVIDIA-A10"}, "a10", id="Alibaba ACK"),
        pytest.param({"aliyun.accelerator/nvidia_name": "Tesla-V100-SXM2-16GB"}, "v100-sxm2-16gb", id="Alibaba, V100"),
        pytest.param({KARPENTER: "t4g"}, "t4g", id="Karpenter, T4G"),
        pytest.param({KARPENTER: "radeon-pro-v520"}, "amd-radeon-pro-v520", id="Karpenter, AMD"),
        pytest.param({AKS: "A10"}, "a10", id="AKS, A10"),
        pytest.param({AKS: "A100", INSTANCE: "Standard_NC24ads_A100_v4"}, "a100-80gb-pcie", id="AKS, by machine type"),
        pytest.param({KARPENTER: "v100", INSTANCE: "p3dn.24xlarge"}, "v100-sxm2-32gb", id="V100, by machine type"),
        pytest.param({AKS: "A100", INSTANCE: "unknown"}, None, id="machine type unknown"),
        pytest.param({GKE: "nvidia-l4", INSTANCE: "g5.xlarge"}, "l4", id="the cloud's own label first"),
    ],
)
def test_label_tells_the_product(labels: dict[str, str], expected: str | None) -> None:
    """S3."""
    assert expected == made(labels).product


@pytest.mark.parametrize(
    ("labels", "offers", "product", "memory"),
    [
        pytest.param(
            {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"},
            {"amd.com/gpu": 8}, "amd-instinct-mi300x-oam", 196_608, id="AMD",
        ),
        pytest.param(
            {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, {"amd.com/cpx_nps4": 64},
            "amd-instinct-mi300x-oam", None, id="AMD, partitions",
        ),
        pytest.param(
            {"gpu.intel.com/product": "Max_1550", "gpu.intel.com/memory.max": "274877906944"},
            {"gpu.intel.com/i915": 2}, "max-1550", 131_072, id="Intel, memory of both GPUs",
        ),
        pytest.param({"gpu.intel.com/memory.max": "many"}, {"gpu.intel.com/i915": 2}, None, None, id="junk"),
        pytest.param({}, {"habana.ai/gaudi": 8}, None, None, id="Gaudi"),
    ],
)  # fmt: skip
def test_labels_of_other_vendors_name_product_and_memory(
    labels: dict[str, str], offers: dict[str, int], product: str | None, memory: int | None
) -> None:
    """S12."""
    node_class = made(labels, offers=offers)

    assert (product, memory, sum(offers.values())) == (
        node_class.product, node_class.memory_mib, sum(units for _, units in node_class.offered)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param({KARPENTER: "l4", KARPENTER_MEMORY: "2861"}, 2_861, id="Karpenter, an eighth of an L4"),
        pytest.param({INSTANCE: "g6f.xlarge"}, 2_861, id="EKS, by machine type"),
        pytest.param({INSTANCE: "Standard_NV6ads_A10_v5"}, 4_096, id="AKS, a sixth of an A10"),
        pytest.param({KARPENTER: "t4", KARPENTER_MEMORY: "16384"}, 15_360, id="nominal size of a whole T4"),
        pytest.param({KARPENTER: "l4", KARPENTER_MEMORY: "0"}, 23_034, id="a label of nothing"),
        pytest.param({GKE: "nvidia-tesla-v100"}, 16_384, id="what both V100 have"),
        pytest.param({AKS: "A100"}, None, id="40 or 80 GB"),
    ],
)
def test_memory_is_the_least_that_table_label_and_machine_type_say(
    labels: dict[str, str], expected: int | None
) -> None:
    """EC2's API gives nominal sizes, and for a fraction of a GPU the size of that fraction.

    See docs/reference/sharing-and-memory.md#memory.
    """
    assert expected == made(labels).memory_mib


V100 = ({GKE: "nvidia-tesla-v100"}, {AKS: "V100"}, {KARPENTER: "v100"}, {INSTANCE: "p3.2xlarge"},
        {CLASS: "Tesla_V100_NVLINK"}, {INSTANCE: "BM.GPU3.8"})  # fmt: skip


@pytest.mark.parametrize("labels", V100, ids=["GKE", "AKS", "Karpenter", "EKS", "CoreWeave", "OKE"])
def test_v100_known_by_its_cloud_is_checked(labels: dict[str, str]) -> None:
    """F35, F16: CUDA 13 has no code for a V100, whichever of several V100s the label means."""
    cuda13 = demand(
        pod(gpus(1, image="nvidia/cuda:13.0.1-runtime-ubuntu24.04")),
        policies(policy("p", "placement: {cuda: {fromImage: true}}")),
    )
    demands = [
        cuda13,
        *(demand(pod(annotations=annotations)) for annotations in ({"gpu-memory": "60Gi"}, {"products": "V100"})),
    ]

    rejections = [judge_class(pod_demand, made(labels)) for pod_demand in demands]

    assert [rejection.code.name if rejection else None for rejection in rejections] == [
        "ComputeCapabilityUnsupported",
        "GPUMemoryTooSmall",
        None,
    ]


def test_interconnect_that_all_candidates_lack_is_refused() -> None:
    """F69: the label means one of two RTX PRO 4500, and neither has NVLink."""
    refusal = judge_class(demand(pod(annotations={"interconnect": "NVLink"})), made({KARPENTER: "rtx-pro-4500"}))

    assert refusal is not None
    assert refusal.code.name == "InterconnectAbsent"


@pytest.mark.parametrize(
    ("product", "memory", "capability"),
    [
        ("Tesla-P100-PCIE-16GB", 16_384, (6,)),
        ("NVIDIA-GeForce-RTX-3090", 24_576, (8, 6)),
        ("GRID-A100D-40C", 40_960, (8,)),
        ("NVIDIA-GB10", None, (12, 1)),
        ("NVIDIA-T4G", 15_360, (7, 5)),
    ],
)
def test_product_of_the_table(product: str, memory: int | None, capability: tuple[int, ...]) -> None:
    """S3."""
    row = knowledge().products.find(product)

    assert row is not None
    assert (memory, capability) == (row.memory_mib, row.compute_capability)


def test_every_product_that_a_cloud_names_is_known_or_another_vendors() -> None:
    """A misspelt product would silently leave the node's facts unknown."""
    clouds = knowledge().clouds
    named = {product for dialect in clouds.dialects for products in dialect.values.values() for product in products}
    named |= {product for row in clouds.instances.rows for product in row.products}

    assert {product for product in named if knowledge().products.find(product) is None} == {
        "AMD-Radeon-Pro-V520", "AMD-Instinct-MI300X-OAM", "AMD-Instinct-MI325X-OAM",
        "NVIDIA-RTX-4000-Ada-Generation", "Quadro-RTX-6000",
    }  # fmt: skip
