# SPDX-License-Identifier: Apache-2.0
"""A slow, obvious twin of the class filters: from the fact files and a node's labels straight to yes or no.

It shares no code with app/: it reads the YAML itself, compares versions and tokens in the plainest way, and
follows INTERFACES §10 and cuda_driver.yaml `decision_procedure` line by line. It answers only whether a node
could serve, not why.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.placement.twin_cuda import driver_serves, facts, image_facts, numbers, toolkit_serves


@dataclass(frozen=True)
class Wish:
    """What a pod asks, as its author wrote it. `accept`: the policy's cuda.accept."""

    resource: str = "nvidia.com/gpu"
    amount: int = 1
    products: str | None = None
    cuda: str | None = None
    image: str | None = None
    capability: str | None = None
    memory: str | None = None
    sharing: str = "Any"
    mig_profile: str | None = None
    nvlink: bool = False
    accept: str = "MinorVersion"


def could_serve(wish: Wish, labels: dict[str, str], offers: dict[str, int]) -> bool:
    """Tell whether a node with these labels and allocatable could ever serve the wish."""
    return all(
        (
            enough_in_all(wish, offers),
            settled(labels),
            right_product(wish, labels),
            right_sharing(wish, labels, offers),
            right_slice(wish, labels),
            right_driver(wish, labels),
            right_capability(wish, labels),
            right_memory(wish, labels),
            right_interconnect(wish, labels),
        )
    )


def enough_in_all(wish: Wish, offers: dict[str, int]) -> bool:
    return offers.get(wish.resource, 0) >= wish.amount


def settled(labels: dict[str, str]) -> bool:
    if labels.get("nvidia.com/gpu.product", "").endswith("-MIG-INVALID"):
        return False
    if labels.get("nvidia.com/mig.config.state", "success") != "success":
        return False
    ok = ("", "upgrade-done", "upgrade-required", "tomorrow")
    return labels.get("nvidia.com/gpu-driver-upgrade-state", "") in ok


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
    for row in facts("gpu_products.yaml")["products"]:
        if bare(row["product"]) == name:
            return dict(row)
    return None


def named(word: str, product: str) -> bool:
    """Tell whether a word of a product list means a product: vendor name exactly, else family, else tokens."""
    if word.startswith(("NVIDIA-", "Tesla-")):
        return bare(word) == product
    row = product_row(product)
    families = {each["family"].lower() for each in facts("gpu_products.yaml")["products"]}
    if word.lower() in families:
        return row is not None and row["family"].lower() == word.lower()
    tokens, wanted = product.split("-"), word.lower().split("-")
    return any(tokens[at : at + len(wanted)] == wanted for at in range(len(tokens)))


def right_product(wish: Wish, labels: dict[str, str]) -> bool:
    if wish.products is None:
        return True
    label = labels.get("nvidia.com/gpu.product")
    if label is None:
        return False
    words = [word.strip() for word in wish.products.split(",")]
    allowed = [word for word in words if not word.startswith("!")]
    denied = [word[1:] for word in words if word.startswith("!")]
    product = bare(label)
    if any(named(word, product) for word in denied):
        return False
    return not allowed or any(named(word, product) for word in allowed)


def unit_of(wish: Wish, labels: dict[str, str]) -> str:
    """Say what one unit is: slice-by-name, share, mps-share, slice or whole."""
    if wish.resource.startswith("nvidia.com/mig-"):
        return "slice-by-name"
    label = labels.get("nvidia.com/gpu.product", "")
    strategy = labels.get("nvidia.com/gpu.sharing-strategy", "")
    if strategy == "mps":
        return "mps-share"
    if strategy == "time-slicing" or label.endswith("-SHARED"):
        return "share"
    return "slice" if "-MIG-" in label else "whole"


def right_sharing(wish: Wish, labels: dict[str, str], offers: dict[str, int]) -> bool:
    unit = unit_of(wish, labels)
    if unit == "mps-share" and wish.amount > 1:
        return False
    if wish.sharing == "Exclusive":
        return unit in ("whole", "slice-by-name")
    if wish.sharing == "Shared":
        return unit in ("share", "mps-share")
    return bool(offers)


