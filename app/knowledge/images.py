# SPDX-License-Identifier: Apache-2.0
"""Images: which CUDA a container image was built with, read off its name and tag. Images are never fetched."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

from app.knowledge.cuda_compatibility import CUDATables, DriverList
from app.values.versions import Version, parse_version, release, show_version

_DEFAULT_REGISTRIES = ("docker.io/", "index.docker.io/")
LONGEST_IMAGE = 4096
"""Characters looked at; Kubernetes sets no limit, and no registry accepts a longer reference (a guess)."""


Branches = tuple[tuple[int, Version], ...]
"""(driver branch, lowest driver of it) pairs."""


@dataclass(frozen=True, slots=True)
class ImageCUDA:
    """What an image's name and tag tell.

    `required`: a sourced row of image_cuda.yaml says so, which filters enforce; else the CUDA is a preference.
    `native`: the driver that release notes name for this very image; None: the toolkit table says it.
    `requires`: the NVIDIA_REQUIRE_CUDA of the image's environment; None: it refuses no driver, or is not known.
    `carries_compat`: the image holds the cuda-compat package of its CUDA.
    `forward`: driver branches that the image's own publisher names for its cuda-compat, besides NVIDIA's matrix.
    `capability_floor`: GPUs below it were dropped from the image; None: the toolkit's own floor holds.
    """

    cuda: Version
    required: bool
    evidence: str
    native: Version | None = None
    requires: DriverList | None = None
    carries_compat: bool = False
    forward: Branches = ()
    capability_floor: Version | None = None


@dataclass(frozen=True, slots=True)
class _Version:
    """CUDA of the releases from one on; None where it is not known."""

    since: Version
    cuda: Version | None
    unsourced: bool


@dataclass(frozen=True, slots=True)
class _Month:
    cuda: Version
    native: Version | None
    forward: Branches
    unsourced: bool


@dataclass(frozen=True, slots=True)
class _Family:
    names: re.Pattern[str]
    tag: re.Pattern[str]
    kind: str
    months: Mapping[str, _Month]
    versions: tuple[_Version, ...]
    requires_list: bool
    carries_compat: bool
    unsourced: bool


@dataclass(frozen=True, slots=True)
class Images:
    """The image tables of image_cuda.yaml.

    `require_lists`: by release of CUDA. `named`: driver branches that they name for any brand, by X.Y.
    """

    families: tuple[_Family, ...]
    patterns: tuple[re.Pattern[str], ...]
    require_lists: Mapping[Version, DriverList]
    named: Mapping[Version, Branches]
    capability_floors: tuple[tuple[str, Version], ...]

    def infer(self, image: str) -> ImageCUDA | None:
        """Read an image reference; None if it tells nothing about CUDA."""
        name, tag = _split(image[:LONGEST_IMAGE])
        for family in self.families:
            if family.names.fullmatch(name) and (match := family.tag.fullmatch(tag)):
                return self._of_family(family, match, tag)
        for said, where in ((tag, "tag"), (name.rpartition("/")[2], "name")):
            for pattern in self.patterns:
                if match := pattern.search(said):
                    cuda = _from_groups(match)
                    return ImageCUDA(cuda, False, f"{where} {said} names CUDA {show_version(cuda)}")
        return None

    def older(self, image: str, most: Version) -> str | None:
        """Name the image of the same repository and make that was built for the newest CUDA up to this; None unknown.

        `most` may leave out what does not matter: (12,) is all of CUDA 12. Of an image that carries CUDA in its tag,
        other tags are not known.
        """
        name, tag = _split(image[:LONGEST_IMAGE])
        for family in self.families:
            match = family.tag.fullmatch(tag)
            if family.kind == "month" and match and family.names.fullmatch(name):
                fitting = [month for month, row in family.months.items() if row.cuda[: len(most)] <= most]
                older = max((month for month in fitting if month < match["month"]), default=None)
                return f"{name}:{tag.replace(match['month'], older)}" if older else None
        return None

    def _of_family(self, family: _Family, match: re.Match[str], tag: str) -> ImageCUDA | None:
        if family.kind == "month":
            return self._of_month(family, match["month"], tag)
        row = _of_version(family, match)
        if row is None or row.cuda is None:
            return None
        unsourced = family.unsourced or row.unsourced
        return ImageCUDA(
            cuda=row.cuda,
            required=not unsourced,
            evidence=f"tag {tag} = CUDA {show_version(row.cuda)}{', unsourced' if unsourced else ''}",
            requires=self.require_lists.get(row.cuda) if family.requires_list else None,
            carries_compat=family.carries_compat,
            forward=self.named.get(release(row.cuda), ()) if family.requires_list else (),
        )

    def _of_month(self, family: _Family, month: str, tag: str) -> ImageCUDA | None:
        row = family.months.get(month)
        if row is None:
            return None
        unsourced = family.unsourced or row.unsourced
        evidence = f"tag {tag} = NGC {month} = CUDA {show_version(row.cuda)}{', unsourced' if unsourced else ''}"
        return ImageCUDA(
            cuda=row.cuda,
            required=not unsourced,
            evidence=evidence,
            native=row.native,
            carries_compat=family.carries_compat,
            forward=row.forward if family.carries_compat else (),
            capability_floor=next((floor for since, floor in self.capability_floors if month >= since), None),
        )


def _split(image: str) -> tuple[str, str]:
    """Take a reference apart into name and tag, without digest; no tag is `latest`."""
    reference = image.partition("@")[0]
    for registry in _DEFAULT_REGISTRIES:
        reference = reference.removeprefix(registry)
    head, slash, last = reference.rpartition("/")
    name, _, tag = last.partition(":")
    return f"{head}{slash}{name}", tag or "latest"


def _from_groups(match: re.Match[str]) -> Version:
    """Read the `cuda` group (`12.4.1`, `12`) or the `cu` group (`cu124`)."""
    groups = match.groupdict()
    if groups.get("cuda"):
        return parse_version(groups["cuda"])
    digits = groups["cu"].removeprefix("cu")
    return parse_version(f"{digits[:-1]}.{digits[-1]}")


def _of_version(family: _Family, match: re.Match[str]) -> _Version | None:
    """Read the CUDA in the tag itself, or the row of the last release not above the tag's."""
    if family.kind == "tag":
        return _Version((), _from_groups(match), False)
    if family.kind != "table":
        return None
    wanted = parse_version(match["ver"])
    rows = [row for row in family.versions if row.since <= wanted]
    return rows[-1] if rows else None


