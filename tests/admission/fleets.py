# SPDX-License-Identifier: Apache-2.0
"""Random fleets: nodes labelled by GPU Feature Discovery, by clouds and provisioners, by both, or not at all."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.placement.twin_cuda import facts

Labels = dict[str, str]
Offers = dict[str, int]
Make = Callable[[random.Random], tuple[Labels, Offers]]

CUDA_OF = {
    "450.80.02": "11.0",
    "470.57.02": "11.4",
    "510.47.03": "11.6",
    "525.60.13": "12.0",
    "535.54.03": "12.2",
    "535.104.05": "12.2",
    "545.23.08": "12.3",
    "550.54.15": "12.4",
    "565.57.01": "12.7",
    "570.124.06": "12.8",
    "580.95.05": "13.0",
}
"""The highest CUDA of a driver, as nvidia-smi shows it."""
GKE = {
    "nvidia-tesla-t4": "Tesla-T4",
    "nvidia-l4": "NVIDIA-L4",
    "nvidia-tesla-a100": "NVIDIA-A100-SXM4-40GB",
    "nvidia-a100-80gb": "NVIDIA-A100-SXM4-80GB",
    "nvidia-h100-80gb": "NVIDIA-H100-80GB-HBM3",
    "nvidia-h100-mega-80gb": "NVIDIA-H100-80GB-HBM3",
    "nvidia-h200-141gb": "NVIDIA-H200",
    "nvidia-b200": "NVIDIA-B200",
    "nvidia-tesla-v100": "Tesla-V100-SXM2-16GB",
    "nvidia-tesla-p100": "Tesla-P100-PCIE-16GB",
    "nvidia-tomorrow": "NVIDIA-XYZ-9000",
}
AWS = {
    "t4": ("Tesla-T4", "16384"),
    "a10g": ("NVIDIA-A10G", "24576"),
    "l4": ("NVIDIA-L4", "24576"),
    "l40s": ("NVIDIA-L40S", "49152"),
    "h100": ("NVIDIA-H100-80GB-HBM3", "81920"),
    "h200": ("NVIDIA-H200", "144384"),
    "a100": ("NVIDIA-A100-SXM4-40GB", "40960"),
    "v100": ("Tesla-V100-SXM2-16GB", "16384"),
    "tomorrow": ("NVIDIA-XYZ-9000", "1024"),
}
AZURE = {
    "A100": "NVIDIA-A100-SXM4-80GB",
    "H100": "NVIDIA-H100-80GB-HBM3",
    "T4": "Tesla-T4",
    "V100": "Tesla-V100-PCIE-16GB",
    "A10": "NVIDIA-A10",
}
POPULAR = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "Tesla-T4", "NVIDIA-L4", "NVIDIA-A10")
"""Products that are drawn more often, so that a need for a product matches some nodes."""
PROFILES = ("1g.5gb", "1g.10gb", "1g.10gb.me", "2g.20gb", "3g.40gb", "7g.80gb", "1g.24gb", "INVALID")
STATES = ("success", "success", "pending", "failed")
UPGRADES = ("upgrade-done", "upgrade-required", "drain-required", "upgrade-failed", "tomorrow")
TAINTS = (
    {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
    {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
    {"key": "nvidia.com/gpu", "value": "true", "effect": "NoExecute"},
    {"key": "sku", "value": "gpu", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "team-b", "effect": "NoSchedule"},
    {"key": "amd.com/gpu", "effect": "PreferNoSchedule"},
)


def fleet(draw: random.Random, nodes: int) -> list[dict[str, Any]]:
    """Draw the Nodes of a fleet, of one kind, of some kinds, or of all."""
    makes = draw.sample(MAKES, draw.choice([1, 1, 2, 3, len(MAKES)]))
    return [node(draw, f"n{index}", makes) for index in range(nodes)]


def node(draw: random.Random, name: str, makes: Sequence[Make]) -> dict[str, Any]:
    """Draw one Node."""
    labels, offers = draw.choice(makes)(draw)
    labels |= {"kubernetes.io/hostname": name, "zone": draw.choice("abc"), "rank": str(draw.randint(0, 9))}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [dict(draw.choice(TAINTS))]} if draw.random() < 0.5 else {},
        "status": {"allocatable": {"cpu": "64", **{key: str(amount) for key, amount in offers.items()}}},
    }


def gfd(draw: random.Random, product: str | None = None) -> tuple[Labels, Offers]:
    """Draw the labels of GPU Feature Discovery, with gaps and oddities, and what the device plugin offers."""
    rows = facts("gpu_products.yaml")["products"]
    name = product or draw.choice([*POPULAR, None, None])
    row = next((row for row in rows if row["product"] == name), None) or draw.choice(rows)
    label = product or draw.choice([row["product"]] * 9 + ["NVIDIA-XYZ-9000"])
    labels = {"nvidia.com/gpu.product": label, "nvidia.com/gpu.present": "true"}
    labels |= _versions(draw, draw.choice(list(CUDA_OF)))
    if draw.random() < 0.7:
        major, minor = str(row["compute_capability"]).split(".")
        labels |= {"nvidia.com/gpu.compute.major": major, "nvidia.com/gpu.compute.minor": minor}
    if draw.random() < 0.7:
        labels["nvidia.com/gpu.memory"] = str(draw.choice([row["memory_mib"]] * 6 + ["81559", "23028", "0", "odd"]))
    if draw.random() < 0.3:
        labels["nvidia.com/gpu.count"] = draw.choice(["1", "8"])
    if draw.random() < 0.05:
        labels["nvidia.com/gpu-driver-upgrade-state"] = draw.choice(UPGRADES)
    return _divided(draw, labels)


def _versions(draw: random.Random, driver: str) -> Labels:
    """Draw the driver's labels: the new names, the deprecated ones, both, the full version only, or none."""
    major, minor, revision = driver.split(".")
    cuda_major, cuda_minor = CUDA_OF[driver].split(".")
    new = {
        "nvidia.com/cuda.driver-version.major": major,
        "nvidia.com/cuda.driver-version.minor": minor,
        "nvidia.com/cuda.driver-version.revision": revision,
        "nvidia.com/cuda.runtime-version.major": cuda_major,
        "nvidia.com/cuda.runtime-version.minor": cuda_minor,
    }
    full = {"nvidia.com/cuda.driver-version.full": driver, "nvidia.com/cuda.runtime-version.full": CUDA_OF[driver]}
    old = {
        "nvidia.com/cuda.driver.major": major,
        "nvidia.com/cuda.driver.minor": minor,
        "nvidia.com/cuda.driver.rev": revision,
        "nvidia.com/cuda.runtime.major": cuda_major,
        "nvidia.com/cuda.runtime.minor": cuda_minor,
    }
    kind = draw.choice(["all", "all", "new", "old", "old", "full", "new without revision", "none"])
    if kind == "new without revision":
        return {**new, "nvidia.com/cuda.driver-version.revision": ""}
    return {"all": {**new, **full, **old}, "new": {**new, **full}, "old": old, "full": full, "none": {}}[kind]


