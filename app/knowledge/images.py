# SPDX-License-Identifier: Apache-2.0
"""The CUDA version and the platform that a container image was built for, by its name and tag. Images are not fetched.

The length of a reference is not limited here, since kube/pod_limits.py refuses a pod with an image reference of more
than LONGEST_IMAGE characters.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Any

from app.knowledge.cuda_compatibility import CUDATables, DriverList
from app.values.versions import Version, major_minor, parse_version, show_version

_DEFAULT_REGISTRIES = ("docker.io/", "index.docker.io/")
Branches = tuple[tuple[int, Version], ...]
"""Pairs of a driver branch, which is the major version of a driver such as 535, and the least driver of the branch."""


@dataclass(frozen=True, slots=True)
class ImageCUDA:
    """The facts about an image that follow from its name and tag.

    `cuda` is the version of the CUDA toolkit in the image. `required` says that filters enforce that version, because a
    row of image_cuda.yaml with a source has it; otherwise it is only a preference. `evidence` says in words where it
    comes from. `native` is the least driver in the release notes of this image, None where that of the toolkit table
    applies. `requires` is the NVIDIA_REQUIRE_CUDA of the image's environment, None if it refuses no driver or is not
    known. `carries_compat` says that the image contains the cuda-compat package of its CUDA version, and `forward` are
    the driver branches that its publisher names for that package, besides those of NVIDIA's matrix. `compat_variable`
    is the variable with which the container loads that package; empty where it always does. `loads_compat` says that
    the image loads it itself, and not the container toolkit, so on any GPU. `capability_floor` is the least
    compute capability that the image supports, None where that of the toolkit applies.
    """

    cuda: Version
    required: bool
    evidence: str
    native: Version | None = None
    requires: DriverList | None = None
    carries_compat: bool = False
    forward: Branches = ()
    compat_variable: str = ""
    loads_compat: bool = False
    capability_floor: Version | None = None


@dataclass(frozen=True, slots=True)
class ImagePlatform:
    """The machine that an image is built for, by the first row of `image_platforms` that matches.

    `architecture` is that of the CPU in Kubernetes' words, such as amd64. `products` matches the GPU products, in
    normal form, on which alone it runs, as on Jetson modules; None for any. `required` says that filters enforce it,
    because a publisher's own build is the source; otherwise it is inferred from words of the reference, reported and
    scored. `evidence` says in words where it comes from.
    """

    architecture: str
    products: re.Pattern[str] | None
    required: bool
    evidence: str = field(compare=False)

    def runs_on(self, architecture: str | None, product: str | None) -> bool:
        """Tell whether the image runs on a machine; what is not known of the machine counts as suitable."""
        suits = architecture is None or architecture == self.architecture
        return suits and (self.products is None or product is None or self.products.search(product) is not None)


@dataclass(frozen=True, slots=True)
class _Version:
    """One row of `versions` of a family: the CUDA version of the releases from `since` on; None if it is not known.

    `unsourced` says that the row has no public source, so that its version is only a preference.
    """

    since: Version
    cuda: Version | None
    unsourced: bool


@dataclass(frozen=True, slots=True)
class _Month:
    """One row of `ngc_months` or `ngc_trtllm_months`: CUDA version and drivers of the images of a month like `24.05`.

    `native` and `forward` are as in ImageCUDA. `unsourced` says that the row has no public source.
    """

    cuda: Version
    native: Version | None
    forward: Branches
    unsourced: bool


@dataclass(frozen=True, slots=True)
class _Family:
    """One row of `image_families`: images with similar names, whose tags have one form.

    `names` matches the image's name without tag, and `tag` the whole tag. `kind` says how the CUDA version follows from
    the tag: `month` (by `months`), `tag` (the tag has it), `table` (by the release in the tag, in `versions`), or
    `none` (it is not known). `months` are the rows by month, and `versions` are sorted by release. `requires_list` says
    that the images set an NVIDIA_REQUIRE_CUDA of `require_lists`. `carries_compat` is as in ImageCUDA. `compat_opt_in`
    is its `compat_variable`, and the release from which on the image has it. `unsourced` says that the row has no
    public source.
    """

    names: re.Pattern[str]
    tag: re.Pattern[str]
    kind: str
    months: Mapping[str, _Month]
    versions: tuple[_Version, ...]
    requires_list: bool
    carries_compat: bool
    compat_opt_in: tuple[str, Version] | None
    unsourced: bool


@dataclass(frozen=True, slots=True)
class _Platform:
    """One row of `image_platforms`: images for one platform alone, by name and tag, or else by words of either.

    `names` matches the name of the images; None if `tag` is searched in the tag and in the name of any image. The other
    fields are as in ImagePlatform.
    """

    names: re.Pattern[str] | None
    tag: re.Pattern[str]
    architecture: str
    products: re.Pattern[str] | None


@dataclass(frozen=True, slots=True)
class Images:
    """The tables of image_cuda.yaml.

    `patterns` find a CUDA version in the tag or name of images of no family. `require_lists` are the driver
    requirements of NVIDIA's CUDA images by release, and `named` the driver branches in them for any brand, by X.Y.
    `capability_floors` are pairs of a month and the least compute capability of images from that month on, of which the
    first that applies counts.
    """

    families: tuple[_Family, ...]
    patterns: tuple[re.Pattern[str], ...]
    require_lists: Mapping[Version, DriverList]
    named: Mapping[Version, Branches]
    capability_floors: tuple[tuple[str, Version], ...]
    platforms: tuple[_Platform, ...]

    def infer(self, image: str) -> ImageCUDA | None:
        """Infer the CUDA version from an image reference; None if the reference does not show it."""
        name, tag = split_reference(image)
        for family in self.families:
            if family.names.fullmatch(name) and (match := family.tag.fullmatch(tag)):
                return self._of_family(family, match, tag)
        for text, where in ((tag, "tag"), (name.rpartition("/")[2], "name")):
            for pattern in self.patterns:
                if match := pattern.search(text):
                    cuda = cuda_in_tag(match)
                    return ImageCUDA(cuda, False, f"{where} {text} names CUDA {show_version(cuda)}")
        return None

    def platform(self, image: str) -> ImagePlatform | None:
        """Give the platform that an image reference shows; None if it shows none, or words of several."""
        name, tag = split_reference(image)
        host, _, path = name.partition("/")
        texts = (("tag", tag), ("name", path if "." in host or ":" in host else name))
        inferred: dict[str, ImagePlatform] = {}
        for row in self.platforms:
            if row.names is not None and row.names.fullmatch(name) and row.tag.search(tag):
                return ImagePlatform(row.architecture, row.products, True, f"image {name}:{tag}")
            where = next((pair for pair in texts if row.tag.search(pair[1])), None)
            if row.names is None and where is not None:
                platform = ImagePlatform(row.architecture, row.products, False, f"{where[0]} {where[1]}, inferred")
                inferred.setdefault(row.architecture, platform)
        return next(iter(inferred.values())) if len(inferred) == 1 else None

    def older_image(self, image: str, most: Version) -> str | None:
        """Find the newest older image of the same repository whose CUDA version is at most `most`; None if unknown.

        `most` may omit fields: (12,) includes all of CUDA 12. The result is None for images with the CUDA version in
        the tag, since the tables do not have their other tags.
        """
        name, tag = split_reference(image)
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
        row = _version_row(family, match)
        if row is None or row.cuda is None:
            return None
        unsourced = family.unsourced or row.unsourced
        return ImageCUDA(
            cuda=row.cuda,
            required=not unsourced,
            evidence=f"tag {tag} = CUDA {show_version(row.cuda)}{', unsourced' if unsourced else ''}",
            requires=self.require_lists.get(row.cuda) if family.requires_list else None,
            carries_compat=family.carries_compat,
            forward=self.named.get(major_minor(row.cuda), ()) if family.requires_list else (),
            compat_variable=_compat_variable(family, match),
            loads_compat=family.compat_opt_in is not None,
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


def _compat_variable(family: _Family, match: re.Match[str]) -> str:
    """Give the variable with which an image of this release loads its cuda-compat package; empty if it always does."""
    if family.compat_opt_in is None:
        return ""
    variable, since = family.compat_opt_in
    return variable if parse_version(match["ver"]) >= since else ""


def split_reference(image: str) -> tuple[str, str]:
    """Split a reference into name and tag, without digest; a missing tag is `latest`."""
    reference = image.partition("@")[0]
    for registry in _DEFAULT_REGISTRIES:
        reference = reference.removeprefix(registry)
    head, slash, last = reference.rpartition("/")
    name, _, tag = last.partition(":")
    return f"{head}{slash}{name}", tag or "latest"


def cuda_in_tag(match: re.Match[str]) -> Version:
    """Read the `cuda` group (`12.4.1`, `12`) or the `cu` group (`cu124`), of which one has matched."""
    groups = match.groupdict()
    if groups.get("cuda"):
        return parse_version(groups["cuda"])
    digits = groups["cu"].removeprefix("cu")
    return parse_version(f"{digits[:-1]}.{digits[-1]}")


def _version_row(family: _Family, match: re.Match[str]) -> _Version | None:
    """Give the row of the last release up to the tag's; if the tag has a CUDA version, a row with that version."""
    if family.kind == "tag":
        return _Version((), cuda_in_tag(match), False)
    if family.kind != "table":
        return None
    release = parse_version(match["ver"])
    rows = [row for row in family.versions if row.since <= release]
    return rows[-1] if rows else None


