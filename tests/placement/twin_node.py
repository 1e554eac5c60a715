# SPDX-License-Identifier: Apache-2.0
"""What the twin reads from a raw node: slice, memory, driver, capability, and the unit of each resource.

It reads clouds.yaml and the labels of GPU Feature Discovery in the simplest way.
"""

import json
import re

from tests.placement.twin_cuda import facts
from tests.placement.twin_evidence import labelled_replicas
from tests.placement.twin_products import (
    PRODUCT,
    agreed,
    bare,
    cloud_of,
    doubt,
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
    """Read the profile of strategy single from the suffix of GPU Feature Discovery, or from a cloud's partition
    size."""
    match = re.search(r"-MIG-(.+?)(?:-SHARED)?$", node.labels.get(PRODUCT, ""))
    if match:
        return None if match[1] == "INVALID" else match[1]
    key = cloud_of(node.labels).get("slice_key")
    return node.labels.get(key) if key and PRODUCT not in node.labels else None


def unnamed_slices(node: RawNode) -> bool:
    """Tell whether every unit is a MIG slice of unknown size: all GPUs have MIG enabled, and no strategy names slices.

    GPU Feature Discovery then writes 0 replicas, and the device plugin registers the plain resource all the same.
    """
    return node.labels.get(REPLICAS) == "0" and node.offers(GPU) > 0


def strategy(node: RawNode) -> str:
    """Read how GPUs are shared: `time-slicing`, `mps`, or an empty string."""
    word = node.labels.get(SHARING)
    for row in facts("clouds.yaml")["sharing_labels"] if word is None else ():
        word = word or row["values"].get(node.labels.get(row["key"], ""))
    return word if word in ("time-slicing", "mps") else ""


def unit_of(resource: str, node: RawNode) -> str:
    """Name what one unit is: share, mps-share, named slice, slice, part (of a vGPU), whole or unknown."""
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
    kind = doubt(node)[0]
    if kind == "shares" and node.offers(GPU) + node.withdrawn(GPU):
        return "share"
    if label_slice(node) or (resource == GPU and unnamed_slices(node)):
        return "slice"
    rows = [product_row(bare(label))] if label else rows_of(node)  # the named one of several models may be the pod's
    if any(row and row.get("part") for row in rows):
        return "part"
    count = positive(node.labels.get("nvidia.com/gpu.count")) or 1
    if kind == "several" and sum(node.in_all(name) for name in (GPU, GPU + SHARED)) % count == 0:
        return "unknown"
    return "whole" if shows_sharing(node) else "unknown"


def shows_sharing(node: RawNode) -> bool:
    """Tell whether the node has any label that would show it if its GPUs were shared."""
    cloud = cloud_of(node.labels)
    telling_keys = {PRODUCT, SHARING, REPLICAS, *(row["key"] for row in facts("clouds.yaml")["sharing_labels"])}
    return "sharing_key" in cloud or any(key in node.labels for key in (*telling_keys, cloud.get("slice_key")))


def vendor(node: RawNode) -> str:
    """Name the vendor of a node's GPUs, by what it offers, or else by who has labelled it; empty if nothing tells."""
    families = facts("families.yaml")["families"]
    for name in sorted(node.allocatable, key=lambda resource: (node.allocatable[resource] == 0, resource)):
        for family in families:
            if name in family["resources"] or name.startswith(tuple(family["prefixes"]) or ("/",)):
                return str(family["name"])
    if node.labels.get(PRODUCT) or node.labels.get("nvidia.com/gpu.count"):
        return "nvidia"
    return str(vendor_row(node.labels).get("family", ""))


def renames(node: RawNode) -> bool:
    """Tell whether shares have resource names of their own (`renameByDefault`), so that plain names are whole GPUs."""
    return any(resource.endswith(SHARED) for resource in node.allocatable)


def replicas(resource: str, node: RawNode) -> int:
    """Read the number of shares of one GPU, or of one slice of a profile; 1 if they are not shared."""
    if resource.startswith(SLICES):
        return positive(node.labels.get(f"{SLICES}{profile_of(resource)}.replicas")) or 1
    kind, gpus = doubt(node)
    if kind == "shares":
        units = sum(node.in_all(name) for name in (GPU, GPU + SHARED))
        return units // gpus if units % gpus == 0 else 1
    return labelled_replicas(node)


def registered(node: RawNode) -> int:
    """Count the GPUs that HAMi has registered, in a JSON list or in entries that end in a colon."""
    if node.hami.startswith("["):
        return len(json.loads(node.hami))
    return node.hami.count(":")


def slice_size(profile: str) -> tuple[int, int]:
    """Read the compute slices and the memory in MiB from a profile's name."""
    compute, memory = re.match(r"(\d+)g\.(\d+)gb", profile).groups()  # type: ignore[union-attr]
    return int(compute), int(memory) * 1024


def profile_of(resource: str) -> str:
    """Read the MIG profile from a resource's name."""
    return resource.removeprefix(SLICES).removesuffix(SHARED)


def unit_memory(resource: str, node: RawNode) -> tuple[int | None, int | None]:
    """Return the MiB of the GPU or slice behind one unit, not divided by shares, and the most that it may have.

    The memory of a slice is nominal if no label tells it.
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
    """Return the lowest memory that the product table, the cloud's label or the instance type states for one GPU."""
    stated = [
        positive(node.labels.get(cloud_of(node.labels).get("memory_key", ""))),
        instance_row(node.labels).get("memory_mib"),
        vendor_memory(node),
    ]
    sizes = [row["memory_mib"] if row else None for row in rows_of(node)]
    figures = [size for size in sizes if size]
    most = max(figures) if figures and len(figures) == len(sizes) else None
    if most is not None and len(set(sizes)) == 1:
        stated.append(most)
    known_sizes = [size for size in stated if size]
    if known_sizes and (most is None or min(known_sizes) <= most):
        return min(known_sizes), None
    return None, most


def vendor_memory(node: RawNode) -> int | None:
    """Read another vendor's memory label: a quantity for one GPU, or bytes for all GPUs together."""
    row = vendor_row(node.labels)
    text = next((node.labels[key] for key in row.get("memory_keys", ()) if key in node.labels), None)
    if text is None:
        return None
    if row["memory_unit"] == "quantity":
        return int(text.removesuffix("G")) * 1024
    units = sum(node.offers(resource) for resource in node.resources() if resource.startswith("gpu.intel.com/"))
    return int(text) // units // 2**20 if units else None


def capability(node: RawNode) -> str | None:
    """Return the compute capability from the labels of GPU Feature Discovery, else from the product."""
    if several_models(node):
        return None
    numbers = [node.labels.get(f"nvidia.com/gpu.compute.{part}") for part in ("major", "minor")]
    if numbers[0] and numbers[1]:
        return ".".join(str(part) for part in numbers)
    value = agreed(node, "compute_capability")
    return None if value is None else str(value)


def driver(node: RawNode) -> str | None:
    """Read the driver's version, in full, in parts, or in the deprecated parts."""
    full = node.labels.get("nvidia.com/cuda.driver-version.full")
    if full:
        return full
    for keys in (NEW_DRIVER, OLD_DRIVER):
        parts = [node.labels.get(key, "") for key in keys]
        if parts[0]:
            return ".".join(part for part in parts if part)
    return None


def reported_cuda(node: RawNode) -> str | None:
    """Return the newest CUDA that the driver reports, by label, else by the driver's branch."""
    for key in ("nvidia.com/cuda.runtime-version", "nvidia.com/cuda.runtime"):
        parts = [node.labels.get(f"{key}.{part}") for part in ("major", "minor")]
        if parts[0] and parts[1]:
            return ".".join(str(part) for part in parts)
    branch = (driver(node) or "").split(".")[0]
    rows = facts("cuda_driver.yaml")["driver_branches"]
    return next((row["max_cuda_reported"] for row in rows if str(row["branch"]) == branch), None)
