# SPDX-License-Identifier: Apache-2.0
"""Devices as DRA tells of them: ResourceSlices of a node, and DeviceClasses that serve an extended resource (F135).

Where a DeviceClass has `extendedResourceName` (KEP-5004), a pod that asks for nvidia.com/gpu is served by DRA: a
node's allocatable then says nothing, and kube-scheduler alone counts. Attribute names are those of NVIDIA's
driver (NVIDIA/k8s-dra-driver-gpu cmd/gpu-kubelet-plugin/deviceinfo.go, mig.go, partitions.go). It
publishes a node's own GPUs, in slices with `nodeName`: those with `nodeSelector`, `allNodes` or a choice of nodes per
device are of no single node, and left out.
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
WITHHELD = frozenset({"NoSchedule", "NoExecute"})
"""Effects of a device taint that keep new pods off (KEP-5055); the driver taints so after an XID error and a lost GPU
(device_health.go), and notes with the effect None what it only wants seen."""
MEMORY_SLICE = "memory-slice-"
"""Counter of one memory slice of a GPU; a slice that is carved on demand consumes those on which it lies (KEP-4815;
partitions.go)."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU or MIG slice; None is unknown. `label`: the product as GPU Feature Discovery would write it.

    `gpu`: what its GPU is told apart by on the node: the counter set from which it takes, else a UUID or the device's
    own name. `start`: the first memory slice on which it lies; None if it is not carved on demand.
    `withheld`: a taint keeps new pods off.
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
    withheld: bool = False


FACTS = ("label", "driver", "cuda", "compute_capability", "memory_mib", "mig_profile")
"""What devices of one make have in common."""


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """A slice's name, its node (None for one that is not of a single node), and NVIDIA's devices in it.

    Of a pool's slices those of the highest `generation` hold (resource/v1 types.go ResourcePool).
    """

    name: str
    node: str | None
    devices: tuple[Device, ...]
    pool: str = ""
    generation: int = 0


def read_slice(document: Mapping[str, Any]) -> ResourceSlice:
    """Read a ResourceSlice; another vendor's has no devices for us.

    Raises MalformedPod.
    """
    metadata = member(document, "metadata", dict, "") or {}
    spec = member(document, "spec", dict, "") or {}
    pool = member(spec, "pool", dict, "spec.") or {}
    ours = member(spec, "driver", str, "spec.") == NVIDIA_DRIVER
    devices = [_device(item, index) for index, item in objects(spec, "devices", "spec.")] if ours else []
    return ResourceSlice(
        name=member(metadata, "name", str, "metadata.") or "",
        node=member(spec, "nodeName", str, "spec."),
        devices=tuple(device for device in devices if device),
        pool=member(pool, "name", str, "spec.pool.") or "",
        generation=member(pool, "generation", int, "spec.pool.") or 0,
    )


def _device(item: Mapping[str, Any], index: int) -> Device | None:
    """Read a device of resource.k8s.io/v1, or of the betas, which wrap it in `basic`.

    None for a GPU that is handed on to a virtual machine: no container has it.
    """
    where = f"spec.devices[{index}]."
    body = member(item, "basic", dict, where) or item
    attributes = member(body, "attributes", dict, where) or {}
    if _attribute(attributes, "type") not in (None, "gpu", "mig"):
        return None
    label = _attribute(attributes, "productName")
    profile = _attribute(attributes, "profile")
    name = member(item, "name", str, where) or ""
    counters, start = _carved(body, where)
    uuid = _attribute(attributes, "parentUUID") or _attribute(attributes, "uuid")
    return Device(
        label="-".join(label.split()) if label else None,
        driver=_version(attributes, "driverVersion"),
        cuda=_version(attributes, "cudaDriverVersion"),
        compute_capability=_version(attributes, "cudaComputeCapability"),
        memory_mib=_memory(member(body, "capacity", dict, where) or {}),
        mig_profile=profile.replace("+", ".") if profile else None,
        name=name,
        gpu=counters or uuid or name,
        start=start if profile else None,
        withheld=any(taint.get("effect") in WITHHELD for _, taint in objects(body, "taints", where)),
    )


