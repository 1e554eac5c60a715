# SPDX-License-Identifier: Apache-2.0
"""Images: which CUDA a container image was built with, read off its name and tag. Images are never fetched."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

from app.versions import Version, parse_version, release, show_version

_DEFAULT_REGISTRIES = ("docker.io/", "index.docker.io/")
LONGEST_IMAGE = 4096
"""Characters looked at; Kubernetes sets no limit, and no registry accepts a longer reference (a guess)."""


Branches = tuple[tuple[int, Version], ...]
"""(driver branch, lowest driver of it) pairs."""


@dataclass(frozen=True, slots=True)
class ImageCUDA:
    """What an image's name tells.

    `hard`: a known family of image_cuda.yaml said it, so it is a need; else it is a preference.
    `native`: the driver a release note names for this very image; None: ask the toolkit table.
    `alternatives`: (branch, lowest driver) pairs that the image accepts besides; None: no list is known.
    `forward`: pairs for which the image claims forward compatibility through the cuda-compat it carries.
    `capability_floor`: GPUs below it were dropped from the image; None: the toolkit's own floor holds.
    `by_month`: the release notes of an NGC month say all this.
    """

    cuda: Version
    hard: bool
    native: Version | None
    alternatives: Branches | None
    forward: Branches
    carries_require: bool
    capability_floor: Version | None
    evidence: str
    by_month: bool = False


@dataclass(frozen=True, slots=True)
class _Month:
    cuda: Version
    native: Version | None
    alternatives: Branches | None
    unsourced: bool


@dataclass(frozen=True, slots=True)
class _Family:
    names: re.Pattern[str]
    tag: re.Pattern[str]
    kind: str
    months: Mapping[str, _Month]
    versions: tuple[tuple[Version, Version | None], ...]
    carries_require: bool
    unsourced: bool


@dataclass(frozen=True, slots=True)
class Images:
    """The image tables of image_cuda.yaml."""

    families: tuple[_Family, ...]
    tag_patterns: tuple[re.Pattern[str], ...]
    require_branches: Mapping[Version, Branches]
    capability_floors: tuple[tuple[str, Version], ...]

    def infer(self, image: str) -> ImageCUDA | None:
        """Read an image reference; None if it tells nothing about CUDA."""
        name, tag = _split(image[:LONGEST_IMAGE])
        for family in self.families:
            if family.names.fullmatch(name) and (match := family.tag.fullmatch(tag)):
                return self._of_family(family, match, tag)
        for pattern in self.tag_patterns:
            if match := pattern.search(tag):
                cuda = _from_groups(match)
                return ImageCUDA(cuda, False, None, None, (), False, None, f"tag {tag} names CUDA {show_version(cuda)}")
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
        doubt = ", unsourced" if family.unsourced else ""
        if family.kind == "month":
            return self._of_month(family, match["month"], tag, doubt)
        cuda = _from_groups(match) if family.kind == "tag" else _from_table(family, match)
        if cuda is None:
            return None
        alternatives = self.require_branches.get(release(cuda)) if family.carries_require else None
        evidence = f"tag {tag} = CUDA {show_version(cuda)}{_unknown(family, alternatives)}{doubt}"
        return ImageCUDA(cuda, True, None, alternatives, alternatives or (), family.carries_require, None, evidence)

    def _of_month(self, family: _Family, month: str, tag: str, doubt: str) -> ImageCUDA | None:
        row = family.months.get(month)
        if row is None:
            return None
        doubt = ", unsourced" if row.unsourced else doubt
        floor = next((floor for since, floor in self.capability_floors if month >= since), None)
        evidence = f"tag {tag} = NGC {month} = CUDA {show_version(row.cuda)}{_unknown(family, row.alternatives)}{doubt}"
        return ImageCUDA(
            cuda=row.cuda,
            hard=True,
            native=row.native,
            alternatives=row.alternatives,
            forward=row.alternatives or self.require_branches.get(release(row.cuda), ()),
            carries_require=family.carries_require,
            capability_floor=floor,
            evidence=evidence,
            by_month=True,
        )


def _unknown(family: _Family, alternatives: object) -> str:
    return ", alternatives unknown" if family.carries_require and alternatives is None else ""


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


def _from_table(family: _Family, match: re.Match[str]) -> Version | None:
    if family.kind != "table":
        return None
    wanted = parse_version(match["ver"])
    rows = [cuda for since, cuda in family.versions if since <= wanted]
    return rows[-1] if rows else None


def load_images(document: Mapping[str, Any]) -> Images:
    """Read image_cuda.yaml; the order of its families is kept, first match counts."""
    months = {name: _months(document[name]) for name in ("ngc_months", "ngc_trtllm_months")}
    return Images(
        families=tuple(_family(row, months) for row in document["image_families"]),
        tag_patterns=tuple(re.compile(row["tag_regex"]) for row in document["tag_patterns"]),
        require_branches={
            parse_version(row["cuda"]): tuple((branch, (branch,)) for branch in row["branches"])
            for row in document["require_branches"]
            if row["complete"]
        },
        capability_floors=tuple(
            (row["since_month"], parse_version(row["compute_capability"])) for row in document["compute_floors"]
        ),
    )


def _months(rows: Iterable[Mapping[str, Any]]) -> dict[str, _Month]:
    return {row["month"]: _month(row) for row in rows}


def _month(row: Mapping[str, Any]) -> _Month:
    driver = parse_version(row["min_driver"])
    listed = row.get("dc_gpu_alt_branches")
    return _Month(
        cuda=_cuda_of_month(row["cuda"]),
        native=driver if len(driver) > 1 else None,
        alternatives=tuple((parse_version(each)[0], parse_version(each)) for each in listed) if listed else None,
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
        versions=tuple(
            (parse_version(each["since"]), parse_version(each["cuda"]) if each["cuda"] else None)
            for each in row.get("versions", ())
        ),
        carries_require=bool(row.get("carries_require")),
        unsourced=bool(row.get("unsourced")),
    )