def _divided(draw: random.Random, labels: Labels) -> tuple[Labels, Offers]:
    """Draw how the GPUs are offered: whole, shared, renamed, or as MIG slices of either strategy."""
    kind = draw.choice(["whole"] * 4 + ["shared", "renamed", "mps", "single", "single shared", "mixed", "ghost"])
    whole = draw.choice([1, 4, 8])
    key, product = "nvidia.com/gpu.product", labels["nvidia.com/gpu.product"]
    shared = {"nvidia.com/gpu.replicas": draw.choice(["2", "4"])}
    if draw.random() < 0.8:
        shared["nvidia.com/gpu.sharing-strategy"] = "mps" if kind == "mps" else "time-slicing"
    if kind in ("shared", "mps"):
        return {**labels, key: product + "-SHARED", **shared}, {"nvidia.com/gpu": 4 * whole}
    if kind == "renamed":
        return {**labels, **shared}, {"nvidia.com/gpu": draw.choice([0, whole]), "nvidia.com/gpu.shared": 4}
    if kind.startswith("single"):
        name = f"{product}-MIG-{draw.choice(PROFILES)}" + ("-SHARED" if "shared" in kind else "")
        more = {"nvidia.com/mig.strategy": "single", "nvidia.com/mig.config.state": draw.choice(STATES)}
        more |= shared if "shared" in kind else {}
        return {**labels, **more, key: name if len(name) <= 63 else product}, {"nvidia.com/gpu": 7}
    if kind == "mixed":
        profile = draw.choice(PROFILES[:-1])
        offers = {"nvidia.com/gpu": draw.choice([0, 0, 4]), f"nvidia.com/mig-{profile}": draw.choice([0, 2, 7])}
        more = {"nvidia.com/mig.strategy": "mixed", f"nvidia.com/mig-{profile}.count": "7"}
        return {**labels, **more}, offers
    if draw.random() < 0.3:
        labels["nvidia.com/gpu.sharing-strategy"] = "none"
    return labels, {"nvidia.com/gpu": 0 if kind == "ghost" else whole}


