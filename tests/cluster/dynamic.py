# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices and claims as NVIDIA's DRA driver and kube-scheduler write them where MIG slices are made on demand.

Names, attributes and counters follow kubernetes-sigs/dra-driver-nvidia-gpu cmd/gpu-kubelet-plugin mig.go, partitions.go
and driver.go: a whole GPU and every placement of every profile consume the counters of the GPU's counter set.
"""

from typing import Any

from app.knowledge.mig_geometry import Geometry, ProfileSlots
from app.knowledge.products import normal_form
from tests.builders import knowledge

DRIVER = "gpu.nvidia.com"
PRODUCT = "NVIDIA H100 80GB HBM3"


def carved(minor: int = 0, product: str = PRODUCT) -> list[dict[str, Any]]:
    """Write the devices of one GPU that is partitioned on demand."""
    geometry = knowledge().geometry[normal_form("-".join(product.split()))]
    every = [(slot, start) for slot in geometry.slots.values() for start in slot.starts]
    return [_whole(minor, product, geometry), *(_slice(minor, product, *placement) for placement in every)]


def name_of(profile: str, start: int, minor: int = 0) -> str:
    """Return the name of a slice's device; the driver adds the profile's number, on which nobody may rely."""
    return f"gpu-{minor}-mig-{profile.replace('.', '')}-99-{start}"


def counter_set(minor: int = 0, product: str = PRODUCT) -> dict[str, Any]:
    """Write the counter set of a GPU: all that its devices may consume."""
    return {
        "name": f"gpu-{minor}-counter-set",
        "counters": carved(minor, product)[0]["consumesCounters"][0]["counters"],
    }


def _whole(minor: int, product: str, geometry: Geometry) -> dict[str, Any]:
    attributes = {**_attributes(product), "type": {"string": "gpu"}, "uuid": {"string": f"GPU-{minor}"}}
    counters = _counters(geometry.compute_total, 1, range(geometry.memory_total))
    return _device(f"gpu-{minor}", attributes, "81559Mi", minor, counters)


def _slice(minor: int, product: str, slot: ProfileSlots, start: int) -> dict[str, Any]:
    profile = {"profile": {"string": slot.profile.replace(".me", "+me")}, "parentUUID": {"string": f"GPU-{minor}"}}
    attributes = {**_attributes(product), "type": {"string": "mig"}, **profile}
    media = int(slot.profile.endswith(".me") or slot.length > 4)
    counters = _counters(slot.compute, media, range(start, start + slot.length))
    return _device(name_of(slot.profile, start, minor), attributes, f"{slot.length * 9984}Mi", minor, counters)


def _attributes(product: str) -> dict[str, Any]:
    return {
        "productName": {"string": product},
        "driverVersion": {"version": "570.124.6"},
        "cudaDriverVersion": {"version": "12.8.0"},
        "cudaComputeCapability": {"version": "9.0.0"},
    }


def _counters(compute: int, media: int, memory: range) -> dict[str, Any]:
    amounts = {"multiprocessors": 16 * compute, "jpeg-engines": media, **{f"memory-slice-{slot}": 1 for slot in memory}}
    return {name: {"value": str(amount)} for name, amount in amounts.items()}


def _device(name: str, attributes: dict[str, Any], memory: str, minor: int, counters: dict[str, Any]) -> dict[str, Any]:
    takes = [{"counterSet": f"gpu-{minor}-counter-set", "counters": counters}]
    capacity = {"memory": {"value": memory}}
    return {"name": name, "attributes": attributes, "capacity": capacity, "consumesCounters": takes}


def resource_slice(
    devices: list[dict[str, Any]], name: str = "s", node: str = "n", generation: int = 1, count: int = 1, **spec: Any
) -> dict[str, Any]:
    """Write a ResourceSlice of a node's pool, which consists of `count` slices."""
    pool = {"name": node, "generation": generation, "resourceSliceCount": count}
    whole = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices, **spec}
    return {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": whole}


def device_class(resource: str, name: str = "mig.nvidia.com") -> dict[str, Any]:
    return {"kind": "DeviceClass", "metadata": {"name": name}, "spec": {"extendedResourceName": resource}}


def claim(name: str, *devices: str, pool: str = "n", driver: str = DRIVER, **result: Any) -> dict[str, Any]:
    """Write a ResourceClaim to which these devices are allocated."""
    results = [{"request": "r", "driver": driver, "pool": pool, "device": device, **result} for device in devices]
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team-a"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "mig.nvidia.com"}}]}},
        "status": {"allocation": {"devices": {"results": results}}} if devices else {},
    }
