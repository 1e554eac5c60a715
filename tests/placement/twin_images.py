# SPDX-License-Identifier: Apache-2.0
"""What an image needs of CUDA, by image_cuda.yaml: its version, what it requires of a driver, what it carries."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.placement.twin_cuda import facts, numbers


@dataclass(frozen=True)
class Image:
    """The facts of one image. `native`: a driver that its release notes name. `listed`: it starts only on the CUDA of
    its own version, or on what `require_lists` names. `accepted`: branches with their lowest driver, by release notes.
    `wish`: nothing of it is enforced."""

    cuda: str
    native: str | None = None
    floor: str | None = None
    listed: bool = False
    compat: bool = False
    accepted: tuple[str, ...] = ()
    wish: bool = False


@cache
def image_facts(reference: str) -> Image | None:
    """Find an image's family and read its tag; None where nothing tells its CUDA."""
    name, _, tag = reference.removeprefix("index.").removeprefix("docker.io/").rpartition(":")
    for family in facts("image_cuda.yaml")["image_families"]:
        found = re.search(family["tag_regex"], tag) if any(same(each, name) for each in family["images"]) else None
        if found:
            return of_family(family, found)
    return by_pattern(name, tag)


def same(pattern: str, name: str) -> bool:
    """Tell whether a name is the pattern's; a star stands for the rest."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def of_family(family: dict[str, Any], found: re.Match[str]) -> Image | None:
    """Read a tag as its family writes tags."""
    kind = family["cuda"]
    row: dict[str, Any] = {}
    if kind == "month":
        months = facts("image_cuda.yaml")[family.get("months", "ngc_months")]
        row = next((each for each in months if each["month"] == found["month"]), {})
        cuda = ".".join(re.findall(r"\d+", row["cuda"])[:3]) if row else None
    elif kind == "table":
        below = [each for each in family["versions"] if numbers(each["since"]) <= numbers(found["ver"])]
        row = below[-1] if below else {}
        cuda = row.get("cuda")
    else:
        cuda = written(found) if kind == "tag" else None
    if cuda is None:
        return None
    native = str(row["min_driver"]) if "." in str(row.get("min_driver", "")) else None
    return Image(
        cuda=str(cuda),
        native=native,
        floor=floor_of(found["month"]) if kind == "month" else None,
        listed=family.get("requires") == "list",
        compat=bool(family.get("carries_compat")),
        accepted=tuple(str(each) for each in row.get("dc_gpu_alt_branches", ())),
        wish=bool(family.get("unsourced") or row.get("unsourced")),
    )


def written(found: re.Match[str]) -> str:
    """Read CUDA as a tag writes it: 12.4.1, or cu124; a bare 12 is 12.0."""
    groups = found.groupdict()
    if groups.get("cu"):
        digits = groups["cu"].removeprefix("cu")
        return f"{digits[:-1]}.{digits[-1]}"
    return groups["cuda"] if "." in groups["cuda"] else f"{groups['cuda']}.0"


def floor_of(month: str) -> str | None:
    """Find the compute capability below which a month's images have no code."""
    rows = [row for row in facts("image_cuda.yaml")["compute_floors"] if str(row["since_month"]) <= month]
    return str(rows[-1]["compute_capability"]) if rows else None


def by_pattern(name: str, tag: str) -> Image | None:
    """Look for CUDA in the tag of any other image, then in the last part of its name: a wish."""
    for text in (tag, name.rpartition("/")[2]):
        for row in facts("image_cuda.yaml")["tag_patterns"]:
            if found := re.search(row["tag_regex"], text):
                return Image(written(found), wish=True)
    return None


def list_of(cuda: str) -> dict[str, Any] | None:
    """Find what nvidia/cuda images of a version name besides their own CUDA."""
    rows = facts("image_cuda.yaml")["require_lists"]
    return next((dict(row) for row in rows if numbers(row["cuda"])[:2] == numbers(cuda)[:2]), None)


def starts(image: Image, branch: int, reported: str | None, consumer: bool) -> bool:
    """Tell whether the container toolkit starts an image on a driver of a branch that reports a CUDA."""
    row = list_of(image.cuda) if image.listed else None
    if row is None or reported is None or numbers(reported)[:2] >= numbers(image.cuda)[:2]:
        return True
    if row.get("any_driver_from") is not None and row["any_driver_from"] <= branch:
        return True
    sets = facts("image_cuda.yaml")["brand_sets"]
    served = [each for each in row["named"] if not consumer or "geforce" in sets[each["brands"]]]
    return any(branch in each["branches"] for each in served)


def carried(image: Image, driver: str) -> bool:
    """Tell whether the image's compat package works on a driver: by NVIDIA's matrix, its notes, or its own list."""
    tables = facts("cuda_driver.yaml")["forward_compat"]
    found, wanted = numbers(driver), numbers(image.cuda)
    package = f"cuda-compat-{wanted[0]}-{wanted[1]}"
    matrix = [row for key in ("matrix_current", "matrix_older_edition") for row in tables[key]]
    branches = {branch for row in matrix if row["package"] == package for branch in row["supported_on_branches"]}
    row = list_of(image.cuda) if image.listed else None
    branches |= {branch for each in (row or {"named": ()})["named"] for branch in each["branches"]}
    noted = any(numbers(each)[0] == found[0] and found >= numbers(each) for each in image.accepted)
    return image.compat and (found[0] in branches or noted)
