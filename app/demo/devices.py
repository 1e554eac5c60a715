# SPDX-License-Identifier: Apache-2.0
"""Makes ResourceSlices and DeviceClasses (resource.k8s.io/v1) as NVIDIA's DRA driver and its chart write them.

NVIDIA/k8s-dra-driver-gpu cmd/gpu-kubelet-plugin/deviceinfo.go, deployments/helm templates.
"""

import uuid
from collections.abc import Iterator
from typing import Any

from app.demo.notation import DemoDeviceClass, DemoGPU, NodePool, Slice
from app.kube.device_facts import NVIDIA_DRIVER

API_VERSION = "resource.k8s.io/v1"
ARCHITECTURES = {"8": "Ampere", "8.9": "Ada Lovelace", "9": "Hopper", "10": "Blackwell"}
"""Architectures by compute capability or by its major number, as far as sample fleets with DRA have them."""


def device_class(name: str, demo_class: DemoDeviceClass) -> dict[str, Any]:
    """Make a DeviceClass of all devices of one type."""
    expression = (
        f"device.driver == '{NVIDIA_DRIVER}' && device.attributes['{NVIDIA_DRIVER}'].type == '{demo_class.type}'"
    )
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": expression}}]}
    if demo_class.serves:
        spec["extendedResourceName"] = demo_class.serves
    return {"apiVersion": API_VERSION, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def resource_slice(pool: NodePool, node: str) -> dict[str, Any]:
    """Make the ResourceSlice of a node; one holds all its devices, of which a slice may have 128."""
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
        gpu_uuid = f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}/{minor}')}"
        if not slices:
            yield _device(f"gpu-{minor}", "gpu", pool, gpu, gpu.memory, {"uuid": gpu_uuid})
        for profile, mig_slice in slices.items():
            yield from _mig_devices(profile, mig_slice, minor, gpu_uuid, pool, gpu)


def _mig_devices(
    profile: str, mig_slice: Slice, minor: int, parent: str, pool: NodePool, gpu: DemoGPU
) -> Iterator[dict[str, Any]]:
    """Make the MIG devices of a profile on one GPU; their names are DNS labels, so a profile loses its dots."""
    for start in mig_slice.starts:
        name = f"gpu-{minor}-mig-{profile.replace('.', '').replace('+', '-')}-{mig_slice.id}-{start}"
        mig_uuid = f"MIG-{uuid.uuid5(uuid.NAMESPACE_DNS, parent + name)}"
        yield _device(
            name, "mig", pool, gpu, mig_slice.memory, {"uuid": mig_uuid, "parentUUID": parent, "profile": profile}
        )


def _device(name: str, kind: str, pool: NodePool, gpu: DemoGPU, memory: int, more: dict[str, str]) -> dict[str, Any]:
    """Make a device; its versions are semantic versions, of three numbers without leading zeros."""
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
    """Write an amount as the API server does, in the largest unit that gives an integer."""
    return f"{mib}Mi" if mib % 1024 else f"{mib // 1024}Gi"


def _semantic(version: str) -> str:
    numbers = [str(int(part)) for part in version.split(".")]
    return ".".join((*numbers, "0", "0")[:3])
