# SPDX-License-Identifier: Apache-2.0
"""A synthetic fleet of any size: nodes of eight makes, some of whose GPUs are held by pods."""

import json
import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from tests.builders import CONTRACT, gpus, knowledge, node_document, pod

MAKES = (
    ("NVIDIA-H100-80GB-HBM3", "570.124.06", 8),
    ("NVIDIA-H200", "580.95.05", 8),
    ("NVIDIA-A100-SXM4-80GB", "550.54.15", 8),
    ("NVIDIA-A100-SXM4-40GB", "535.104.05", 8),
    ("Tesla-T4", "535.104.05", 4),
    ("NVIDIA-L4-SHARED", "550.54.15", 4),
    ("NVIDIA-A10", "525.85.12", 4),
    ("Tesla-V100-SXM2-32GB", "470.57.02", 8),
)
CORES = 128
CPU = (1, 2, 4, 8, 12)
"""CPU cores that a pod requests."""
ZONE = "topology.kubernetes.io/zone"
PADDING = {f"example.com/label-{index}": f"value-{index}" for index in range(40)}
"""Real nodes carry some 56 labels (docs/reference/measurements.md#decoding)."""


def node_name(index: int) -> str:
    """Name a node as clouds do."""
    return f"gpu-node-{index:05d}.example"


def node(index: int) -> dict[str, Any]:
    """Write the Node of an index."""
    product, driver, amount = MAKES[index % len(MAKES)]
    amounts, labels = (
        {"nvidia.com/gpu": amount, "cpu": CORES},
        {**labels_of(product), "nvidia.com/gpu.count": str(amount), ZONE: "zone-" + "abc"[index % 3]},
    )
    if product.endswith("-SHARED"):  # one GPU, as many time-slices
        labels |= {"nvidia.com/gpu.replicas": str(amount), "nvidia.com/gpu.count": "1"}
    return node_document(node_name(index), product, driver, amounts, labels, capacity=amounts)


@cache
def labels_of(product: str) -> dict[str, str]:
    """Return the labels that GPU Feature Discovery and others give a node with this product."""
    row = knowledge().products.find(product)
    assert row is not None
    major, minor, *_ = *row.compute_capability, 0
    compute = {"nvidia.com/gpu.compute.major": str(major), "nvidia.com/gpu.compute.minor": str(minor)}
    return {**PADDING, "pool": "gpu", "nvidia.com/gpu.memory": str(row.memory_mib), **compute}


def nodes(count: int) -> Iterator[dict[str, Any]]:
    """Write that many Nodes."""
    return map(node, range(count))


def pods(count: int, node_count: int, seed: int = 42) -> Iterator[dict[str, Any]]:
    """Write bound pods, one in five with a GPU, each with some CPU."""
    drawn = random.Random(seed)
    for index in range(count):
        made = pod(gpus(1 if index % 5 == 0 else 0), nodeName=node_name(drawn.randrange(node_count)))
        made["spec"]["containers"][0]["resources"]["requests"]["cpu"] = str(drawn.choice(CPU))
        made["metadata"] |= {"uid": f"uid-{index}", "name": f"pod-{index}"}
        made["status"] = {"phase": "Running"}
        yield made


def filter_arguments(names: Sequence[str], image: str | None = None, memory: str | None = None) -> bytes:
    """Write the arguments of kube-scheduler's filter call; `image` and `memory` are what the pod asks for besides."""
    recorded = json.loads((CONTRACT / "extender-filter-nodecachecapable-true.request.json").read_text("utf-8"))
    if image:
        recorded["Pod"]["spec"]["containers"][0]["image"] = image
    if memory:
        recorded["Pod"]["metadata"]["annotations"] = {"gpu-usher.io/gpu-memory": memory}
    return json.dumps({**recorded, "NodeNames": names}, separators=(",", ":")).encode()
