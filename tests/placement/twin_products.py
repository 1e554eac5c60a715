# SPDX-License-Identifier: Apache-2.0
"""Which GPU products a raw node may have, by GPU Feature Discovery, cloud label, instance type or vendor.

It reads gpu_products.yaml and clouds.yaml in the simplest way.
"""

import re
from functools import cache
from typing import Any

from tests.placement.twin_cuda import facts
from tests.placement.twin_evidence import count_doubt
from tests.placement.twin_world import RawNode

PRODUCT = "nvidia.com/gpu.product"


def bare(label: str) -> str:
    """Drop the vendor prefix and the sharing and MIG suffixes of a product label."""
    name = re.sub(r"-SHARED$", "", label)
    name = re.sub(r"-MIG-.*$", "", name)
    for vendor in ("NVIDIA-", "Tesla-"):
        if name.startswith(vendor):
            name = name[len(vendor) :]
    return name.lower()


@cache
def product_row(name: str) -> dict[str, Any] | None:
    """Return the row of a product by its bare name, or None."""
    for row in facts("gpu_products.yaml")["products"]:
        if name in {bare(label) for label in (row["product"], *row.get("aliases", ()))}:
            return dict(row)
    return None


def positive(text: str | None) -> int | None:
    """Read a positive integer; any other text counts as absent."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and int(text) > 0 else None


def word_of(dialect: dict[str, Any], labels: dict[str, str]) -> str | None:
    """Read a cloud's product label: the first of the dialect's keys that the node carries."""
    return next((labels[key] for key in (dialect["key"], *dialect.get("other_keys", ())) if key in labels), None)


def cloud_of(labels: dict[str, str]) -> dict[str, Any]:
    """Return the dialect whose product label the node carries."""
    spoken = (dialect for dialect in facts("clouds.yaml")["dialects"] if word_of(dialect, labels) is not None)
    return dict(next(spoken, {}))


def by_cloud(labels: dict[str, str]) -> list[str]:
    """List the products that the first dialect with a known value means by it."""
    for dialect in facts("clouds.yaml")["dialects"]:
        meant = dialect["values"].get(word_of(dialect, labels))
        if isinstance(meant, dict):
            memory = positive(labels.get(dialect["memory_key"]))
            meant = [meant[memory]] if memory in meant else list(meant.values())
        if meant:
            return [meant] if isinstance(meant, str) else list(meant)
    return []


def instance_row(labels: dict[str, str]) -> dict[str, Any]:
    """Return the first row of instance types that matches the node's."""
    table = facts("clouds.yaml")["instance_types"]
    instance_type = labels.get(table["key"], "")
    for row in table["rows"]:
        for pattern in row["types"]:
            if re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), instance_type):
                return dict(row)
    return {}


def vendor_row(labels: dict[str, str]) -> dict[str, Any]:
    """Return the vendor row whose labeller has named the product."""
    rows = facts("clouds.yaml")["vendor_labels"]
    return dict(next((row for row in rows if any(key in labels for key in row["product_keys"])), {}))


def by_vendor(labels: dict[str, str]) -> list[str]:
    """Read the product that another vendor's labeller writes, with dashes for underscores."""
    keys = vendor_row(labels).get("product_keys", ())
    return [labels[key].replace("_", "-") for key in keys if key in labels][:1]


def products(node: RawNode) -> list[str]:
    """List the bare names of the products of which the node has one; none if unknown, or if it has several models."""
    if several_models(node):
        return []
    if PRODUCT in node.labels:
        return [bare(node.labels[PRODUCT])]
    cloud, instance = by_cloud(node.labels), instance_row(node.labels).get("products", [])
    both = [product for product in cloud if product in instance]
    return [bare(product) for product in both or cloud or instance or by_vendor(node.labels)]


def several_models(node: RawNode) -> bool:
    """Tell whether the node may have more GPUs than those of the model that its labels name.

    GPU Feature Discovery writes the count and product of one model, whichever it met last (k8s-device-plugin
    internal/lm/resource.go); the device plugin registers all GPUs.
    """
    return doubt(node)[0] == "several"


def doubt(node: RawNode) -> tuple[str, int]:
    """Say what more units than labelled GPUs mean, with what the machine is known to have."""
    cloud, machine = by_cloud(node.labels), instance_row(node.labels).get("products", [])
    both = [product for product in cloud if product in machine]
    return count_doubt(node, [bare(product) for product in both or cloud or machine or by_vendor(node.labels)])


def rows_of(node: RawNode) -> list[dict[str, Any] | None]:
    """List the table rows of all products that the node may have, with None for a product that the table lacks."""
    return [product_row(product) for product in products(node)]


def agreed(node: RawNode, field: str) -> Any:
    """Return a fact on which all products that the node may have agree; None if they differ or one is not known."""
    values = [row[field] if row else None for row in rows_of(node)]
    return values[0] if values and all(value == values[0] for value in values) else None
