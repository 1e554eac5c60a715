# SPDX-License-Identifier: Apache-2.0
"""A slow, obvious twin of the class filters: from the fact files and a node's labels straight to yes or no.

It shares no code with app/: it reads the YAML itself, compares versions and tokens in the plainest way, and
follows INTERFACES §10 and cuda_driver.yaml `decision_procedure` line by line. It answers only whether a node
could serve, not why.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FACTS = Path(__file__).parents[2] / "app" / "knowledge"


@cache
def facts(name: str) -> Any:
    """Read a fact file."""
    return yaml.safe_load((FACTS / name).read_text("utf-8"))


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


def numbers(version: str) -> list[int]:
    """Split a version into four numbers, so that lists compare field by field."""
    found = [int(part) for part in version.split(".") if part]
    return [*found, 0, 0, 0, 0][:4]


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


@cache
def image_facts(image: str) -> dict[str, Any]:
    """Read the two kinds of image that the tests use: NGC months and CUDA base images."""
    tables = facts("image_cuda.yaml")
    name, tag = image.rsplit(":", 1)
    if name == "nvcr.io/nvidia/pytorch":
        row = next(each for each in tables["ngc_months"] if each["month"] == tag[:5])
        cuda = ".".join(re.findall(r"\d+", row["cuda"])[:3])
        native = row["min_driver"] if "." in row["min_driver"] else None
        floor = "7.5" if tag[:5] >= "25.03" else None
        listed = row.get("dc_gpu_alt_branches")
    else:
        cuda, native, floor = tag.split("-")[0], None, None
        rows = [
            each
            for each in tables["require_branches"]
            if each["complete"] and numbers(each["cuda"])[:2] == numbers(cuda)[:2]
        ]
        own = native_driver(cuda)[0]
        listed = [str(branch) for branch in (*rows[0]["branches"], own)] if rows else None
    rows = [
        each
        for each in tables["require_branches"]
        if each["complete"] and numbers(each["cuda"])[:2] == numbers(cuda)[:2]
    ]
    claimed = listed or ([str(branch) for branch in rows[0]["branches"]] if rows else [])
    return {"cuda": cuda, "native": native, "floor": floor, "listed": listed, "claimed": claimed}


@cache
def native_driver(cuda: str) -> list[int]:
    """Find the driver that a CUDA version needs; an update (12.4.1) has its own row (12.4 U1)."""
    rows = [
        row for row in facts("cuda_driver.yaml")["toolkits"] if row["min_driver_linux"] and "RC" not in row["toolkit"]
    ]
    wanted = numbers(cuda)
    same = [row for row in rows if numbers(row["cuda"])[:2] == wanted[:2] and update_of(row) <= wanted[2]]
    if same:
        newest = max(update_of(row) for row in same)
        return min(numbers(row["min_driver_linux"]) for row in same if update_of(row) == newest)
    above = [row for row in rows if numbers(row["cuda"])[:2] > wanted[:2]]
    if above:
        nearest = min(numbers(row["cuda"])[:2] for row in above)
        return min(numbers(row["min_driver_linux"]) for row in above if numbers(row["cuda"])[:2] == nearest)
    branches = facts("cuda_driver.yaml")["driver_branches"]
    reporting = [row["branch"] for row in branches if numbers(row["max_cuda_reported"])[:2] >= wanted[:2]]
    return numbers(str(min(reporting) if reporting else max(row["branch"] for row in branches) + 1))


def update_of(row: dict[str, Any]) -> int:
    """Read a toolkit row's update: `12.4 U1` is 1, `11.0.3` is 3, `12.4 GA` is 0."""
    plain = re.match(r"\d+\.\d+\.(\d+)", row["toolkit"])
    update = re.search(r" U(\d+)", row["toolkit"])
    return int(update[1]) if update else int(plain[1]) if plain else 0


def right_driver(wish: Wish, labels: dict[str, str]) -> bool:
    driver = labels.get("nvidia.com/cuda.driver-version.full")
    if driver is None or (wish.cuda is None and wish.image is None):
        return True
    if wish.cuda is not None:
        return driver_serves(wish, wish.cuda, None, None, [], driver, labels)
    image = image_facts(wish.image or "")
    return driver_serves(wish, image["cuda"], image["native"], image["listed"], image["claimed"], driver, labels)


def driver_serves(
    wish: Wish,
    cuda: str,
    native: str | None,
    listed: list[str] | None,
    claimed: list[str],
    driver: str,
    labels: dict[str, str],
) -> bool:
    """Follow decision_procedure 1 to 4."""
    found = numbers(driver)
    if found >= (numbers(native) if native else native_driver(cuda)):
        return True
    if wish.accept == "Native":
        return False
    tables = facts("cuda_driver.yaml")
    in_list = [branch for branch in listed or [] if numbers(branch)[0] == found[0] and found >= numbers(branch)]
    floors = [row["min_driver"] for row in tables["minor_version_compat"] if row["cuda_major"] == numbers(cuda)[0]]
    minor = bool(floors) and found >= numbers(str(floors[0])) and (listed is None or bool(in_list))
    if minor:
        return True
    if wish.accept == "MinorVersion":
        return False
    package = f"cuda-compat-{numbers(cuda)[0]}-{numbers(cuda)[1]}"
    matrices = tables["forward_compat"]
    rows = [*matrices["matrix_current"], *matrices["matrix_older_edition"]]
    supported = {branch for row in rows if row["package"] == package for branch in row["supported_on_branches"]}
    claims = any(numbers(branch)[0] == found[0] and found >= numbers(branch) for branch in claimed)
    consumer = "geforce" in labels.get("nvidia.com/gpu.product", "").lower()
    return not consumer and (found[0] in supported or claims)


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


def toolkit_serves(cuda: str, has: str, floor_only: bool) -> bool:
    """Follow decision_procedure 5; code for X.y runs on X.z with z >= y."""
    tables = facts("cuda_driver.yaml")
    for row in tables["compute_capability_removals"]:
        gone = numbers(cuda) >= numbers(row["removed_in"].removeprefix("CUDA "))
        if gone and any(each in (has, f"{has.split('.')[0]}.x") for each in row["compute_capabilities"]):
            return False
    if floor_only:
        return True
    same_major = [
        row
        for row in tables["compute_capability_first_toolkit"]
        if row["cc"].split(".")[0] == has.split(".")[0] and numbers(row["cc"]) <= numbers(has)
    ]
    return not same_major or any(numbers(row["cuda"]) <= numbers(cuda) for row in same_major)
