# SPDX-License-Identifier: Apache-2.0
"""The twin's CUDA half: cuda_driver.yaml `decision_procedure` line by line, from the raw fact files."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FACTS = Path(__file__).parents[2] / "app" / "knowledge"


@cache
def facts(name: str) -> Any:
    """Read a fact file."""
    return yaml.safe_load((FACTS / name).read_text("utf-8"))


def numbers(version: str) -> list[int]:
    """Split a version into four numbers, so that lists compare field by field."""
    found = [int(part) for part in version.split(".") if part]
    return [*found, 0, 0, 0, 0][:4]


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


def driver_serves(
    accept: str,
    cuda: str,
    native: str | None,
    listed: list[str] | None,
    claimed: list[str],
    driver: str,
    consumer: bool,
) -> bool:
    """Follow decision_procedure 1 to 4."""
    found = numbers(driver)
    if found >= (numbers(native) if native else native_driver(cuda)):
        return True
    if accept == "Native":
        return False
    tables = facts("cuda_driver.yaml")
    in_list = [branch for branch in listed or [] if numbers(branch)[0] == found[0] and found >= numbers(branch)]
    floors = [row["min_driver"] for row in tables["minor_version_compat"] if row["cuda_major"] == numbers(cuda)[0]]
    minor = bool(floors) and found >= numbers(str(floors[0])) and (listed is None or bool(in_list))
    if minor:
        return True
    if accept == "MinorVersion":
        return False
    package = f"cuda-compat-{numbers(cuda)[0]}-{numbers(cuda)[1]}"
    matrices = tables["forward_compat"]
    rows = [*matrices["matrix_current"], *matrices["matrix_older_edition"]]
    supported = {branch for row in rows if row["package"] == package for branch in row["supported_on_branches"]}
    claims = any(numbers(branch)[0] == found[0] and found >= numbers(branch) for branch in claimed)
    return not consumer and (found[0] in supported or claims)


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