def slice_size(profile: str) -> tuple[int, int]:
    compute, memory = re.match(r"(\d)g\.(\d+)gb", profile).groups()  # type: ignore[union-attr]
    return int(compute), int(memory) * 1024


def label_slice(labels: dict[str, str]) -> str | None:
    found = re.search(r"-MIG-(.+?)(?:-SHARED)?$", labels.get("nvidia.com/gpu.product", ""))
    return found[1] if found and found[1] != "INVALID" else None


def right_slice(wish: Wish, labels: dict[str, str]) -> bool:
    if wish.mig_profile is None or wish.resource.startswith("nvidia.com/mig-"):
        return True
    has = label_slice(labels)
    if not wish.mig_profile.startswith(">="):
        return has == wish.mig_profile
    wanted = slice_size(wish.mig_profile[2:])
    if has:
        size = slice_size(has)
        return size[0] >= wanted[0] and size[1] >= wanted[1]
    if wish.sharing == "Shared" or unit_of(wish, labels) != "whole":
        return False
    memory = gpu_memory(labels)
    return memory is None or memory >= 0.93 * wanted[1]


def gpu_memory(labels: dict[str, str]) -> int | None:
    if "nvidia.com/gpu.memory" in labels:
        return int(labels["nvidia.com/gpu.memory"])
    if "nvidia.com/gpu.product" not in labels:
        return None
    if has := label_slice(labels):
        return slice_size(has)[1]
    row = product_row(bare(labels["nvidia.com/gpu.product"]))
    return row["memory_mib"] if row else None


def right_memory(wish: Wish, labels: dict[str, str]) -> bool:
    if wish.memory is None:
        return True
    wanted = 0.93 * int(re.match(r"\d+", wish.memory)[0]) * 1024  # type: ignore[index]
    if wish.resource.startswith("nvidia.com/mig-"):
        return bool(slice_size(wish.resource.removeprefix("nvidia.com/mig-"))[1] >= wanted)
    memory = gpu_memory(labels)
    if memory is None:
        return True
    shares = int(labels.get("nvidia.com/gpu.replicas", "1")) if unit_of(wish, labels) == "mps-share" else 1
    return bool(memory / max(1, shares) >= wanted)


def right_interconnect(wish: Wish, labels: dict[str, str]) -> bool:
    row = product_row(bare(labels.get("nvidia.com/gpu.product", "?")))
    if not wish.nvlink or row is None:
        return True
    if label_slice(labels) or wish.resource.startswith("nvidia.com/mig-"):
        return False
    return row["nvlink"] is True or "NVL72" in str(row["nvlink"])


def capability(labels: dict[str, str]) -> str | None:
    if "nvidia.com/gpu.product" not in labels:
        return None
    row = product_row(bare(labels["nvidia.com/gpu.product"]))
    return row["compute_capability"] if row else None


def right_driver(wish: Wish, labels: dict[str, str]) -> bool:
    driver = labels.get("nvidia.com/cuda.driver-version.full")
    if driver is None or (wish.cuda is None and wish.image is None):
        return True
    consumer = "geforce" in labels.get("nvidia.com/gpu.product", "").lower()
    if wish.cuda is not None:
        return driver_serves(wish.accept, wish.cuda, None, None, [], driver, consumer)
    image = image_facts(wish.image or "")
    return driver_serves(
        wish.accept, image["cuda"], image["native"], image["listed"], image["claimed"], driver, consumer
    )


def right_capability(wish: Wish, labels: dict[str, str]) -> bool:
    has = capability(labels)
    if has is None:
        return True
    floors = [wish.capability]
    if wish.cuda is None and wish.image is not None:
        floors.append(image_facts(wish.image)["floor"])
    if any(floor is not None and numbers(has) < numbers(floor) for floor in floors):
        return False
    cuda = wish.cuda or (image_facts(wish.image)["cuda"] if wish.image else None)
    return cuda is None or toolkit_serves(cuda, has, floor_only=wish.cuda is not None)