def _carved(body: Mapping[str, Any], where: str) -> tuple[str | None, int | None]:
    """Read from which counter set a device takes, and the first memory slice that it takes."""
    for index, item in objects(body, "consumesCounters", where):
        inside = f"{where}consumesCounters[{index}]."
        counters = member(item, "counters", dict, inside) or {}
        numbers = [name.removeprefix(MEMORY_SLICE) for name in counters if name.startswith(MEMORY_SLICE)]
        slices = [int(number) for number in numbers if number.isdecimal() and len(number) < 3]
        if slices:
            return member(item, "counterSet", str, inside), min(slices)
    return None, None


def _attribute(attributes: Mapping[str, Any], name: str) -> str | None:
    """Read an attribute's value, a string or a version; the driver's own may carry its domain."""
    found = attributes.get(name) or attributes.get(f"{NVIDIA_DRIVER}/{name}")
    if not isinstance(found, dict):
        return None
    value = found.get("string") or found.get("version")
    return value if isinstance(value, str) else None


def _version(attributes: Mapping[str, Any], name: str) -> Version | None:
    text = _attribute(attributes, name)
    try:
        return parse_version(text) if text else None
    except VersionError:
        return None


def _memory(capacity: Mapping[str, Any]) -> int | None:
    found = capacity.get("memory")
    value = found.get("value") if isinstance(found, dict) else found
    try:
        return int(parse_quantity(value) // 2**20) if isinstance(value, str) else None
    except QuantityError:
        return None


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass: the extended resource that it serves (None: none), and the one type of devices that it takes.

    `type`: gpu or mig; `driver`: whose devices it takes. None where its selectors do not say it in the words that
    NVIDIA's chart writes.
    """

    name: str
    resource: str | None
    type: str | None = None
    driver: str | None = None

    def takes(self, device: Device) -> bool:
        """Tell whether it may take a device, as far as the types tell."""
        return self.type is None or self.type == ("mig" if device.mig_profile else "gpu")


_TYPE = re.compile(r"""\.type\s*==\s*['"](gpu|mig)['"]""")
"""In CEL, as `device.attributes['gpu.nvidia.com'].type == 'mig'` (NVIDIA/k8s-dra-driver-gpu deployments/helm,
deviceclass-*.yaml); any other expression is the scheduler's to judge."""

_DRIVER = re.compile(r"""device\.driver\s*==\s*['"]([a-z0-9.-]+)['"]""")


def read_device_class(document: Mapping[str, Any]) -> DeviceClass:
    """Read a DeviceClass.

    Raises MalformedPod.
    """
    metadata = member(document, "metadata", dict, "") or {}
    spec = member(document, "spec", dict, "") or {}
    name = member(metadata, "name", str, "metadata.") or ""
    resource = member(spec, "extendedResourceName", str, "spec.")
    return DeviceClass(name, resource, _said(spec, _TYPE), _said(spec, _DRIVER))


def _said(spec: Mapping[str, Any], words: re.Pattern[str]) -> str | None:
    for index, selector in objects(spec, "selectors", "spec."):
        where = f"spec.selectors[{index}]."
        cel = member(selector, "cel", dict, where) or {}
        if found := words.search(member(cel, "expression", str, f"{where}cel.") or ""):
            return found[1]
    return None


def makes(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Reduce a node's devices to one of each make, that is, of equal facts; by product. None where there are none.

    The whole GPUs count where there are any: the slices that can be carved from them say no more. Those that a taint
    withholds count only where all are.
    """
    several = list(devices)
    several = [each for each in several if not each.withheld] or several
    several = [each for each in several if not each.mig_profile] or several
    kinds = {tuple(getattr(each, name) for name in FACTS) for each in several}
    return tuple(replace(_UNKNOWN, **dict(zip(FACTS, kind, strict=True))) for kind in sorted(kinds, key=repr))


def common(devices: Iterable[Device]) -> Device:
    """Keep the facts that all these devices share."""
    several = list(devices)
    values = {name: {getattr(each, name) for each in several} for name in FACTS}
    shared: dict[str, Any] = {name: next(iter(found)) if len(found) == 1 else None for name, found in values.items()}
    return replace(_UNKNOWN, **shared)


_UNKNOWN = Device(None, None, None, None, None, None)
