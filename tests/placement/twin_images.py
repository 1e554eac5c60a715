# SPDX-License-Identifier: Apache-2.0
"""What an image needs of CUDA by image_cuda.yaml: its version, its driver requirement, and its compat package."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.placement.twin_cuda import facts, numbers


@dataclass(frozen=True)
class Image:
    """The facts of one image. `native` is a driver that its release notes name. `listed` means that it starts only on
    the CUDA of its own version, or on the drivers that `require_lists` names. `accepted` is the lowest driver of each
    branch that the release notes accept. `wish` means that none of it is enforced."""

    cuda: str
    native: str | None = None
    floor: str | None = None
    listed: bool = False
    compat: bool = False
    forces: bool = False
    accepted: tuple[str, ...] = ()
    wish: bool = False


@cache
def image_facts(reference: str) -> Image | None:
    """Find an image's family and read its tag; None if nothing tells its CUDA."""
    name, _, tag = reference.removeprefix("index.").removeprefix("docker.io/").rpartition(":")
    for family in facts("image_cuda.yaml")["image_families"]:
        match = (
            re.search(family["tag_regex"], tag)
            if any(matches_name(pattern, name) for pattern in family["images"])
            else None
        )
        if match:
            return of_family(family, match)
    return by_pattern(name, tag)


def built_for(reference: str) -> str | None:
    """Return the CPU architecture for which alone a publisher builds an image of this tag; None where none says so."""
    name, _, tag = reference.removeprefix("index.").removeprefix("docker.io/").rpartition(":")
    for row in facts("image_cuda.yaml")["image_platforms"]:
        if any(matches_name(pattern, name) for pattern in row.get("images", ())) and re.search(row["tag_regex"], tag):
            return str(row["architecture"])
    platforms = (build_of(reference) or {}).get("platforms", [])
    return str(platforms[0]) if len(platforms) == 1 else None


@cache
def build_of(reference: str) -> dict[str, Any] | None:
    """Find the row of image_code.yaml for an image, which a source must have; None where there is none."""
    name, _, tag = reference.removeprefix("index.").removeprefix("docker.io/").rpartition(":")
    for family in facts("image_code.yaml")["frameworks"]:
        match = re.fullmatch(family["tag_regex"], tag) if name in family["images"] else None
        if match is None:
            continue
        release, groups = numbers(match["ver"]), match.groupdict()
        said = groups.get("cuda") or ".".join(re.findall(r"\d\d|\d", (groups.get("cu") or "")[2:]))
        for row in family["builds"]:
            length = row["until"].count(".") + 1
            within = numbers(row["since"]) <= release and release[:length] <= numbers(row["until"])[:length]
            if within and (not said or not row.get("cuda") or numbers(said)[:2] == numbers(row["cuda"])[:2]):
                return None if row.get("unsourced") else dict(row)
    return None


def has_code(reference: str, capability: str, architecture: str | None) -> bool:
    """Tell whether an image has machine code or PTX for a GPU, or nothing is known of it."""
    code = (build_of(reference) or {}).get("code", {})
    lists = code.values() if architecture is None else [code[architecture]] if architecture in code else []
    has = [int(part) for part in capability.split(".")]
    for written in (one for targets in lists for one in targets):
        major, minor = (int(part) for part in re.findall(r"\d+", written)[:2])
        exact, ptx = re.search(r"\da", written), "PTX" in written or "virtual" in written
        if [major, minor] == has or (not exact and [major, minor] < has and (ptx or major == has[0])):
            return True
    return not lists


