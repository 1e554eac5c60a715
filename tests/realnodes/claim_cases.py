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
SHARED, EXTENDED, CONVERTED = "shared by two pods", "extended resource by DRA", "converted by gpu-usher"
"""Claims of pods that have tests of their own."""


def words_of(request: Mapping[str, Any]) -> str:
    """Write a request as the table of results shows it."""
    if "firstAvailable" in request:
        return ", or else ".join(map(_words, request["firstAvailable"]))
    return _words(request["exactly"])


def _words(exactly: Mapping[str, Any]) -> str:
    number = "all" if exactly.get("allocationMode") == "All" else exactly.get("count", 1)
    where = " && ".join(f"`{one['cel']['expression']}`" for one in exactly.get("selectors", ()))
    admin = " with adminAccess" if exactly.get("adminAccess") else ""
    return f"{number} × `{exactly['deviceClassName']}`{admin}" + (f" where {where}" if where else "")


CLAIMS: Mapping[str, str] = {
    **{name: "; ".join(map(words_of, case.requests)) for name, case in CASES.items()},
    SHARED: f"1 × `{GPU_CLASS}`",
    EXTENDED: "`nvidia.com/gpu: 2`, which the DeviceClass serves",
    CONVERTED: "`nvidia.com/gpu: 2`, with the policy field `convertToClaims`",
}
"""The rows of the table of claims: what is claimed → in which words."""
