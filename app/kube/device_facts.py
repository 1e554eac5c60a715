# SPDX-License-Identifier: Apache-2.0
"""What filters read of a GPU that DRA publishes: product, driver, memory, MIG profile, and its place on the GPU.

Attribute names are those of NVIDIA's driver (NVIDIA/k8s-dra-driver-gpu cmd/gpu-kubelet-plugin/deviceinfo.go, mig.go,
partitions.go), and of the drivers of AMD and Intel (ROCm/k8s-gpu-dra-driver,
intel/intel-resource-drivers-for-kubernetes). The driver publishes a node's GPUs in slices with `nodeName`; devices of
other slices do not belong to a single node, and no filter reads them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from operator import attrgetter
from typing import Any

from app.kube.devices import BLOCKING_EFFECTS, Device, SemanticVersion
from app.values.errors import VersionError
from app.values.versions import Version, parse_version

NVIDIA_DRIVER = "gpu.nvidia.com"
GPU_DRIVER = "gpu."
"""A driver of GPUs is named after its vendor's domain with this before it: gpu.amd.com, gpu.intel.com."""
MEMORY_SLICE = "memory-slice-"
"""The prefix of the counters for the memory slices of a GPU. A MIG device that is created on demand consumes the
counters of the memory slices that it occupies (KEP-4815; partitions.go)."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What is known of one device, a GPU or a MIG slice; facts that are None are unknown.

    `label` is the product as GPU Feature Discovery writes it. `memory_mib` is in MiB. `gpu` identifies the GPU of the
    device on its node: it is the counter set that the device consumes, or else a UUID or the device's own name.
    `start` is the first memory slice that the device occupies, None if it is not created on demand. `tainted` says
    that a taint of the device keeps new pods off. `partition` is AMD's partition of compute and memory.
    """

    label: str | None
    driver: Version | None
    cuda: Version | None
    compute_capability: Version | None
    memory_mib: int | None
    mig_profile: str | None
    name: str = ""
    gpu: str = ""
    start: int | None = None
    tainted: bool = False
    partition: str | None = None


DEVICE_FACTS = ("label", "driver", "cuda", "compute_capability", "memory_mib", "mig_profile")
"""The first fields of DeviceFacts, which a kind of devices shares; the others identify a device, or say where it is."""


def facts_of(device: Device) -> DeviceFacts | None:
    """Work out what filters read of a device.

    None for a device of a driver that is not named as drivers of GPUs are, and for a GPU that is passed through to
    virtual machines, since no container can use it. Of another vendor's driver only the product, the driver, the memory
    and the partition are read.
    """
    if device.driver != NVIDIA_DRIVER:
        return _facts_of_other_vendor(device) if device.driver.startswith(GPU_DRIVER) else None
    if _text(device, "type") not in (None, "gpu", "mig"):
        return None
    profile = _text(device, "profile")
    counters, start = _memory_slices(device) if device.counters else (None, None)
    return DeviceFacts(
        label=_label(_text(device, "productName")),
        driver=_version(_text(device, "driverVersion")),
        cuda=_version(_text(device, "cudaDriverVersion")),
        compute_capability=_version(_text(device, "cudaComputeCapability")),
        memory_mib=_memory_mib(device),
        mig_profile=profile.replace("+", ".") if profile else None,
        name=device.name,
        gpu=counters or _text(device, "parentUUID") or _text(device, "uuid") or device.name,
        start=start if profile else None,
        tainted=bool(device.taints) and any(taint.effect in BLOCKING_EFFECTS for taint in device.taints),
    )


def _facts_of_other_vendor(device: Device) -> DeviceFacts:
    label = _label(_text(device, "productName") or _text(device, "model"))
    driver, partition = _version(_text(device, "driverVersion")), _text(device, "partitionProfile")
    return DeviceFacts(label, driver, None, None, _memory_mib(device), None, partition=partition)


def _text(device: Device, name: str) -> str | None:
    """Return an attribute of the driver that is a string or a version; None for an empty one, and any other type."""
    value = device.attributes.get(f"{device.driver}/{name}")
    if isinstance(value, SemanticVersion):
        value = value.text
    return value if isinstance(value, str) and value else None


def _memory_slices(device: Device) -> tuple[str | None, int | None]:
    """Return the counter set that a device consumes, and its first memory slice; None twice if it consumes none."""
    for use in device.counters:
        numbers = [name.removeprefix(MEMORY_SLICE) for name in use.amounts if name.startswith(MEMORY_SLICE)]
        slices = [int(number) for number in numbers if number.isdecimal() and len(number) < 3]
        if slices:
            return use.counter_set, min(slices)
    return None, None


@lru_cache(1024)
def _label(text: str | None) -> str | None:
    return "-".join(text.split()) if text else None


@lru_cache(1024)
def _version(text: str | None) -> Version | None:
    try:
        return parse_version(text) if text else None
    except VersionError:
        return None


def _memory_mib(device: Device) -> int | None:
    amount = device.amounts.get("memory")
    return None if amount is None else _mib(amount)


@lru_cache(1024)
def _mib(amount: Fraction) -> int:
    return int(amount // 2**20)


def distinct_devices(devices: Iterable[DeviceFacts]) -> tuple[DeviceFacts, ...]:
    """Reduce a node's devices to one for each set of equal facts (DEVICE_FACTS), sorted by product.

    MIG slices are left out where there are whole GPUs, since they add no facts to those of their GPU. Tainted devices
    are left out unless all devices are tainted.
    """
    candidates = list(devices)
    candidates = [device for device in candidates if not device.tainted] or candidates
    candidates = [device for device in candidates if not device.mig_profile] or candidates
    kinds = set(map(attrgetter(*DEVICE_FACTS), candidates))
    return tuple(DeviceFacts(*kind) for kind in sorted(kinds, key=repr))


def shared_facts(devices: Iterable[DeviceFacts]) -> DeviceFacts:
    """Make a device of the facts that all these devices share; the other facts are None."""
    all_devices = list(devices)
    values = ({getattr(device, name) for device in all_devices} for name in DEVICE_FACTS)
    facts: list[Any] = [same.pop() if len(same) == 1 else None for same in values]
    return DeviceFacts(*facts)
