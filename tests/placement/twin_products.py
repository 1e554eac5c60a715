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
    return name.lower().replace("_", "-")


@cache
def product_row(name: str) -> dict[str, Any] | None:
    """Return the row of a product by its bare name, or what the grammar of names tells of it, or None."""
    for row in facts("gpu_products.yaml")["products"]:
        if name in {bare(label) for label in (row["product"], *row.get("aliases", ()))}:
            return dict(row)
    return vgpu_row(name.removeprefix("grid-").split("-")) or variant_row(name)


def vgpu_row(words: list[str]) -> dict[str, Any] | None:
    """Read a vGPU type: its board, a digit if MIG backs it, and its GiB with the letter of its series."""
    if not re.fullmatch(r"\d{1,3}[abcq][a-z]*", words[-1]):
        return None
    backed = len(words) > 2 and re.fullmatch(r"\d", words[-2]) is not None
    board_name, gib = "-".join(words[: -2 if backed else -1]), int(re.sub(r"\D", "", words[-1]))
    for board in facts("gpu_products.yaml")["vgpu_boards"]:
        if board["board"].lower() == board_name:
            row = dict(product_row(bare(board["product"])) or {})
            if gib < board["gib"]:
                return row | {"part": True, "memory_mib": gib * 1024 or 512, "nvlink": False}
            compute = re.fullmatch(r"\d+c[a-z]*", words[-1]) and not backed
            return row if compute else row | {"nvlink": False}
    return None


def variant_row(name: str) -> dict[str, Any] | None:
    """Read a variant: the word of a family with tokens before and after it, and what the family's products share."""
    tokens, words = facts("gpu_products.yaml")["name_tokens"], name.split("-")
    rows = facts("gpu_products.yaml")["products"]
    for family in dict.fromkeys(row["family"] for row in rows):
        named = family.lower().split("-")
        for start in range(len(words) - len(named)):
            before, after = words[:start], words[start + len(named) :]
            known = all(re.fullmatch("|".join(tokens["before"]), word) for word in before) and all(
                re.fullmatch("|".join(tokens["after"]), word) for word in after
            )
            if words[start : start + len(named)] == named and known:
                return shared_facts(name, [row for row in rows if row["family"] == family])
    return None


def shared_facts(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what products of one family share; those of the form factor in the name come before the others."""
    words = name.split("-")
    form = "PCIe" if "pcie" in words or "nvl" in words else "SXM" if "-sxm" in name else None
    alike = [row for row in rows if re.sub(r"^SXM\d$", "SXM", row["form_factor"]) == form] or rows
    same = {key: alike[0][key] if all(row[key] == alike[0][key] for row in alike) else None for key in alike[0]
            if all(key in row for row in alike)}  # fmt: skip
    sizes = [int(word.rstrip("gb")) * 1024 for word in words if re.fullmatch(r"\d{1,4}gb?", word)]
    forms = {re.sub(r"^SXM\d$", "SXM", row["form_factor"]) for row in alike}
    same["form_factor"] = form or (forms.pop() if len(forms) == 1 else None)
    joined = {row["nvlink"] is True or "NVL72" in str(row["nvlink"]) for row in alike}
    return same | {
        "family": rows[0]["family"],
        "compute_capability": rows[0]["compute_capability"],
        "memory_mib": sizes[0] if sizes else same["memory_mib"],
        "nvlink": joined.pop() if len(joined) == 1 else None,
        "variant": True,
    }


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
    return row_of_type(labels.get(facts("clouds.yaml")["instance_types"]["key"], ""))


@cache
def row_of_type(instance_type: str) -> dict[str, Any]:
    """Return the row of an instance type; the table has more patterns than the module re keeps compiled (512)."""
    for row in facts("clouds.yaml")["instance_types"]["rows"]:
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
