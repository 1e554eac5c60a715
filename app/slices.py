# SPDX-License-Identifier: Apache-2.0
"""Devices as DRA tells of them: ResourceSlices of a node, and DeviceClasses that serve an extended resource (F135).

Where a DeviceClass has `extendedResourceName` (KEP-5004), a pod that asks for nvidia.com/gpu is served by DRA: a
node's allocatable then says nothing, and kube-scheduler alone counts. Attribute names are those of NVIDIA's
driver (NVIDIA/k8s-dra-driver-gpu cmd/gpu-kubelet-plugin/deviceinfo.go).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.errors import QuantityError, VersionError
from app.pods import member, objects
from app.quantity import parse_quantity
from app.versions import Version, parse_version

NVIDIA_DRIVER = "gpu.nvidia.com"


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU or MIG slice; None is unknown. `label`: the product as GPU Feature Discovery would write it."""

    label: str | None
    driver: Version | None
    cuda: Version | None
    compute_capability: Version | None
    memory_mib: int | None
    mig_profile: str | None


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """A slice's name, its node (None for one that is not of a single node), and NVIDIA's devices in it."""

    name: str
    node: str | None
    devices: tuple[Device, ...]


def read_slice(document: Mapping[str, Any]) -> ResourceSlice:
    """Read a ResourceSlice; another vendor's has no devices for us.

    Raises MalformedPod.
    """
    metadata = member(document, "metadata", dict, "") or {}
    spec = member(document, "spec", dict, "") or {}
    ours = member(spec, "driver", str, "spec.") == NVIDIA_DRIVER
    devices = tuple(_device(item, index) for index, item in objects(spec, "devices", "spec.")) if ours else ()
    name = member(metadata, "name", str, "metadata.") or ""
    return ResourceSlice(name, member(spec, "nodeName", str, "spec."), devices)


def _device(item: Mapping[str, Any], index: int) -> Device:
    """Read a device of resource.k8s.io/v1, or of the betas, which wrap it in `basic`."""
    where = f"spec.devices[{index}]."
    body = member(item, "basic", dict, where) or item
    attributes = member(body, "attributes", dict, where) or {}
    name = _attribute(attributes, "productName")
    profile = _attribute(attributes, "profile")
    return Device(
        label="-".join(name.split()) if name else None,
        driver=_version(attributes, "driverVersion"),
        cuda=_version(attributes, "cudaDriverVersion"),
        compute_capability=_version(attributes, "cudaComputeCapability"),
        memory_mib=_memory(member(body, "capacity", dict, where) or {}),
        mig_profile=profile.replace("+", ".") if profile else None,
    )


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


def read_device_class(document: Mapping[str, Any]) -> tuple[str, str | None]:
    """Read a DeviceClass: (name, the extended resource it serves or None).

    Raises MalformedPod.
    """
    metadata = member(document, "metadata", dict, "") or {}
    spec = member(document, "spec", dict, "") or {}
    return member(metadata, "name", str, "metadata.") or "", member(spec, "extendedResourceName", str, "spec.")


def common(devices: Iterable[Device]) -> Device | None:
    """Reduce a node's devices to what all of them share; None where there are none."""
    several = list(devices)
    if not several:
        return None
    values = {name: {getattr(each, name) for each in several} for name in Device.__dataclass_fields__}
    return Device(**{name: next(iter(found)) if len(found) == 1 else None for name, found in values.items()})