def load_images(document: Mapping[str, Any], cuda: CUDATables) -> Images:
    """Read image_cuda.yaml; the first family that matches an image counts."""
    names = ("ngc_months", "ngc_trtllm_months")
    months = {name: {row["month"]: _month(row) for row in document[name]} for name in names}
    rows = {parse_version(row["cuda"]): row for row in document["require_lists"]}
    return Images(
        families=tuple(_family(row, months) for row in document["image_families"]),
        patterns=tuple(re.compile(row["tag_regex"]) for row in document["tag_patterns"]),
        require_lists={
            parse_version(release): _driver_list(series, row["named"], document["brand_sets"], cuda)
            for series, row in rows.items()
            if "any_driver_from" not in row
            for release in row["releases"]
        },
        named={series: _named_branches(row["named"]) for series, row in rows.items()},
        capability_floors=tuple(
            (row["since_month"], parse_version(row["compute_capability"])) for row in document["compute_floors"]
        ),
        platforms=tuple(map(_platform, document["image_platforms"])),
    )


def _driver_list(
    cuda: Version, named: Iterable[Mapping[str, Any]], brand_sets: Mapping[str, list[str]], tables: CUDATables
) -> DriverList:
    """Compile a requirement from the CUDA version and the driver branches that the image names for each brand."""
    named = list(named)
    consumer = [entry for entry in named if "geforce" in brand_sets[entry["brands"]]]
    return DriverList(
        cuda=cuda,
        since=tables.first_branch(cuda),
        branches=frozenset(branch for branch, _ in _named_branches(named)),
        consumer_branches=frozenset(branch for branch, _ in _named_branches(consumer)),
    )


