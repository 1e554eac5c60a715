# SPDX-License-Identifier: Apache-2.0
"""What the twin reads off a raw node: product, slice, memory, driver, capability, what one unit of a resource is.

From gfd_labels.yaml, gpu_products.yaml and clouds.yaml directly, in the plainest way.
"""

import re
from functools import cache
from typing import Any

from tests.placement.twin_cuda import facts
from tests.placement.twin_world import SHARED, SLICES, RawNode

NEW_DRIVER = tuple(f"nvidia.com/cuda.driver-version.{part}" for part in ("major", "minor", "revision"))
OLD_DRIVER = tuple(f"nvidia.com/cuda.driver.{part}" for part in ("major", "minor", "rev"))


def bare(label: str) -> str:
    """Drop the vendor in front and the sharing and MIG words behind."""
    name = re.sub(r"-SHARED$", "", label)
    name = re.sub(r"-MIG-.*$", "", name)
    for vendor in ("NVIDIA-", "Tesla-"):
        if name.startswith(vendor):
            name = name[len(vendor) :]
    return name.lower()


@cache
def product_row(name: str) -> dict[str, Any] | None:
    """Find a product by its bare name."""
    for row in facts("gpu_products.yaml")["products"]:
        if name in {bare(each) for each in (row["product"], *row.get("aliases", ()))}:
            return dict(row)
    return None


def cloud_of(labels: dict[str, str]) -> dict[str, Any]:
    """Find the dialect whose product label the node carries."""
    return next((dict(each) for each in facts("clouds.yaml")["dialects"] if each["key"] in labels), {})


def product_label(node: RawNode) -> str | None:
    """Read the product: GPU Feature Discovery's word, else the one product that a cloud's word means."""
    if "nvidia.com/gpu.product" in node.labels:
        return node.labels["nvidia.com/gpu.product"]
    cloud = cloud_of(node.labels)
    meant = cloud["values"].get(node.labels[cloud["key"]]) if cloud else None
    if isinstance(meant, dict):
        memory = positive(node.labels.get(cloud["memory_key"]))
        meant = meant.get(memory)
    return meant if isinstance(meant, str) else None


def products(node: RawNode) -> list[str]:
    """List the products, bare, of which the node has one: a cloud's word may mean several; none if nothing is known."""
    label = product_label(node)
    if label is not None:
        return [bare(label)]
    cloud = cloud_of(node.labels)
    meant = cloud["values"].get(node.labels[cloud["key"]], []) if cloud else []
    return [bare(each) for each in (meant.values() if isinstance(meant, dict) else meant)]


def positive(text: str | None) -> int | None:
    """Read a positive whole number; what is none counts as not said."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and int(text) > 0 else None


def row_of(node: RawNode) -> dict[str, Any] | None:
    """Find the node's product among the facts."""
    label = product_label(node)
    return None if label is None else product_row(bare(label))


def label_slice(node: RawNode) -> str | None:
    """Read the profile of strategy single: GFD's suffix, or a cloud's partition size."""
    found = re.search(r"-MIG-(.+?)(?:-SHARED)?$", node.labels.get("nvidia.com/gpu.product", ""))
    if found:
        return None if found[1] == "INVALID" else found[1]
    key = cloud_of(node.labels).get("slice_key")
    return node.labels.get(key) if key and "nvidia.com/gpu.product" not in node.labels else None


def strategy(node: RawNode) -> str:
    """Read how GPUs are shared: time-slicing, mps or nothing."""
    said = node.labels.get("nvidia.com/gpu.sharing-strategy")
    for row in facts("clouds.yaml")["sharing_labels"] if said is None else ():
        said = said or row["values"].get(node.labels.get(row["key"], ""))
    return said if said in ("time-slicing", "mps") else ""


def unit_of(resource: str, node: RawNode) -> str:
    """Say what one unit is: share, mps-share, named slice, slice or whole."""
    if resource.endswith(SHARED):
        return "mps-share" if strategy(node) == "mps" and not resource.startswith(SLICES) else "share"
    if resource.startswith(SLICES):
        shared = node.labels.get(f"{resource}.sharing-strategy") == "time-slicing" and not renames(node)
        return "share" if shared else "named slice"
    label = node.labels.get("nvidia.com/gpu.product", "")
    if label.endswith("-SHARED") or (strategy(node) and not renames(node)):
        return "mps-share" if strategy(node) == "mps" else "share"
    return "slice" if label_slice(node) else "whole"


def renames(node: RawNode) -> bool:
    """Tell whether shares have names of their own (`renameByDefault`), so that plain names are whole ones."""
    return any(resource.endswith(SHARED) for resource in node.allocatable)


def replicas(resource: str, node: RawNode) -> int:
    """Read the shares of one GPU, or of one slice of a profile: 1 where they are not shared."""
    if resource.startswith(SLICES):
        return positive(node.labels.get(f"{SLICES}{profile_of(resource)}.replicas")) or 1
    keys = ("nvidia.com/gpu.replicas", "cloud.google.com/gke-max-shared-clients-per-gpu")
    return next((found for key in keys if (found := positive(node.labels.get(key)))), 1)


def slice_size(profile: str) -> tuple[int, int]:
    """Read (compute slices, memory in MiB) off a profile's name."""
    compute, memory = re.match(r"(\d+)g\.(\d+)gb", profile).groups()  # type: ignore[union-attr]
    return int(compute), int(memory) * 1024


def profile_of(resource: str) -> str:
    """Read the profile in a resource's name."""
    return resource.removeprefix(SLICES).removesuffix(SHARED)


def unit_memory(resource: str, node: RawNode) -> int | None:
    """Find the MiB of the GPU or slice behind one unit, not divided by shares.

    A slice's is nominal where no label tells.
    """
    if resource.startswith(SLICES):
        profile = profile_of(resource)
        return positive(node.labels.get(f"{SLICES}{profile}.memory")) or slice_size(profile)[1]
    if said := positive(node.labels.get("nvidia.com/gpu.memory")):
        return said
    if has := label_slice(node):
        return slice_size(has)[1]
    row = row_of(node)
    if row is not None and row["memory_mib"] is not None:
        return int(row["memory_mib"])
    return positive(node.labels.get(cloud_of(node.labels).get("memory_key", "")))


def capability(node: RawNode) -> str | None:
    """Find the compute capability: GFD's labels, else the product's."""
    said = [node.labels.get(f"nvidia.com/gpu.compute.{part}") for part in ("major", "minor")]
    if said[0] and said[1]:
        return ".".join(str(each) for each in said)
    rows = [product_row(each) for each in products(node)]
    found = {str(row["compute_capability"]) if row else None for row in rows}
    return found.pop() if len(found) == 1 else None


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
