# SPDX-License-Identifier: Apache-2.0
"""Devices for selectors: as ResourceSlices have them, which the Go oracle reads, and as the facts that ours reads."""

import random
import re
from collections.abc import Mapping
from typing import Any

from app.kube.device_models import Amounts, Attributes, SemanticVersion
from app.kube.devices import Device

Json = dict[str, Any]


def device_of(
    driver: str, attributes: Mapping[str, Any], capacity: Mapping[str, str], allow_multiple: bool = False
) -> Device:
    """Make a device; the keys of attributes and capacities are qualified names."""
    device = Device(
        name="gpu-0",
        attributes=Attributes(tuple(attributes), tuple(attributes.values())),
        amounts=Amounts(tuple((name, amount, None) for name, amount in capacity.items())),
        allow_multiple_allocations=allow_multiple,
    )
    return device.place(driver, "n", per_device=False)


def facts_of(driver: str, device: Json) -> Device:
    """Read a device of a ResourceSlice (resource/v1), also with lists of versions."""
    attributes = {_qualified(name, driver): _value(value) for name, value in device.get("attributes", {}).items()}
    capacity = {_qualified(name, driver): value["value"] for name, value in device.get("capacity", {}).items()}
    return device_of(driver, attributes, capacity, device.get("allowMultipleAllocations", False))


def _qualified(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def _value(attribute: Json) -> Any:
    ((kind, value),) = attribute.items()
    if kind == "version":
        return SemanticVersion(value)
    if kind == "versions":
        return tuple(map(SemanticVersion, value))
    return tuple(value) if isinstance(value, list) else value


NAMES = ("type", "productName", "index", "healthy", "version", "driverVersion", "uuid", "rdma")
DOMAINS = ("gpu.nvidia.com", "gpu.nvidia.com", "gpu.nvidia.com", "resource.kubernetes.io", "other.example.com")
CAPACITIES = ("memory", "cores")
STRINGS = (
    "gpu",
    "mig",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA H100 80GB HBM3",
    "Hopper",
    "",
    "héllo wörld",
    "a.b,c",
    "8.0.0",
)
INTEGERS = (0, 1, 2, 3, 7, 8, -1, 16, 2**53 + 1, 2**63 - 1, -(2**63))
VERSIONS = (
    "8.0.0",
    "9.0.0",
    "10.0.0",
    "580.82.7",
    "1.2.3-rc.1",
    "1.2.3-rc.2+b7",
    "1.2.3+build",
    "0.0.0",
    "1.2.3-alpha",
)
QUANTITIES = (
    "80Gi",
    "40Gi",
    "1",
    "0",
    "500m",
    "1536Mi",
    "100Ti",
    "85899345920",
    "8",
    "16",
    "1e3",
    "1k",
    "-5",
    "12345678901Ki",
)


_ASKED = re.compile(r"""(attributes|capacity)\[["']([^"']+)["']\]\.(\w+)(?:\s*(?:==|\.\w+\()\s*["']?([^"')]*))?""")


def device_for(expression: str, chance: random.Random) -> tuple[str, Json]:
    """Make a device that has most of what a published selector asks for, often with the value that it wants."""
    device = make_device(chance)[1]
    driver = chance.choice(re.findall(r"[a-z.-]+\.(?:com|net)", expression) or ["gpu.nvidia.com"])
    for group, domain, name, value in _ASKED.findall(expression):
        if chance.random() < 0.85:
            device[group].pop(name, None)
            device[group][f"{domain}/{name}"] = _asked_for(chance, group, value)
    return driver, device


def _asked_for(chance: random.Random, group: str, value: str) -> Json:
    if group == "capacity":
        return {"value": chance.choice(QUANTITIES)}
    if chance.random() < 0.1:
        return _attribute(chance, chance.choice(NAMES), lists=False)
    if value in ("true", "false"):
        return {"bool": chance.random() < 0.7}
    if value.strip().isdecimal():
        return {"int": int(value) + chance.choice((0, 0, 1))}
    if value.startswith("semver"):
        return {"version": chance.choice(VERSIONS)}
    return {"string": value if value and chance.random() < 0.6 else chance.choice(STRINGS)}


def make_device(chance: random.Random, lists: bool = False) -> tuple[str, Json]:
    """Make a driver's name and a device at random; now and then with facts of unusual types."""
    device: Json = {"name": "gpu-0", "attributes": {}, "capacity": {}}
    for name in NAMES:
        if chance.random() < 0.75:
            domain = chance.choice(("", "", "", "resource.kubernetes.io/", "gpu.nvidia.com/"))
            device["attributes"][domain + name] = _attribute(chance, name, lists)
    for name in CAPACITIES:
        if chance.random() < 0.8:
            device["capacity"][name] = {"value": chance.choice(QUANTITIES)}
    if chance.random() < 0.3:
        device["allowMultipleAllocations"] = chance.random() < 0.7
    return chance.choice(("gpu.nvidia.com",) * 4 + ("other.example.com",)), device


_USUAL = {"index": "int", "healthy": "bool", "rdma": "bool", "version": "version", "driverVersion": "version"}


def _attribute(chance: random.Random, name: str, lists: bool) -> Json:
    kind = _USUAL.get(name, "string")
    if chance.random() < 0.15:
        kind = chance.choice(("int", "bool", "string", "version"))
    values: dict[str, tuple[Any, ...]] = {
        "int": INTEGERS,
        "bool": (True, False),
        "string": STRINGS,
        "version": VERSIONS,
    }
    if lists and chance.random() < 0.4:
        return {kind + "s": [chance.choice(values[kind]) for _ in range(chance.choice((1, 2, 5)))]}
    return {kind: chance.choice(values[kind])}
