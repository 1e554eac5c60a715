# SPDX-License-Identifier: Apache-2.0
"""The GPUs for which the frameworks in container images were compiled, by the publishers' own builds.

A build contains machine code (SASS) for some compute capabilities, and maybe PTX, which the driver compiles for newer
GPUs when the process starts. On a GPU with neither, the first kernel fails with `no kernel image is available`
(cuda_driver.yaml `sass_rules`). image_code.yaml has the builds.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Any

import msgspec

from app.knowledge.images import ImagePlatform, cuda_in_tag, split_reference
from app.values.versions import Version, major_minor, parse_version, show_version

_TARGET = re.compile(r"(?P<capability>\d{1,2}\.\d)(?P<exact>a?)(?P<ptx>\+PTX|-virtual)?")


@dataclass(frozen=True, slots=True)
class Target:
    """One compute capability that a build was compiled for, in the words of TORCH_CUDA_ARCH_LIST and CMake.

    `9.0` is machine code, `9.0+PTX` machine code and PTX, `9.0-virtual` only PTX. `9.0a` runs on 9.0 alone.
    """

    capability: Version
    exact: bool
    machine_code: bool
    ptx: bool

    def runs_on(self, capability: Version) -> bool:
        """Tell whether a GPU of this compute capability runs the code."""
        if self.exact or capability == self.capability:
            return capability == self.capability
        newer = capability > self.capability
        return newer and (self.ptx or (self.machine_code and capability[0] == self.capability[0]))


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """The build of a framework in an image.

    `name` is the framework with its release and CUDA. `code` are the targets by CPU architecture; an architecture that
    it lacks is not known. `platform` is the only CPU architecture that the image is built for, None if it has several
    or that is not known. `required` says that filters enforce it, because the publisher's own build is the source.
    `evidence` says in words where it comes from.
    """

    name: str
    code: tuple[tuple[str, tuple[Target, ...]], ...]
    platform: ImagePlatform | None
    required: bool
    evidence: str = field(compare=False)

    def targets(self, architecture: str | None) -> tuple[Target, ...] | None:
        """Give the targets on a CPU architecture, or of all together if that is None; None if they are not known."""
        if architecture is None:
            return tuple(target for _, targets in self.code for target in targets) if self.code else None
        return dict(self.code).get(architecture)

    def runs_on(self, capability: Version | None, architecture: str | None) -> bool:
        """Tell whether the build has code that the GPU runs; what is not known counts as suitable."""
        targets = self.targets(architecture)
        return capability is None or targets is None or any(target.runs_on(capability) for target in targets)

    def capabilities(self, architecture: str | None) -> list[str]:
        """List the compute capabilities with code as text: the least of each major number, and those by PTX."""
        targets = self.targets(architecture) or ()
        ptx = min((target.capability for target in targets if target.ptx), default=None)
        compiled = sorted(target.capability for target in targets if ptx is None or target.capability < ptx)
        least = {capability[0]: show_version(capability) for capability in reversed(compiled)}
        return [*(least[major] for major in sorted(least)), *([f">= {show_version(ptx)}"] if ptx else [])]


class _Build(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of `builds`: the releases from `since` to `until` for `cuda`, or for any CUDA if that is empty.

    `code` are targets by CPU architecture. `platforms` are the CPU architectures for which images are published, empty
    if that is not known. `tags` are tags that exist, in which a group of the family's expression stands for itself.
    `unsourced` says that the source is not the publisher's own build.
    """

    since: str
    until: str
    source: str
    date: str
    cuda: str = ""
    code: dict[str, list[str]] = {}
    platforms: list[str] = []
    tags: list[str] = []
    unsourced: bool = False
    note: str = ""

    def contains(self, release: Version, cuda: Version | None) -> bool:
        """Tell whether the row is about a release and its CUDA, which is None if the tag does not have it."""
        fields = self.until.count(".") + 1
        last = _padded(release, fields) <= _padded(parse_version(self.until), fields)
        if not last or release < parse_version(self.since):
            return False
        return not self.cuda or cuda is None or major_minor(cuda) == parse_version(self.cuda)


