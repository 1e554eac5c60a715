# SPDX-License-Identifier: Apache-2.0
"""The demo fleet: a mixed cluster small enough to read, with every situation a GPU cluster gets into.

Written as pools and made into Kubernetes objects, so that it goes the same way in as a real snapshot.
Node names of the recorded payloads (a100-0, h100-1, t4-0 …) are among them.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes of one make. `busy`: GPUs held by running pods on each node, in order; missing ones are idle."""

    names: tuple[str, ...]
    product: str
    driver: str
    memory_mib: int
    capability: str
    gpus: int = 8
    offered: dict[str, int] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    busy: tuple[int, ...] = ()


POOLS: tuple[Pool, ...] = (
    Pool(("h100-0", "h100-1"), "NVIDIA-H100-80GB-HBM3", "570.124.06", 81559, "9.0", busy=(8, 2)),
    Pool(("h200-0",), "NVIDIA-H200", "580.95.05", 143771, "9.0"),
    Pool(("a100-0", "a100-1"), "NVIDIA-A100-SXM4-80GB", "550.54.15", 81920, "8.0", busy=(5,)),
    Pool(("a100-old-0",), "NVIDIA-A100-SXM4-40GB", "470.57.02", 40960, "8.0"),
    Pool(("v100-old-0",), "Tesla-V100-SXM2-32GB", "510.47.03", 32768, "7.0"),
    Pool(("t4-0", "t4-1"), "Tesla-T4", "535.104.05", 15360, "7.5", gpus=4, busy=(4, 1)),
    Pool(("a10-0", "a10-1"), "NVIDIA-A10", "535.104.05", 23028, "8.6", gpus=4, busy=(1,)),
    Pool(("l4-0",), "NVIDIA-L4", "550.54.15", 23034, "8.9", gpus=1),
    Pool(("l40s-0",), "NVIDIA-L40S", "550.54.15", 46068, "8.9", gpus=4),
    Pool(
        ("a10-shared-0",),
        "NVIDIA-A10-SHARED",
        "550.54.15",
        23028,
        "8.6",
        gpus=1,
        offered={"nvidia.com/gpu": 4},
        labels={"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "4"},
        busy=(1,),
    ),
    Pool(
        ("t4-mps-0",),
        "Tesla-T4-SHARED",
        "550.54.15",
        15360,
        "7.5",
        gpus=1,
        offered={"nvidia.com/gpu": 2},
        labels={"nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/gpu.replicas": "2"},
    ),
    Pool(
        ("a100-mig-single-0",),
        "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
        "550.54.15",
        9856,
        "8.0",
        gpus=7,
        offered={"nvidia.com/gpu": 7},
        labels={"nvidia.com/mig.strategy": "single", "nvidia.com/mig.config.state": "success"},
    ),
    *(
        Pool(
            (f"h100-mig-{state}",),
            "NVIDIA-H100-80GB-HBM3",
            "570.124.06",
            81559,
            "9.0",
            gpus=1,
            offered={"nvidia.com/gpu": 0, "nvidia.com/mig-1g.10gb": 4, "nvidia.com/mig-3g.40gb": 1},
            labels={"nvidia.com/mig.strategy": "mixed", "nvidia.com/mig.config.state": state},
        )
        for state in ("success", "pending", "failed")
    ),
    Pool(
        ("a100-upgrading-0",),
        "NVIDIA-A100-SXM4-80GB",
        "550.54.15",
        81920,
        "8.0",
        labels={"nvidia.com/gpu-driver-upgrade-state": "drain-required"},
    ),
    Pool(("h100-ghost-0",), "NVIDIA-H100-80GB-HBM3", "570.124.06", 81559, "9.0", offered={"nvidia.com/gpu": 0}),
)
NAMESPACES = {"team-a": {"team": "a"}, "team-b": {"team": "b"}, "gpu-operator": {}, "default": {}}
CPU_NODES = ("cpu-0", "cpu-1")


def demo_fleet() -> list[dict[str, Any]]:
    """Make the objects of the fleet: nodes, the pods that hold GPUs, namespaces, the nvidia RuntimeClass."""
    nodes = [_node(pool, name) for pool in POOLS for name in pool.names]
    pods = [_pod(name, gpus) for pool in POOLS for name, gpus in zip(pool.names, pool.busy, strict=False) if gpus]
    plain = [
        {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"cpu": "32"}}} for name in CPU_NODES
    ]
    namespaces = [
        {
            "kind": "Namespace",
            "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name, **labels}},
        }
        for name, labels in NAMESPACES.items()
    ]
    runtime_class = {"kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}
    return [*nodes, *plain, *pods, *namespaces, runtime_class]


def _node(pool: Pool, name: str) -> dict[str, Any]:
    major, minor = pool.capability.split(".")
    driver = zip(("full", "major", "minor", "revision"), (pool.driver, *pool.driver.split(".")), strict=True)
    offered = pool.offered or {"nvidia.com/gpu": pool.gpus}
    labels = {
        "kubernetes.io/hostname": name,
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": pool.product,
        "nvidia.com/gpu.count": str(pool.gpus),
        "nvidia.com/gpu.memory": str(pool.memory_mib),
        "nvidia.com/gpu.compute.major": major,
        "nvidia.com/gpu.compute.minor": minor,
        **{f"nvidia.com/cuda.driver-version.{part}": value for part, value in driver},
        **pool.labels,
    }
    taints = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
        "status": {"allocatable": {"cpu": "64", "memory": "512Gi", **{key: str(n) for key, n in offered.items()}}},
    }


def _pod(node: str, gpus: int) -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"nvidia.com/gpu": str(gpus)}}
    return {
        "kind": "Pod",
        "metadata": {"name": f"busy-{node}", "namespace": "team-b", "uid": f"busy-{node}"},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "image": "train:1", "resources": resources}],
        },
        "status": {"phase": "Running"},
    }
