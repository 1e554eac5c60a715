# SPDX-License-Identifier: Apache-2.0
"""Label and taint keys that real GPU nodes carry, by who writes them. Any other key in a sample fleet is a
misspelling."""

import re

WRITERS: dict[str, tuple[str, ...]] = {
    "GPU Feature Discovery (NVIDIA/k8s-device-plugin internal/lm)": (
        r"nvidia\.com/cuda\.driver-version\.(full|major|minor|revision)",
        r"nvidia\.com/cuda\.driver\.(major|minor|rev)",
        r"nvidia\.com/cuda\.runtime-version\.(full|major|minor)",
        r"nvidia\.com/cuda\.runtime\.(major|minor)",
        r"nvidia\.com/gpu\.(family|compute\.major|compute\.minor|machine|mode|clique)",
        r"nvidia\.com/(gpu|mig-[1-7]g\.[0-9]+gb(\.me)?)\.(product|count|memory|replicas|sharing-strategy)",
        r"nvidia\.com/(gpu|mig-[1-7]g\.[0-9]+gb(\.me)?)\.(multiprocessors|slices\.(gi|ci))",
        r"nvidia\.com/(gpu|mig-[1-7]g\.[0-9]+gb(\.me)?)\.engines\.(copy|decoder|encoder|jpeg|ofa)",
        r"nvidia\.com/(mig\.capable|mig\.strategy|mps\.capable)",
    ),
    "administrator, for the device plugin (NVIDIA/k8s-device-plugin README.md)": (
        r"nvidia\.com/device-plugin\.config",
    ),
    "mig-manager (NVIDIA/mig-parted pkg/mig/reconfigure)": (r"nvidia\.com/mig\.config(\.state)?",),
    "GPU Operator (NVIDIA/gpu-operator controllers/state_manager.go, NVIDIA/k8s-operator-libs pkg/upgrade/consts.go)": (
        r"nvidia\.com/gpu\.present",
        r"nvidia\.com/gpu\.deploy\.(driver|container-toolkit|device-plugin|gpu-feature-discovery|mig-manager)",
        r"nvidia\.com/gpu-driver-upgrade-state",
    ),
    "Node Feature Discovery": (r"feature\.node\.kubernetes\.io/pci-10de\.present",),
    "kubelet and cloud providers (Kubernetes well-known labels)": (
        r"kubernetes\.io/(hostname|os|arch)",
        r"node\.kubernetes\.io/instance-type",
        r"topology\.kubernetes\.io/(region|zone)",
    ),
    "EKS, and its hint to the Cluster Autoscaler": (
        r"eks\.amazonaws\.com/(nodegroup|capacityType)",
        r"k8s\.amazonaws\.com/accelerator",
    ),
    "Karpenter (aws/karpenter-provider-aws, Azure/karpenter-provider-azure)": (
        r"karpenter\.sh/(nodepool|capacity-type|initialized|registered)",
        r"karpenter\.k8s\.aws/instance-(category|family|size|gpu-(name|manufacturer|count|memory))",
        r"karpenter\.azure\.com/sku-(name|family|gpu-(name|manufacturer|count))",
    ),
    "GKE (GKE documentation: GPUs, GPU sharing, Spot VMs)": (
        r"cloud\.google\.com/gke-(nodepool|accelerator|accelerator-count|gpu-driver-version|spot)",
        r"cloud\.google\.com/gke-(gpu-partition-size|gpu-sharing-strategy|max-shared-clients-per-gpu)",
    ),
    "AKS (AKS documentation: GPU clusters, spot node pools)": (
        r"accelerator|agentpool",
        r"kubernetes\.azure\.com/(accelerator|agentpool|mode|scalesetpriority)",
    ),
}
TAINTS = {
    "nvidia.com/gpu": "GKE puts it there; EKS and Karpenter users do",
    "sku": "AKS documentation, GPU clusters",
    "kubernetes.azure.com/scalesetpriority": "AKS, on every spot pool",
    "cloud.google.com/gke-spot": "GKE documentation, Spot VMs: the user's, by advice",
    "karpenter.sh/capacity-type": "the user's, on a spot NodePool",
    "node.kubernetes.io/unschedulable": "a cordon",
}
KNOWN = re.compile("|".join(f"(?:{pattern})" for patterns in WRITERS.values() for pattern in patterns))