def matches_name(pattern: str, name: str) -> bool:
    """Tell whether a name matches a pattern, which may end in a star."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def of_family(family: dict[str, Any], match: re.Match[str]) -> Image | None:
    """Read a tag by the grammar of its family."""
    kind = family["cuda"]
    row: dict[str, Any] = {}
    if kind == "month":
        months = facts("image_cuda.yaml")[family.get("months", "ngc_months")]
        row = next((month for month in months if month["month"] == match["month"]), {})
        cuda = ".".join(re.findall(r"\d+", row["cuda"])[:3]) if row else None
    elif kind == "table":
        below = [version for version in family["versions"] if numbers(version["since"]) <= numbers(match["ver"])]
        row = below[-1] if below else {}
        cuda = row.get("cuda")
    else:
        cuda = written(match) if kind == "tag" else None
    if cuda is None:
        return None
    native = str(row["min_driver"]) if "." in str(row.get("min_driver", "")) else None
    return Image(
        cuda=str(cuda),
        native=native,
        floor=floor_of(match["month"]) if kind == "month" else None,
        listed=family.get("requires") == "list",
        compat=bool(family.get("carries_compat")),
        forces=numbers(match["ver"]) < numbers(opt_in["since"]) if (opt_in := family.get("compat_opt_in")) else False,
        accepted=tuple(str(branch) for branch in row.get("dc_gpu_alt_branches", ())),
        wish=bool(family.get("unsourced") or row.get("unsourced")),
    )


def written(match: re.Match[str]) -> str:
    """Read CUDA from a tag, as 12.4.1 or cu124; a bare 12 is 12.0."""
    groups = match.groupdict()
    if groups.get("cu"):
        digits = groups["cu"].removeprefix("cu")
        return f"{digits[:-1]}.{digits[-1]}"
    return groups["cuda"] if "." in groups["cuda"] else f"{groups['cuda']}.0"


def floor_of(month: str) -> str | None:
    """Return the compute capability below which images of a month have no machine code."""
    rows = [row for row in facts("image_cuda.yaml")["compute_floors"] if str(row["since_month"]) <= month]
    return str(rows[-1]["compute_capability"]) if rows else None


def by_pattern(name: str, tag: str) -> Image | None:
    """Look for CUDA in the tag of an unknown image, then in the last part of its name. The result is only a
    preference."""
    for text in (tag, name.rpartition("/")[2]):
        for row in facts("image_cuda.yaml")["tag_patterns"]:
            if match := re.search(row["tag_regex"], text):
                return Image(written(match), wish=True)
    return None


def list_of(cuda: str) -> dict[str, Any] | None:
    """Return the row of drivers that nvidia/cuda images of a version accept besides those with its own CUDA."""
    rows = facts("image_cuda.yaml")["require_lists"]
    return next((dict(row) for row in rows if numbers(row["cuda"])[:2] == numbers(cuda)[:2]), None)


def starts(image: Image, branch: int, reported: str | None, consumer: bool) -> bool:
    """Tell whether the container toolkit starts an image on a driver of this branch that reports this CUDA."""
    row = list_of(image.cuda) if image.listed else None
    if row is None or reported is None or numbers(reported)[:2] >= numbers(image.cuda)[:2]:
        return True
    if row.get("any_driver_from") is not None and row["any_driver_from"] <= branch:
        return True
    sets = facts("image_cuda.yaml")["brand_sets"]
    served = [terms for terms in row["named"] if not consumer or "geforce" in sets[terms["brands"]]]
    return any(branch in terms["branches"] for terms in served)


def carried(image: Image, driver: str) -> bool:
    """Tell whether the image's compat package works on a driver, by NVIDIA's matrix, its release notes, or its own
    list."""
    tables = facts("cuda_driver.yaml")["forward_compat"]
    installed, cuda = numbers(driver), numbers(image.cuda)
    package = f"cuda-compat-{cuda[0]}-{cuda[1]}"
    matrix = [row for key in ("matrix_current", "matrix_older_edition") for row in tables[key]]
    branches = {branch for row in matrix if row["package"] == package for branch in row["supported_on_branches"]}
    row = list_of(image.cuda) if image.listed else None
    branches |= {branch for terms in (row or {"named": ()})["named"] for branch in terms["branches"]}
    noted = any(numbers(oldest)[0] == installed[0] and installed >= numbers(oldest) for oldest in image.accepted)
    return image.compat and (installed[0] in branches or noted)
