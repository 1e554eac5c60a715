# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices and claims as NVIDIA's DRA driver and kube-scheduler write them where MIG slices are made on demand.

Names, attributes and counters after kubernetes-sigs/dra-driver-nvidia-gpu cmd/gpu-kubelet-plugin mig.go, partitions.go
and driver.go: a whole GPU and every placement of every profile, all taking from the GPU's counter set.
"""

from typing import Any

from app.knowledge.geometry import Slot
from app.knowledge.products import normal_form
from tests.builders import knowledge

DRIVER = "gpu.nvidia.com"
PRODUCT = "NVIDIA H100 80GB HBM3"


def carved(minor: int = 0, product: str = PRODUCT) -> list[dict[str, Any]]:
    """Write the devices of one GPU that is carved on demand."""
    geometry = knowledge().geometry[normal_form("-".join(product.split()))]
    every = [(slot, start) for slot in geometry.slots.values() for start in slot.starts]
    return [_whole(minor, product, geometry.memory_total), *(_slice(minor, product, *each) for each in every)]


def name_of(profile: str, start: int, minor: int = 0) -> str:
    """Name a slice; the driver puts the profile's number between, which nobody may rely on."""
    return f"gpu-{minor}-mig-{profile.replace('.', '')}-99-{start}"


def _whole(minor: int, product: str, slices: int) -> dict[str, Any]:
    attributes = {**_attributes(product), "type": {"string": "gpu"}, "uuid": {"string": f"GPU-{minor}"}}
    capacity = {"memory": {"value": "81559Mi"}}
    return _device(f"gpu-{minor}", attributes, capacity, minor, range(slices))


def _slice(minor: int, product: str, slot: Slot, start: int) -> dict[str, Any]:
    profile = {"profile": {"string": slot.profile.replace(".me", "+me")}, "parentUUID": {"string": f"GPU-{minor}"}}
    attributes = {**_attributes(product), "type": {"string": "mig"}, **profile}
    capacity = {"memory": {"value": f"{slot.length * 9984}Mi"}}
    name = name_of(slot.profile, start, minor)
    return _device(name, attributes, capacity, minor, range(start, start + slot.length))


def _attributes(product: str) -> dict[str, Any]:
    return {
        "productName": {"string": product},
        "driverVersion": {"version": "570.124.6"},
        "cudaDriverVersion": {"version": "12.8.0"},
        "cudaComputeCapability": {"version": "9.0.0"},
    }


def _device(name: str, attributes: dict[str, Any], capacity: dict[str, Any], minor: int, on: range) -> dict[str, Any]:
    counters = {"multiprocessors": {"value": "16"}, **{f"memory-slice-{each}": {"value": "1"} for each in on}}
    takes = [{"counterSet": f"gpu-{minor}-counter-set", "counters": counters}]
    return {"name": name, "attributes": attributes, "capacity": capacity, "consumesCounters": takes}


def resource_slice(
    devices: list[dict[str, Any]], name: str = "s", node: str = "n", generation: int = 1, **spec: Any
) -> dict[str, Any]:
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    whole = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices, **spec}
    return {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": whole}


def device_class(resource: str, name: str = "mig.nvidia.com") -> dict[str, Any]:
    return {"kind": "DeviceClass", "metadata": {"name": name}, "spec": {"extendedResourceName": resource}}


def claim(name: str, *devices: str, pool: str = "n", driver: str = DRIVER, **result: Any) -> dict[str, Any]:
    """Write a ResourceClaim that was given these devices."""
    results = [{"request": "r", "driver": driver, "pool": pool, "device": each, **result} for each in devices]
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team-a"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "mig.nvidia.com"}}]}},
        "status": {"allocation": {"devices": {"results": results}}} if devices else {},
    }