@dataclass(frozen=True, slots=True)
class _Family:
    """One row of `frameworks`: images with similar names, whose tags have one form, and their builds."""

    framework: str
    names: re.Pattern[str]
    tag: re.Pattern[str]
    builds: tuple[_Build, ...]

    def build(self, match: re.Match[str]) -> _Build | None:
        """Give the row for a tag; None if the table has none."""
        release, cuda = _release(match), _cuda(match)
        return next((build for build in self.builds if build.contains(release, cuda)), None)

    def read(self, name: str, tag: str) -> ImageBuild | None:
        """Give the build in an image of this family; None if the table has none."""
        match = self.tag.fullmatch(tag)
        row = self.build(match) if match and self.names.fullmatch(name) else None
        if row is None or match is None:
            return None
        cuda = row.cuda or (show_version(found) if (found := _cuda(match)) else "")
        title = f"{self.framework} {show_version(_release(match))}" + f" of CUDA {cuda}" * bool(cuda)
        source = f"{'unsourced: ' * row.unsourced}{row.source}, {row.date}"
        only = row.platforms[0] if len(row.platforms) == 1 else None
        return ImageBuild(
            name=title,
            code=tuple((arch, tuple(map(parse_target, texts))) for arch, texts in sorted(row.code.items())),
            platform=ImagePlatform(only, None, not row.unsourced, f"{title}; {source}") if only else None,
            required=not row.unsourced,
            evidence=source,
        )


@dataclass(frozen=True, slots=True)
class FrameworkBuilds:
    """The table of image_code.yaml."""

    families: tuple[_Family, ...]

    def build(self, image: str) -> ImageBuild | None:
        """Give what an image was compiled for, by its reference; None if the table does not know it."""
        name, tag = split_reference(image)
        return next((build for family in self.families if (build := family.read(name, tag))), None)

    def nearest_image(self, image: str, capability: Version, architecture: str | None) -> str | None:
        """Find the image of the same repository that has code for a GPU and is nearest; None if none is known.

        Newer releases and CUDA versions come first, and of them the oldest.
        """
        name, tag = split_reference(image)
        for family in self.families:
            match = family.tag.fullmatch(tag)
            if match is not None and family.names.fullmatch(name):
                tags = [
                    known
                    for known in _known_tags(family, match)
                    if _suits(family, name, known, capability, architecture)
                ]
                ordered = sorted((_order(family, known), known) for known in tags)
                newer = [known for order, known in ordered if order > _order(family, tag)]
                older = [known for _, known in ordered if known not in newer]
                return f"{name}:{(newer or older[::-1])[0]}" if ordered else None
        return None


def _suits(family: _Family, name: str, tag: str, capability: Version, architecture: str | None) -> bool:
    build = family.read(name, tag)
    if build is None or not build.runs_on(capability, architecture) or build.targets(architecture) is None:
        return False
    return build.platform is None or build.platform.runs_on(architecture, None)


def _known_tags(family: _Family, match: re.Match[str]) -> Iterator[str]:
    """List the tags that exist, of the same kind as the tag that matched."""
    kept = {name: value or "" for name, value in match.groupdict().items()}
    yield from (tag.format_map(kept) for build in family.builds for tag in build.tags)


def _order(family: _Family, tag: str) -> tuple[Version, Version]:
    match = family.tag.fullmatch(tag)
    return (_release(match), _cuda(match) or ()) if match else ((), ())


def _padded(version: Version, fields: int) -> Version:
    return (*version, *([0] * fields))[:fields]


def _release(match: re.Match[str]) -> Version:
    return parse_version(match["ver"])


def _cuda(match: re.Match[str]) -> Version | None:
    groups = match.groupdict()
    return cuda_in_tag(match) if groups.get("cuda") or groups.get("cu") else None


def parse_target(text: str) -> Target:
    """Read `8.6`, `9.0a`, `12.0+PTX` or `5.0-virtual`.

    Raises ValueError.
    """
    match = _TARGET.fullmatch(text)
    if match is None:
        raise ValueError(f"compute capability: got {text!r}, wants such as 8.6, 9.0a, 12.0+PTX or 5.0-virtual")
    ptx = match["ptx"]
    exact = bool(match["exact"])
    return Target(parse_version(match["capability"]), exact, ptx != "-virtual", ptx is not None and not exact)


def load_builds(rows: Iterable[Mapping[str, Any]]) -> FrameworkBuilds:
    """Read the rows of image_code.yaml; the first family that matches an image and has a row for its tag counts."""
    return FrameworkBuilds(
        tuple(
            _Family(
                framework=row["framework"],
                names=re.compile("|".join(translate(name) for name in row["images"])),
                tag=re.compile(row["tag_regex"]),
                builds=msgspec.convert(row["builds"], tuple[_Build, ...]),
            )
            for row in rows
        )
    )
