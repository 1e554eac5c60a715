# SPDX-License-Identifier: Apache-2.0
"""What the twin reads off a raw node: slice, memory, driver, capability, what one unit of a resource is.

From clouds.yaml and the labels that GPU Feature Discovery writes, in the plainest way.
"""

import json
import re

from tests.placement.twin_cuda import facts
from tests.placement.twin_products import (
    PRODUCT,
    agreed,
    bare,
    cloud_of,
    instance_row,
    positive,
    product_row,
    products,
    rows_of,
    several_models,
    vendor_row,
)
from tests.placement.twin_world import GPU, SHARED, SLICES, RawNode

__all__ = ["agreed", "bare", "positive", "product_row", "products", "rows_of", "several_models"]

NEW_DRIVER = tuple(f"nvidia.com/cuda.driver-version.{part}" for part in ("major", "minor", "revision"))
OLD_DRIVER = tuple(f"nvidia.com/cuda.driver.{part}" for part in ("major", "minor", "rev"))
SHARING, REPLICAS = "nvidia.com/gpu.sharing-strategy", "nvidia.com/gpu.replicas"


def label_slice(node: RawNode) -> str | None:
    """Read the profile of strategy single: GFD's suffix, or a cloud's partition size."""
    found = re.search(r"-MIG-(.+?)(?:-SHARED)?$", node.labels.get(PRODUCT, ""))
    if found:
        return None if found[1] == "INVALID" else found[1]
    key = cloud_of(node.labels).get("slice_key")
    return node.labels.get(key) if key and PRODUCT not in node.labels else None


def unnamed_slices(node: RawNode) -> bool:
    """Tell whether every unit is a MIG slice of unknown size: all GPUs are MIG-enabled, and no strategy names slices.

    GPU Feature Discovery then says 0 replicas, and the device plugin registers the plain resource all the same.
    """
    return node.labels.get(REPLICAS) == "0" and node.offers(GPU) > 0


def strategy(node: RawNode) -> str:
    """Read how GPUs are shared: time-slicing, mps or nothing."""
    said = node.labels.get(SHARING)
    for row in facts("clouds.yaml")["sharing_labels"] if said is None else ():
        said = said or row["values"].get(node.labels.get(row["key"], ""))
    return said if said in ("time-slicing", "mps") else ""


def unit_of(resource: str, node: RawNode) -> str:
    """Say what one unit is: share, mps-share, named slice, slice, whole or unknown."""
    if resource.endswith(SHARED):
        return "mps-share" if strategy(node) == "mps" and not resource.startswith(SLICES) else "share"
    if resource.startswith(SLICES):
        shared = node.labels.get(f"{resource}.sharing-strategy") == "time-slicing" and not renames(node)
        return "share" if shared else "named slice"
    if node.hami and resource == GPU:
        return "share"
    label = node.labels.get(PRODUCT, "")
    if label.endswith("-SHARED") or (strategy(node) and not renames(node)):
        return "mps-share" if strategy(node) == "mps" else "share"
    if label_slice(node) or (resource == GPU and unnamed_slices(node)):
        return "slice"
    return "whole" if sharing_told(node) else "unknown"


def sharing_told(node: RawNode) -> bool:
    """Tell whether anything on the node would say it if its GPUs were shared."""
    cloud = cloud_of(node.labels)
    told = {PRODUCT, SHARING, REPLICAS, *(row["key"] for row in facts("clouds.yaml")["sharing_labels"])}
    return "sharing_key" in cloud or any(key in node.labels for key in (*told, cloud.get("slice_key")))


def renames(node: RawNode) -> bool:
    """Tell whether shares have names of their own (`renameByDefault`), so that plain names are whole ones."""
    return any(resource.endswith(SHARED) for resource in node.allocatable)


def replicas(resource: str, node: RawNode) -> int:
    """Read the shares of one GPU, or of one slice of a profile: 1 where they are not shared."""
    if resource.startswith(SLICES):
        return positive(node.labels.get(f"{SLICES}{profile_of(resource)}.replicas")) or 1
    keys = (REPLICAS, *(row["replicas_key"] for row in facts("clouds.yaml")["sharing_labels"]))
    return next((found for key in keys if (found := positive(node.labels.get(key)))), 1)