def _named_branches(entries: Iterable[Mapping[str, Any]]) -> Branches:
    branches = {branch for entry in entries for branch in entry["branches"]}
    return tuple((branch, (branch,)) for branch in sorted(branches))


def _month(row: Mapping[str, Any]) -> _Month:
    driver = parse_version(row["min_driver"])
    drivers = map(parse_version, row.get("dc_gpu_alt_branches", ()))
    number, _, rest = row["cuda"].partition(" ")
    update = re.match(r"U(\d+)", rest)
    return _Month(
        cuda=parse_version(".".join(number.split(".")[:3]) + (f".{update[1]}" if update else "")),
        native=driver if len(driver) > 1 else None,
        forward=tuple((lowest[0], lowest) for lowest in drivers),
        unsourced=bool(row.get("unsourced")),
    )


def _family(row: Mapping[str, Any], months: Mapping[str, Mapping[str, _Month]]) -> _Family:
    return _Family(
        names=re.compile("|".join(translate(name) for name in row["images"])),
        tag=re.compile(row["tag_regex"]),
        kind=row["cuda"],
        months=months[row.get("months", "ngc_months")],
        versions=tuple(map(_version, row.get("versions", ()))),
        requires_list=row.get("requires") == "list",
        carries_compat=bool(row.get("carries_compat")),
        compat_opt_in=(row["compat_opt_in"]["variable"], parse_version(row["compat_opt_in"]["since"]))
        if "compat_opt_in" in row
        else None,
        unsourced=bool(row.get("unsourced")),
    )


def _version(row: Mapping[str, Any]) -> _Version:
    cuda = parse_version(row["cuda"]) if row["cuda"] else None
    return _Version(parse_version(row["since"]), cuda, bool(row.get("unsourced")))


def _platform(row: Mapping[str, Any]) -> _Platform:
    return _Platform(
        names=re.compile("|".join(translate(name) for name in row["images"])) if "images" in row else None,
        tag=re.compile(row["tag_regex"]),
        architecture=row["architecture"],
        products=re.compile(row["product_regex"]) if "product_regex" in row else None,
    )
