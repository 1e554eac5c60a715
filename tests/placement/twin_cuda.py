# SPDX-License-Identifier: Apache-2.0
"""The twin's CUDA rules: cuda_driver.yaml `decision_procedure` line by line, from the raw fact files."""

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
    fields = [int(part) for part in version.split(".") if part]
    return [*fields, 0, 0, 0, 0][:4]


@cache
def native_driver(cuda: str) -> list[int]:
    """Return the driver that a CUDA version needs; an update (12.4.1) has a row of its own (12.4 U1)."""
    rows = [
        row for row in facts("cuda_driver.yaml")["toolkits"] if row["min_driver_linux"] and "RC" not in row["toolkit"]
    ]
    version = numbers(cuda)
    same = [row for row in rows if numbers(row["cuda"])[:2] == version[:2] and update_of(row) <= version[2]]
    if same:
        newest = max(update_of(row) for row in same)
        return min(numbers(row["min_driver_linux"]) for row in same if update_of(row) == newest)
    above = [row for row in rows if numbers(row["cuda"])[:2] > version[:2]]
    if above:
        nearest = min(numbers(row["cuda"])[:2] for row in above)
        return min(numbers(row["min_driver_linux"]) for row in above if numbers(row["cuda"])[:2] == nearest)
    branches = facts("cuda_driver.yaml")["driver_branches"]
    reporting = [row["branch"] for row in branches if numbers(row["max_cuda_reported"])[:2] >= version[:2]]
    return numbers(str(min(reporting) if reporting else max(row["branch"] for row in branches) + 1))


def update_of(row: dict[str, Any]) -> int:
    """Read a toolkit row's update: `12.4 U1` is 1, `11.0.3` is 3, `12.4 GA` is 0."""
    plain = re.match(r"\d+\.\d+\.(\d+)", row["toolkit"])
    update = re.search(r" U(\d+)", row["toolkit"])
    return int(update[1]) if update else int(plain[1]) if plain else 0


def minor_floor(cuda: str) -> list[int] | None:
    """Return the oldest driver on which any CUDA of the same major runs by minor-version compatibility."""
    rows = facts("cuda_driver.yaml")["minor_version_compat"]
    return next((numbers(str(row["min_driver"])) for row in rows if row["cuda_major"] == numbers(cuda)[0]), None)


def above_minor_floor(cuda: str, driver: str) -> bool:
    """Tell whether a driver is recent enough for minor-version compatibility."""
    floor = minor_floor(cuda)
    return floor is not None and numbers(driver) >= floor


def toolkit_serves(cuda: str, has: str) -> bool:
    """Tell whether a toolkit still supports a compute capability; a GPU newer than the toolkit may run PTX."""
    for row in facts("cuda_driver.yaml")["compute_capability_removals"]:
        gone = numbers(cuda) >= numbers(row["removed_in"].removeprefix("CUDA "))
        if gone and any(removed in (has, f"{has.split('.')[0]}.x") for removed in row["compute_capabilities"]):
            return False
    return True