def load_images(document: Mapping[str, Any], cuda: CUDATables) -> Images:
    """Read image_cuda.yaml; the order of its families is kept, first match counts."""
    months = {name: _months(document[name]) for name in ("ngc_months", "ngc_trtllm_months")}
    rows = {parse_version(row["cuda"]): row for row in document["require_lists"]}
    return Images(
        families=tuple(_family(row, months) for row in document["image_families"]),
        patterns=tuple(re.compile(row["tag_regex"]) for row in document["tag_patterns"]),
        require_lists={
            parse_version(each): _driver_list(series, row["named"], document["brand_sets"], cuda)
            for series, row in rows.items()
            if "any_driver_from" not in row
            for each in row["releases"]
        },
        named={series: _named(row["named"]) for series, row in rows.items()},
        capability_floors=tuple(
            (row["since_month"], parse_version(row["compute_capability"])) for row in document["compute_floors"]
        ),
    )


def _driver_list(
    cuda: Version, named: Iterable[Mapping[str, Any]], brand_sets: Mapping[str, list[str]], tables: CUDATables
) -> DriverList:
    """Compile a requirement: drivers that report the CUDA version, and the branches named, by brand."""
    named = list(named)
    consumer = [entry for entry in named if "geforce" in brand_sets[entry["brands"]]]
    return DriverList(
        cuda=cuda,
        since=tables.first_branch(cuda),
        branches=frozenset(branch for branch, _ in _named(named)),
        consumer_branches=frozenset(branch for branch, _ in _named(consumer)),
    )


def _named(entries: Iterable[Mapping[str, Any]]) -> Branches:
    return tuple((branch, (branch,)) for branch in sorted({each for entry in entries for each in entry["branches"]}))


def _months(rows: Iterable[Mapping[str, Any]]) -> dict[str, _Month]:
    return {row["month"]: _month(row) for row in rows}


def _month(row: Mapping[str, Any]) -> _Month:
    driver = parse_version(row["min_driver"])
    drivers = map(parse_version, row.get("dc_gpu_alt_branches", ()))
    return _Month(
        cuda=_cuda_of_month(row["cuda"]),
        native=driver if len(driver) > 1 else None,
        forward=tuple((lowest[0], lowest) for lowest in drivers),
        unsourced=bool(row.get("unsourced")),
    )


def _cuda_of_month(text: str) -> Version:
    """Months are written as people write them: `12.6.1.006`, `11.7 U1 preview`."""
    number, _, rest = text.partition(" ")
    update = re.match(r"U(\d+)", rest)
    return parse_version(".".join(number.split(".")[:3]) + (f".{update[1]}" if update else ""))


def _family(row: Mapping[str, Any], months: Mapping[str, Mapping[str, _Month]]) -> _Family:
    return _Family(
        names=re.compile("|".join(translate(name) for name in row["images"])),
        tag=re.compile(row["tag_regex"]),
        kind=row["cuda"],
        months=months[row.get("months", "ngc_months")],
        versions=tuple(map(_version, row.get("versions", ()))),
        requires_list=row.get("requires") == "list",
        carries_compat=bool(row.get("carries_compat")),
        unsourced=bool(row.get("unsourced")),
    )


def _version(row: Mapping[str, Any]) -> _Version:
    cuda = parse_version(row["cuda"]) if row["cuda"] else None
    return _Version(parse_version(row["since"]), cuda, bool(row.get("unsourced")))
