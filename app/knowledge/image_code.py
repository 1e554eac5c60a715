# SPDX-License-Identifier: Apache-2.0
"""The GPUs for which the frameworks in container images were compiled, by the publishers' own builds.

A build contains machine code (SASS) for some compute capabilities, and maybe PTX, which the driver compiles for newer
GPUs when the process starts. On a GPU with neither, the first kernel fails with `no kernel image is available`
(cuda_driver.yaml `sass_rules`). image_code.yaml has the builds.
"""

import re
from dataclasses import dataclass, field

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
    ptx: bool

    def runs_on(self, capability: Version) -> bool:
        """Tell whether a GPU of this compute capability runs the code."""
        if self.exact or capability <= self.capability:
            return capability == self.capability
        return self.ptx or capability[0] == self.capability[0]


def parse_target(text: str) -> Target:
    """Read `8.6`, `9.0a`, `12.0+PTX` or `5.0-virtual`.

    Raises ValueError.
    """
    match = _TARGET.fullmatch(text)
    if match is None:
        raise ValueError(f"compute capability: got {text!r}, wants such as 8.6, 9.0a, 12.0+PTX or 5.0-virtual")
    return Target(parse_version(match["capability"]), bool(match["exact"]), bool(match["ptx"]) and not match["exact"])


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """The build of a framework in an image.

    `name` is the framework with its release and CUDA, and the image of which this one may be a copy. `code` are the
    targets by CPU architecture; an architecture that it lacks is not known. `platform` is the only one that the image
    is built for, None if it has several or that is not known. `required` says that filters enforce it: the image is the
    published one, and the publisher's own build is the source. `evidence` says in words where it comes from.
    """

    name: str
    code: tuple[tuple[str, tuple[Target, ...]], ...]
    platform: ImagePlatform | None
    required: bool
    evidence: str = field(compare=False)

    def targets(self, architecture: str | None) -> tuple[Target, ...] | None:
        """Give the targets on a CPU architecture, or of all together if that is None; None if they are not known."""
        if architecture is None and self.code:
            return tuple(target for _, targets in self.code for target in targets)
        return dict(self.code).get(architecture or "")

    def runs_on(self, capability: Version | None, architecture: str | None) -> bool:
        """Tell whether the build has code that the GPU runs; what is not known counts as suitable."""
        targets = self.targets(architecture)
        return capability is None or targets is None or any(target.runs_on(capability) for target in targets)

    def serves(self, capability: Version | None, architecture: str | None) -> bool:
        """Tell whether the image starts on the CPU architecture and has code for the GPU, as far as is known."""
        starts = self.platform is None or self.platform.runs_on(architecture, None)
        return starts and self.runs_on(capability, architecture)

    def capabilities(self, architecture: str | None) -> list[str]:
        """List the compute capabilities with code as text: the least of each major number, and those by PTX."""
        targets = self.targets(architecture) or ()
        ptx = min((target.capability for target in targets if target.ptx), default=None)
        compiled = sorted(target.capability for target in targets if ptx is None or target.capability < ptx)
        least = {capability[0]: show_version(capability) for capability in reversed(compiled)}
        return [*(least[major] for major in sorted(least)), *([f">= {show_version(ptx)}"] if ptx else [])]


class _Build(msgspec.Struct, frozen=True):
    """One row of `builds`: the releases from `since` to `until` for `cuda`, or for any CUDA if that is empty.

    `code` are targets by CPU architecture. `platforms` are the CPU architectures of the published images, empty if they
    are not known. `tags` are tags that exist, in which a group of the family's expression stands for itself.
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

    def contains(self, release: str, cuda: Version) -> bool:
        """Tell whether the row is about a release and its CUDA, which is empty if the tag does not have it."""
        fields = self.until.count(".") + 1
        within = parse_version(self.since) <= parse_version(release)
        within = within and parse_version(".".join(release.split(".")[:fields])) <= parse_version(self.until)
        return within and (not self.cuda or not cuda or major_minor(cuda) == parse_version(self.cuda))


class _Framework(msgspec.Struct, frozen=True):
    """One row of `frameworks`: images with similar names, whose tags have one form, and their builds."""

    framework: str
    images: list[str]
    tag_regex: str
    builds: list[_Build]

    def published(self, name: str) -> str | None:
        """Give the image of this family that has a name, or of which it may be a copy: the last two parts agree."""
        copied = (image for image in self.images if image.split("/")[-2:] == name.split("/")[-2:])
        return name if name in self.images else next(copied, None)

    def match(self, name: str, tag: str) -> re.Match[str] | None:
        """Read a tag of an image of this family; None for another image, and for a tag of another form."""
        return re.fullmatch(self.tag_regex, tag) if self.published(name) else None

    def build(self, name: str, tag: str) -> ImageBuild | None:
        """Give the build in an image of this family; None if the table has none."""
        match = self.match(name, tag)
        cuda = _release(match)[1] if match else ()
        row = next((build for build in self.builds if match and build.contains(match["ver"], cuda)), None)
        if match is None or row is None:
            return None
        original = self.published(name)
        words = f"{self.framework} {match['ver']}" + (f" of CUDA {show_version(cuda)}" if cuda else "")
        words += f" (if it is a copy of {original})" if name != original else ""
        required = name == original and not row.unsourced
        source = f"{'not enforced: ' * (not required)}{row.source}, {row.date}"
        only = row.platforms[0] if len(row.platforms) == 1 else None
        return ImageBuild(
            name=words,
            code=tuple((arch, tuple(map(parse_target, texts))) for arch, texts in sorted(row.code.items())),
            platform=ImagePlatform(only, None, required, f"{words}; {source}") if only else None,
            required=required,
            evidence=source,
        )


def _release(match: re.Match[str]) -> tuple[Version, Version]:
    """Give the release and the CUDA in a tag; the second is empty if the tag does not have it."""
    groups = match.groupdict()
    return parse_version(match["ver"]), cuda_in_tag(match) if groups.get("cuda") or groups.get("cu") else ()


class FrameworkBuilds(msgspec.Struct, frozen=True):
    """The table of image_code.yaml; the first family that matches an image and has a row for its tag counts."""

    frameworks: list[_Framework]

    def build(self, image: str) -> ImageBuild | None:
        """Give what an image was compiled for, by its reference; None if the table does not know it."""
        name, tag = split_reference(image)
        return next((build for family in self.frameworks if (build := family.build(name, tag))), None)

    def nearest_image(self, image: str, capability: Version, architecture: str | None) -> str | None:
        """Find the tag of the same repository with code for a GPU: the next newer one, else the newest older one."""
        name, tag = split_reference(image)
        for family in self.frameworks:
            if (match := family.match(name, tag)) is None:
                continue
            tags = (known.format_map(match.groupdict("")) for build in family.builds for known in build.tags)
            fitting = {
                _release(other): other[0]
                for other in (family.match(name, known) for known in tags)
                if other and (build := family.build(name, other[0])) and build.required
                if build.targets(architecture) and build.serves(capability, architecture)
            }
            newer = [release for release in fitting if release[0] >= _release(match)[0]]
            if fitting:
                return f"{name}:{fitting[min(newer) if newer else max(fitting)]}"
        return None
