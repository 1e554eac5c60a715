# SPDX-License-Identifier: Apache-2.0
"""DRA objects of the resource.k8s.io group: the ResourceSlices of a node with their devices, and DeviceClasses.

Where a DeviceClass has `extendedResourceName` (KEP-5004), DRA serves a pod that requests nvidia.com/gpu. The node's
allocatable then does not count these GPUs, and only kube-scheduler does. Attribute names are those of NVIDIA's driver
(NVIDIA/k8s-dra-driver-gpu cmd/gpu-kubelet-plugin/deviceinfo.go, mig.go, partitions.go). The driver publishes a node's
GPUs in slices with `nodeName`. Slices with `nodeSelector`, `allNodes` or a choice of nodes per device do not belong to
a single node, and are left out.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.values.errors import QuantityError, VersionError
from app.values.json_members import member, objects
from app.values.quantity import parse_quantity
from app.values.versions import Version, parse_version

NVIDIA_DRIVER = "gpu.nvidia.com"
GPU_DRIVER = "gpu."
"""A driver of GPUs is named after its vendor's domain with this before it: gpu.amd.com, gpu.intel.com."""
BLOCKING_TAINT_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
"""Effects of a device taint that keep new pods off the device (KEP-5055). NVIDIA's driver sets such a taint after an
XID error or the loss of a GPU, and a taint with the effect None for mere information (device_health.go)."""
MEMORY_SLICE = "memory-slice-"
"""The prefix of the counters for the memory slices of a GPU. A MIG device that is created on demand consumes the
counters of the memory slices that it occupies (KEP-4815; partitions.go)."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a ResourceSlice, a GPU or a MIG slice; facts that are None are unknown.

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
"""The fields of a Device that are facts about its kind; the others identify it, or say where it is."""


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """A ResourceSlice with the GPUs in it.

    `driver` is the DRA driver; `devices` are empty for one that is not named as drivers of GPUs are. `node` is None
    for a slice that does not belong to a single node. Of the slices of one `pool` only those of the highest
    `generation` are valid (resource/v1 types.go ResourcePool).
    """

    name: str
    node: str | None
    devices: tuple[Device, ...]
    pool: str = ""
    generation: int = 0
    driver: str = NVIDIA_DRIVER


def read_slice(document: Mapping[str, Any]) -> ResourceSlice:
    """Read a ResourceSlice; of another vendor's driver of GPUs only products, drivers, memory and partitions are read.

    Raises MalformedPod.
    """
    metadata = member(document, "metadata", dict, "") or {}
    spec = member(document, "spec", dict, "") or {}
    pool = member(spec, "pool", dict, "spec.") or {}
    driver = member(spec, "driver", str, "spec.") or ""
    read = _device if driver == NVIDIA_DRIVER else _device_of_other_vendor if driver.startswith(GPU_DRIVER) else None
    devices = [read(item, index) for index, item in objects(spec, "devices", "spec.")] if read else []
    return ResourceSlice(
        name=member(metadata, "name", str, "metadata.") or "",
        node=member(spec, "nodeName", str, "spec."),
        devices=tuple(device for device in devices if device),
        pool=member(pool, "name", str, "spec.pool.") or "",
        generation=member(pool, "generation", int, "spec.pool.") or 0,
        driver=driver,
    )


def _device_of_other_vendor(item: Mapping[str, Any], index: int) -> Device:
    """Read what drivers of AMD and Intel publish.

    Sources: ROCm/k8s-gpu-dra-driver, intel/intel-resource-drivers-for-kubernetes.
    """
    where = f"spec.devices[{index}]."
    body = member(item, "basic", dict, where) or item
    attributes = member(body, "attributes", dict, where) or {}
    label = _attribute(attributes, "productName") or _attribute(attributes, "model")
    memory_mib = _memory_mib(member(body, "capacity", dict, where) or {})
    driver, partition = _version(attributes, "driverVersion"), _attribute(attributes, "partitionProfile")
    return Device("-".join(label.split()) if label else None, driver, None, None, memory_mib, None, partition=partition)


def _device(item: Mapping[str, Any], index: int) -> Device | None:
    """Read a device of resource.k8s.io/v1, or of a beta version, in which `basic` wraps the device.

    None for a GPU that is passed through to virtual machines, since no container can use it.
    """
    where = f"spec.devices[{index}]."
    body = member(item, "basic", dict, where) or item
    attributes = member(body, "attributes", dict, where) or {}
    if _attribute(attributes, "type") not in (None, "gpu", "mig"):
        return None
    label = _attribute(attributes, "productName")
    profile = _attribute(attributes, "profile")
    name = member(item, "name", str, where) or ""
    counters, start = _memory_slices(body, where)
    uuid = _attribute(attributes, "parentUUID") or _attribute(attributes, "uuid")
    return Device(
        label="-".join(label.split()) if label else None,
        driver=_version(attributes, "driverVersion"),
        cuda=_version(attributes, "cudaDriverVersion"),
        compute_capability=_version(attributes, "cudaComputeCapability"),
        memory_mib=_memory_mib(member(body, "capacity", dict, where) or {}),
        mig_profile=profile.replace("+", ".") if profile else None,
        name=name,
        gpu=counters or uuid or name,
        start=start if profile else None,
        tainted=any(taint.get("effect") in BLOCKING_TAINT_EFFECTS for _, taint in objects(body, "taints", where)),
    )


def _memory_slices(body: Mapping[str, Any], where: str) -> tuple[str | None, int | None]:
    """Read the counter set that a device consumes, and its first memory slice; None twice if it consumes none."""
    for index, item in objects(body, "consumesCounters", where):
        inside = f"{where}consumesCounters[{index}]."
        counters = member(item, "counters", dict, inside) or {}
        numbers = [name.removeprefix(MEMORY_SLICE) for name in counters if name.startswith(MEMORY_SLICE)]
        slices = [int(number) for number in numbers if number.isdecimal() and len(number) < 3]
        if slices:
            return member(item, "counterSet", str, inside), min(slices)
    return None, None


def _attribute(attributes: Mapping[str, Any], name: str) -> str | None:
    """Read the value of an attribute, a string or a version; its name may carry the driver's domain."""
    attribute = attributes.get(name) or attributes.get(f"{NVIDIA_DRIVER}/{name}")
    if not isinstance(attribute, dict):
        return None
    value = attribute.get("string") or attribute.get("version")
    return value if isinstance(value, str) else None


