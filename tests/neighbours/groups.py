# SPDX-License-Identifier: Apache-2.0
"""Node groups of clouds as their autoscalers know them before a node exists, and the nodes that they then become."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.nodes.model import Node
from app.nodes.reading import read_node
from tests.builders import knowledge

GPU = "nvidia.com/gpu"
DRIVER = "580.95.05"
"""The driver on every node that comes, whose CUDA 13.0 serves every pod of these tests."""
TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}
ROOM = {"cpu": "96", "memory": "1024Gi", "pods": "110", "ephemeral-storage": "500Gi"}


@dataclass(frozen=True, slots=True)
class Group:
    """A node group: its name, the GPUs of a node, the labels on its template, and those on its nodes alone."""

    name: str
    product: str
    gpus: int
    labels: Mapping[str, str]
    later_labels: Mapping[str, str] = field(default_factory=dict)

    def template(self) -> dict[str, Any]:
        """Write the Node that an autoscaler judges while the group has no node."""
        return self._document(self.labels)

    def node(self) -> Node:
        """Read the node that the group brings, on which GPU Feature Discovery runs."""
        row = knowledge().products.find(self.product)
        assert row is not None, self.product
        labels = {
            "nvidia.com/gpu.product": self.product,
            "nvidia.com/gpu.count": str(self.gpus),
            "nvidia.com/gpu.memory": str(row.memory_mib),
            "nvidia.com/gpu.compute.major": str(row.compute_capability[0]),
            "nvidia.com/gpu.compute.minor": str((*row.compute_capability, 0)[1]),
            "nvidia.com/cuda.driver-version.full": DRIVER,
            "nvidia.com/cuda.driver-version.major": DRIVER.partition(".")[0],
        }
        return read_node(self._document({**self.labels, **self.later_labels, **labels}), knowledge())

    def _document(self, labels: Mapping[str, str]) -> dict[str, Any]:
        amounts = {**ROOM, GPU: str(self.gpus)}
        common = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": {**common, **labels}},
            "spec": {"taints": [TAINT]},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }


def cpu_node(labels: Mapping[str, str]) -> Node:
    """Read a node without GPUs, which shows the cloud to admission while all groups with GPUs are at zero."""
    document = {"metadata": {"name": "cpu", "labels": dict(labels)}, "status": {"allocatable": dict(ROOM)}}
    return read_node(document, knowledge())


def _eks(name: str, product: str, gpus: int, machine: str) -> Group:
    """Name what cloudprovider/aws/aws_manager.go puts on a template, and EKS on nodes of a managed node group."""
    zone = {"topology.kubernetes.io/region": "us-east-1", "topology.kubernetes.io/zone": "us-east-1a"}
    labels = {"eks.amazonaws.com/nodegroup": name, "node.kubernetes.io/instance-type": machine, **zone}
    return Group(f"eks-{name}", product, gpus, labels)


def _gke(name: str, product: str, gpus: int, accelerator: str) -> Group:
    """Name the labels of a GKE node pool, which cloudprovider/gce reads from the instance template."""
    labels = {"cloud.google.com/gke-nodepool": name, "cloud.google.com/gke-accelerator": accelerator}
    return Group(f"gke-{name}", product, gpus, labels)


def _aks(name: str, product: str, gpus: int, machine: str) -> Group:
    """Name what cloudprovider/azure/azure_template.go puts on a template of a GPU pool."""
    labels = {
        "kubernetes.azure.com/agentpool": name,
        "accelerator": "nvidia",
        "topology.kubernetes.io/region": "westus",
    }
    return Group(f"aks-{name}", product, gpus, {**labels, "node.kubernetes.io/instance-type": machine})


def _oke(name: str, product: str, gpus: int, machine: str) -> Group:
    labels = {"oci.oraclecloud.com/fault-domain": "FAULT-DOMAIN-1", "node.kubernetes.io/instance-type": machine}
    return Group(f"oke-{name}", product, gpus, labels)


def _coreweave(name: str, product: str, gpus: int, machine: str, gpu_class: str) -> Group:
    """Name what cloudprovider/coreweave/coreweave_nodegroup.go puts on a template; only nodes have the GPU's class."""
    labels = {"compute.coreweave.com/node-pool": name, "node.kubernetes.io/instance-type": machine}
    return Group(f"coreweave-{name}", product, gpus, labels, {"gpu.nvidia.com/class": gpu_class})


T4, A100, H100, H200 = "Tesla-T4", "NVIDIA-A100-SXM4-40GB", "NVIDIA-H100-80GB-HBM3", "NVIDIA-H200"
CLOUDS: Mapping[str, tuple[Group, ...]] = {
    "EKS": (
        _eks("t4", T4, 1, "g4dn.xlarge"),
        _eks("a100", A100, 8, "p4d.24xlarge"),
        _eks("h100", H100, 8, "p5.48xlarge"),
        _eks("h200", H200, 8, "p5en.48xlarge"),
    ),
    "GKE": (
        _gke("t4", T4, 1, "nvidia-tesla-t4"),
        _gke("a100", A100, 8, "nvidia-tesla-a100"),
        _gke("h100", H100, 8, "nvidia-h100-80gb"),
        _gke("h200", H200, 8, "nvidia-h200-141gb"),
    ),
    "AKS": (
        _aks("t4", T4, 1, "Standard_NC4as_T4_v3"),
        _aks("a100", A100, 8, "Standard_ND96asr_v4"),
        _aks("h100", H100, 8, "Standard_ND96isr_H100_v5"),
        _aks("h200", H200, 8, "Standard_ND96isr_H200_v5"),
    ),
    "OKE": (
        _oke("a100", A100, 8, "BM.GPU4.8"),
        _oke("h100", H100, 8, "BM.GPU.H100.8"),
        _oke("h200", H200, 8, "BM.GPU.H200.8"),
    ),
    "CoreWeave": (
        _coreweave("a100", A100, 8, "gd-8xa100-i128", "A100_NVLINK"),
        _coreweave("h100", H100, 8, "gd-8xh100ib-i128", "H100_NVLINK_80GB"),
        _coreweave("h200", H200, 8, "gd-8xh200ib-i128", "H200"),
    ),
}
"""Cloud → its groups; the paths are those of cluster-autoscaler's repository, kubernetes/autoscaler."""
OF_GPUS = ("cloud.google.com/gke-accelerator", "accelerator")
CPU_NODES: Mapping[str, Node] = {
    cloud: cpu_node({key: value for key, value in groups[0].labels.items() if key not in OF_GPUS})
    for cloud, groups in CLOUDS.items()
}
"""Cloud → a node of it without GPUs."""