def registered(node: RawNode) -> int:
    """Count the GPUs that HAMi has registered: a JSON list, or entries that end in a colon."""
    if node.hami.startswith("["):
        return len(json.loads(node.hami))
    return node.hami.count(":")


def slice_size(profile: str) -> tuple[int, int]:
    """Read (compute slices, memory in MiB) off a profile's name."""
    compute, memory = re.match(r"(\d+)g\.(\d+)gb", profile).groups()  # type: ignore[union-attr]
    return int(compute), int(memory) * 1024


def profile_of(resource: str) -> str:
    """Read the profile in a resource's name."""
    return resource.removeprefix(SLICES).removesuffix(SHARED)


def unit_memory(resource: str, node: RawNode) -> tuple[int | None, int | None]:
    """Find the MiB of the GPU or slice behind one unit, not divided by shares: what it has, or has at most.

    A slice's is nominal where no label tells.
    """
    label = positive(node.labels.get("nvidia.com/gpu.memory"))
    if resource.startswith(SLICES):
        profile = profile_of(resource)
        return positive(node.labels.get(f"{SLICES}{profile}.memory")) or slice_size(profile)[1], None
    if several_models(node):
        return None, None
    if unnamed_slices(node):
        return None, label or whole_memory(node)[0]
    if label:
        return label, None
    if has := label_slice(node):
        return slice_size(has)[1], None
    return whole_memory(node)


def whole_memory(node: RawNode) -> tuple[int | None, int | None]:
    """Find the smallest figure that the product table, the cloud's label or the instance type gives of one GPU."""
    told = [
        positive(node.labels.get(cloud_of(node.labels).get("memory_key", ""))),
        instance_row(node.labels).get("memory_mib"),
        vendor_memory(node),
    ]
    sizes = [row["memory_mib"] if row else None for row in rows_of(node)]
    figures = [each for each in sizes if each]
    most = max(figures) if figures and len(figures) == len(sizes) else None
    if most is not None and len(set(sizes)) == 1:
        told.append(most)
    known = [each for each in told if each]
    if known and (most is None or min(known) <= most):
        return min(known), None
    return None, most


def vendor_memory(node: RawNode) -> int | None:
    """Read another vendor's label: a quantity of one GPU, or bytes of all of them together."""
    row = vendor_row(node.labels)
    text = next((node.labels[key] for key in row.get("memory_keys", ()) if key in node.labels), None)
    if text is None:
        return None
    if row["memory_unit"] == "quantity":
        return int(text.removesuffix("G")) * 1024
    units = sum(node.offers(resource) for resource in node.resources() if resource.startswith("gpu.intel.com/"))
    return int(text) // units // 2**20 if units else None


def capability(node: RawNode) -> str | None:
    """Find the compute capability: GFD's labels, else the product's."""
    if several_models(node):
        return None
    said = [node.labels.get(f"nvidia.com/gpu.compute.{part}") for part in ("major", "minor")]
    if said[0] and said[1]:
        return ".".join(str(each) for each in said)
    found = agreed(node, "compute_capability")
    return None if found is None else str(found)


def driver(node: RawNode) -> str | None:
    """Read the driver's version: in full, in parts, or in the deprecated parts."""
    full = node.labels.get("nvidia.com/cuda.driver-version.full")
    if full:
        return full
    for keys in (NEW_DRIVER, OLD_DRIVER):
        parts = [node.labels.get(key, "") for key in keys]
        if parts[0]:
            return ".".join(part for part in parts if part)
    return None


def reported_cuda(node: RawNode) -> str | None:
    """Read the newest CUDA that the driver reports: GFD's label, else what its branch reports."""
    for key in ("nvidia.com/cuda.runtime-version", "nvidia.com/cuda.runtime"):
        parts = [node.labels.get(f"{key}.{part}") for part in ("major", "minor")]
        if parts[0] and parts[1]:
            return ".".join(str(each) for each in parts)
    branch = (driver(node) or "").split(".")[0]
    rows = facts("cuda_driver.yaml")["driver_branches"]
    return next((row["max_cuda_reported"] for row in rows if str(row["branch"]) == branch), None)
