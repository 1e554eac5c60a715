# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices and DeviceClasses in resource.k8s.io/v1, as NVIDIA's driver and chart write them.

NVIDIA/k8s-dra-driver-gpu cmd/gpu-kubelet-plugin/deviceinfo.go, deployments/helm templates.
"""

import uuid
from collections.abc import Iterator
from typing import Any

from app.demo.notation import DemoDeviceClass, DemoGPU, NodePool, Slice
from app.kube.resource_slices import NVIDIA_DRIVER

API_VERSION = "resource.k8s.io/v1"
ARCHITECTURES = {"8": "Ampere", "8.9": "Ada Lovelace", "9": "Hopper", "10": "Blackwell"}
"""By compute capability, or its major number alone; what the sample fleets have under DRA."""


def device_class(name: str, of: DemoDeviceClass) -> dict[str, Any]:
    """Write a DeviceClass over devices of one type."""
    expression = f"device.driver == '{NVIDIA_DRIVER}' && device.attributes['{NVIDIA_DRIVER}'].type == '{of.type}'"
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": expression}}]}
    if of.serves:
        spec["extendedResourceName"] = of.serves
    return {"apiVersion": API_VERSION, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def resource_slice(pool: NodePool, node: str) -> dict[str, Any]:
    """Write the ResourceSlice of a node; one holds all, there being at most 128 devices in one."""
    assert pool.gpu is not None
    spec = {
        "driver": NVIDIA_DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": list(_devices(pool, pool.gpu, node)),
    }
    metadata = {"name": f"{node}-{NVIDIA_DRIVER}"}
    return {"apiVersion": API_VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _devices(pool: NodePool, gpu: DemoGPU, node: str) -> Iterator[dict[str, Any]]:
    slices = pool.mig.slices if pool.mig else {}
    for minor in range(pool.gpus):
        own = f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}/{minor}')}"
        if not slices:
            yield _device(f"gpu-{minor}", "gpu", pool, gpu, gpu.memory, {"uuid": own})
        for profile, each in slices.items():
            yield from _mig_devices(profile, each, minor, own, pool, gpu)


def _mig_devices(
    profile: str, each: Slice, minor: int, parent: str, pool: NodePool, gpu: DemoGPU
) -> Iterator[dict[str, Any]]:
    """Write the slices of a profile on one GPU; device names are DNS labels, so a profile loses its dots."""
    for start in each.starts:
        name = f"gpu-{minor}-mig-{profile.replace('.', '').replace('+', '-')}-{each.id}-{start}"
        own = f"MIG-{uuid.uuid5(uuid.NAMESPACE_DNS, parent + name)}"
        yield _device(name, "mig", pool, gpu, each.memory, {"uuid": own, "parentUUID": parent, "profile": profile})


def _device(name: str, kind: str, pool: NodePool, gpu: DemoGPU, memory: int, more: dict[str, str]) -> dict[str, Any]:
    """Write a device; versions are semantic ones, of three numbers without leading zeros."""
    major = gpu.compute.split(".")[0]
    architecture = ARCHITECTURES.get(gpu.compute) or ARCHITECTURES[major]
    texts = {"type": kind, "productName": gpu.name, "brand": "Nvidia", "architecture": architecture, **more}
    versions = {
        "driverVersion": pool.driver,
        "cudaDriverVersion": pool.cuda,
        "cudaComputeCapability": gpu.compute,
    }
    attributes: dict[str, Any] = {key: {"string": text} for key, text in texts.items()}
    attributes |= {key: {"version": _semantic(text)} for key, text in versions.items()}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": _quantity(memory)}}}


def _quantity(mib: int) -> str:
    """Write an amount as the API server does, in the largest unit that keeps it whole."""
    return f"{mib}Mi" if mib % 1024 else f"{mib // 1024}Gi"


def _semantic(version: str) -> str:
    numbers = [str(int(part)) for part in version.split(".")]
    return ".".join((*numbers, "0", "0")[:3])
