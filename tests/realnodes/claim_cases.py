# SPDX-License-Identifier: Apache-2.0
"""Claims for devices of a node with a DRA driver, and the device names that their containers are to see."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.realnodes.dra_devices import DRIVER

GPU_CLASS, MIG_CLASS = "gpu.nvidia.com", "mig.nvidia.com"


@dataclass(frozen=True, slots=True)
class ClaimCase:
    """A claim's requests, on which node, and how many devices of which type (`gpu` or `mig`) it is to get."""

    node: str
    requests: tuple[Mapping[str, Any], ...]
    devices: int = 1
    kind: str = "gpu"
    admin: bool = False


def exactly(device_class: str, *expressions: str, **more: Any) -> dict[str, Any]:
    """Write a request for devices of a class that CEL expressions select."""
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    return {"name": "gpus", "exactly": {"deviceClassName": device_class, "selectors": selectors, **more}}


def product(name: str) -> str:
    """Write the expression that selects a product."""
    return f"device.attributes['{DRIVER}'].productName == '{name}'"


ALTERNATIVES = [
    {"name": "h200", "deviceClassName": GPU_CLASS, "selectors": [{"cel": {"expression": product("NVIDIA H200")}}]},
    {"name": "any", "deviceClassName": GPU_CLASS, "count": 2},
]
CASES: Mapping[str, ClaimCase] = {
    "whole GPU": ClaimCase("node-1", (exactly(GPU_CLASS),)),
    "two GPUs": ClaimCase("node-1", (exactly(GPU_CLASS, count=2),), devices=2),
    "GPU by product and memory": ClaimCase(
        "node-1",
        (
            exactly(
                GPU_CLASS,
                product("NVIDIA H100 80GB HBM3"),
                f"device.capacity['{DRIVER}'].memory.compareTo(quantity('40Gi')) >= 0",
            ),
        ),
    ),
    "MIG slice": ClaimCase(
        "node-2", (exactly(MIG_CLASS, f"device.attributes['{DRIVER}'].profile == '2g.20gb'"),), kind="mig"
    ),
    "prioritized list": ClaimCase("node-1", ({"name": "gpus", "firstAvailable": ALTERNATIVES},), devices=2),
    "admin access to all GPUs": ClaimCase(
        "node-1", (exactly(GPU_CLASS, allocationMode="All", adminAccess=True),), devices=8, admin=True
    ),
}
"""What is claimed → how. node-1 has 8 H100, node-2 has A100 cut into slices."""