def _version(attributes: Mapping[str, Any], name: str) -> Version | None:
    text = _attribute(attributes, name)
    try:
        return parse_version(text) if text else None
    except VersionError:
        return None


def _memory_mib(capacity: Mapping[str, Any]) -> int | None:
    quantity = capacity.get("memory")
    value = quantity.get("value") if isinstance(quantity, dict) else quantity
    try:
        return int(parse_quantity(value) // 2**20) if isinstance(value, str) else None
    except QuantityError:
        return None


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass, with the extended resource that it serves and the devices that it selects.

    `resource` is None if it serves no extended resource. `type` is gpu or mig, and `driver` is the name of the DRA
    driver; both are None unless the selectors have the form that NVIDIA's chart writes.
    """

    name: str
    resource: str | None
    type: str | None = None
    driver: str | None = None

    def selects(self, device: Device) -> bool:
        """Tell whether the class selects a device, as far as its type says; other selectors are not evaluated."""
        return self.type is None or self.type == ("mig" if device.mig_profile else "gpu")


_TYPE = re.compile(r"""\.type\s*==\s*['"](gpu|mig)['"]""")
"""The device type in a CEL selector, as in `device.attributes['gpu.nvidia.com'].type == 'mig'`
(NVIDIA/k8s-dra-driver-gpu deployments/helm, deviceclass-*.yaml). Only kube-scheduler evaluates other expressions."""

_DRIVER = re.compile(r"""device\.driver\s*==\s*['"]([a-z0-9.-]+)['"]""")


def read_device_class(document: Mapping[str, Any]) -> DeviceClass:
    """Read a DeviceClass.

    Raises MalformedPod.
    """
    metadata = member(document, "metadata", dict, "") or {}
    spec = member(document, "spec", dict, "") or {}
    name = member(metadata, "name", str, "metadata.") or ""
    resource = member(spec, "extendedResourceName", str, "spec.")
    return DeviceClass(name, resource, _match_in_selectors(spec, _TYPE), _match_in_selectors(spec, _DRIVER))


def _match_in_selectors(spec: Mapping[str, Any], pattern: re.Pattern[str]) -> str | None:
    for index, selector in objects(spec, "selectors", "spec."):
        where = f"spec.selectors[{index}]."
        cel = member(selector, "cel", dict, where) or {}
        if match := pattern.search(member(cel, "expression", str, f"{where}cel.") or ""):
            return match[1]
    return None


def distinct_devices(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Reduce a node's devices to one for each set of equal facts (DEVICE_FACTS), sorted by product.

    MIG slices are left out where there are whole GPUs, since they add no facts to those of their GPU. Tainted devices
    are left out unless all devices are tainted.
    """
    candidates = list(devices)
    candidates = [device for device in candidates if not device.tainted] or candidates
    candidates = [device for device in candidates if not device.mig_profile] or candidates
    kinds = {tuple(getattr(device, name) for name in DEVICE_FACTS) for device in candidates}
    return tuple(replace(_UNKNOWN, **dict(zip(DEVICE_FACTS, kind, strict=True))) for kind in sorted(kinds, key=repr))


def shared_facts(devices: Iterable[Device]) -> Device:
    """Make a device of the facts that all these devices share; the other facts are None."""
    all_devices = list(devices)
    facts: dict[str, Any] = {}
    for name in DEVICE_FACTS:
        values = {getattr(device, name) for device in all_devices}
        facts[name] = values.pop() if len(values) == 1 else None
    return replace(_UNKNOWN, **facts)


_UNKNOWN = Device(None, None, None, None, None, None)