def deprecated_only(draw: random.Random) -> tuple[Labels, Offers]:
    """Draw a node with an old GPU Feature Discovery, which has only the deprecated names of versions."""
    labels, offers = gfd(draw)
    return {key: value for key, value in labels.items() if "-version." not in key}, offers


def gke(draw: random.Random) -> tuple[Labels, Offers]:
    """Draw a node of GKE without GPU Feature Discovery."""
    labels = {
        "cloud.google.com/gke-nodepool": draw.choice(["p1", "p2"]),
        "cloud.google.com/gke-accelerator": draw.choice(list(GKE)),
        "cloud.google.com/gke-accelerator-count": "8",
    }
    if draw.random() < 0.3:
        labels["cloud.google.com/gke-gpu-sharing-strategy"] = draw.choice(["time-sharing", "mps"])
        labels["cloud.google.com/gke-max-shared-clients-per-gpu"] = "2"
    if draw.random() < 0.2:
        labels["cloud.google.com/gke-gpu-partition-size"] = draw.choice(PROFILES[:-1])
    if draw.random() < 0.2:
        labels["cloud.google.com/gke-gpu-driver-version"] = draw.choice(["default", "latest"])
    return labels, {"nvidia.com/gpu": 8}


def karpenter(draw: random.Random) -> tuple[Labels, Offers]:
    """Draw a node of EKS that Karpenter created."""
    name = draw.choice(list(AWS))
    labels = {"karpenter.sh/nodepool": "gpus", "karpenter.k8s.aws/instance-gpu-name": name}
    if draw.random() < 0.9:
        labels["karpenter.k8s.aws/instance-gpu-memory"] = AWS[name][1]
        labels["karpenter.k8s.aws/instance-gpu-count"] = "8"
    return labels, {"nvidia.com/gpu": 8}


def azure(draw: random.Random) -> tuple[Labels, Offers]:
    """Draw a node of AKS."""
    labels = {"kubernetes.azure.com/agentpool": "gpus", "kubernetes.azure.com/accelerator": "nvidia"}
    if draw.random() < 0.8:
        labels["karpenter.azure.com/sku-gpu-name"] = draw.choice(list(AZURE))
    return labels, {"nvidia.com/gpu": 4}


def mixture(draw: random.Random) -> tuple[Labels, Offers]:
    """Draw a cloud's node that GPU Feature Discovery labelled too; in rare cases the two disagree."""
    labels, _ = draw.choice([gke, karpenter, azure])(draw)
    product = GKE.get(labels.get("cloud.google.com/gke-accelerator", ""))
    product = product or AWS.get(labels.get("karpenter.k8s.aws/instance-gpu-name", ""), (None,))[0]
    product = product or AZURE.get(labels.get("karpenter.azure.com/sku-gpu-name", ""))
    more, offers = gfd(draw, product if draw.random() < 0.9 else None)
    return labels | more, offers


def unlabelled(draw: random.Random) -> tuple[Labels, Offers]:
    """Draw a GPU node without labels, or only with labels that gpu-usher does not read."""
    labels = draw.choice([{}, {"gpu.nvidia.com/model": "H200"}, {"accelerator": "nvidia"}])
    return dict(labels), {"nvidia.com/gpu": draw.choice([1, 8])}


def without_gpus(draw: random.Random) -> tuple[Labels, Offers]:
    """Draw a node without GPUs, or one with GPUs of another vendor."""
    return {}, draw.choice([{}, {"amd.com/gpu": 8}])


MAKES: tuple[Make, ...] = (
    *([gfd] * 6),
    deprecated_only,
    *([gke] * 2),
    *([karpenter] * 2),
    azure,
    *([mixture] * 3),
    unlabelled,
    without_gpus,
)
