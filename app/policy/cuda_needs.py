# SPDX-License-Identifier: Apache-2.0
"""The CUDA need of each container, and the evidence for it.

The first of these counts: the container's environment, the image table of a policy, and its image tag. Otherwise its
need is unknown. If the pod has an annotation for CUDA, that replaces the evidence of its containers.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from app.knowledge.cuda_compatibility import CUDANeed, RequireExpression, Toolkit, lowest_cuda, parse_require
from app.knowledge.image_code import ImageBuild
from app.knowledge.images import Branches, ImageCUDA, ImagePlatform
from app.knowledge.tables import Knowledge
from app.kube.pods import Container
from app.values.versions import Version, major_minor, show_version

_TRUE = {"1", "t", "T", "TRUE", "true", "True"}
"""The values that Go's strconv.ParseBool reads as true (nvidia-container-toolkit internal/config/image)."""
_REQUIRE = "NVIDIA_REQUIRE_"
_JETPACK = "NVIDIA_REQUIRE_JETPACK"
"""Variables with this prefix are no CUDA requirements (NVIDIA/nvidia-container-toolkit internal/config/image)."""


@dataclass(frozen=True, slots=True)
class ImageRow:
    """One row of the image table of `policy`: images whose reference matches were built with this CUDA version.

    `compat` says that they contain the cuda-compat package of that version.
    """

    pattern: re.Pattern[str]
    cuda: Version
    policy: str
    compat: bool = False


def minimum_need(cuda: Version, evidence: str, knowledge: Knowledge, compat: bool = False) -> CUDANeed:
    """Compile the need for at least this CUDA version, as an annotation, an environment or a policy states it.

    Forward compatibility depends on a package in the image, so that it is assumed only if `compat` is set.
    """
    toolkit = knowledge.cuda.toolkit(cuda)
    forward = _beyond_minor_version(toolkit, _branches_from_first_driver(toolkit.forward_branches)) if compat else ()
    return CUDANeed(
        cuda=cuda,
        minimum=True,
        native=toolkit.native,
        minor_version=toolkit.minor_version,
        requires=None,
        forward=forward,
        capability_floor=None,
        unsupported=knowledge.cuda.unsupported(cuda),
        targets=None,
        requirement=(),
        evidence=evidence + _forward_evidence(cuda, forward),
    )


def _branches_from_first_driver(branches: frozenset[int]) -> tuple[tuple[int, Version], ...]:
    return tuple((branch, (branch,)) for branch in sorted(branches))


def _beyond_minor_version(toolkit: Toolkit, forward: Branches) -> Branches:
    """Leave out the branches on which minor-version compatibility holds anyway, and duplicates."""
    floor = toolkit.minor_version or toolkit.native
    return tuple((branch, lowest) for branch, lowest in dict.fromkeys(forward) if lowest < floor)


def container_needs(
    containers: tuple[Container, ...], rows: tuple[ImageRow, ...], from_image: bool, knowledge: Knowledge
) -> Iterator[tuple[CUDANeed, bool]]:
    """List the need of each container for which there is evidence, and whether it is required or only preferred."""
    for container in containers:
        lifted = container.variable("NVIDIA_DISABLE_REQUIRE") in _TRUE
        expression = () if lifted else _environment(container)
        row = next((row for row in rows if row.pattern.fullmatch(container.image)), None)
        if expression:
            yield _environment_need(container, expression, knowledge), True
        elif row is not None:
            evidence = f"container {container.name}: image table of policy {row.policy}"
            yield minimum_need(row.cuda, evidence, knowledge, row.compat), True
        elif from_image and (inferred := knowledge.images.infer(container.image)) is not None:
            yield _image_need(inferred, container, knowledge, lifted), inferred.required and not lifted


def image_platforms(containers: tuple[Container, ...], knowledge: Knowledge) -> Iterator[ImagePlatform]:
    """List the platforms that the images of containers are built for, each once, the certain ones before the others."""
    platforms = {image: _platform(image, knowledge) for image in {container.image for container in containers}}
    shown = [
        replace(platform, evidence=f"container {container.name}: {platform.evidence}")
        for container in containers
        if (platform := platforms[container.image])
    ]
    yield from dict.fromkeys(sorted(shown, key=lambda platform: not platform.required))


def _platform(image: str, knowledge: Knowledge) -> ImagePlatform | None:
    """Give the platform of an image: by a row about its tag, else by its publisher's builds, else by its words."""
    platform, build = knowledge.images.platform(image), knowledge.image_code.build(image)
    return platform if platform and platform.required else (build and build.platform) or platform


def image_builds(containers: Iterable[Container], knowledge: Knowledge) -> Iterator[ImageBuild]:
    """List what the frameworks in the images of containers were compiled for, each once."""
    built = ((container.name, knowledge.image_code.build(container.image)) for container in containers)
    named = (replace(build, evidence=f"container {name}: {build.evidence}") for name, build in built if build)
    yield from dict.fromkeys(named)


def _environment(container: Container) -> RequireExpression:
    names = {name for name, _ in container.env if name.startswith(_REQUIRE) and not name.startswith(_JETPACK)}
    return parse_require(container.variable(name) or "" for name in sorted(names))


def _environment_need(container: Container, expression: RequireExpression, knowledge: Knowledge) -> CUDANeed:
    """Compile the requirement in the environment; without a `cuda` clause any driver is native for it."""
    cuda = lowest_cuda(expression)
    evidence = f"container {container.name}: environment NVIDIA_REQUIRE_*"
    if cuda is not None:
        return replace(minimum_need(cuda, evidence, knowledge), requirement=expression)
    return CUDANeed((0,), True, (0,), None, None, (), None, frozenset(), None, expression, evidence)


def _image_need(inferred: ImageCUDA, container: Container, knowledge: Knowledge, lifted: bool) -> CUDANeed:
    toolkit = knowledge.cuda.toolkit(inferred.cuda)
    package = _branches_from_first_driver(toolkit.forward_branches) if inferred.carries_compat else ()
    forward = _beyond_minor_version(toolkit, (*package, *inferred.forward))
    variable = inferred.compat_variable
    loads = not variable or (container.variable(variable) or "").strip().lower() in ("1", "true")
    depends = variable if forward and not loads else ""
    forced = inferred.loads_compat and loads and container.variable("LD_LIBRARY_PATH") is None
    evidence = (
        f"container {container.name}: image {inferred.evidence}{_forward_evidence(inferred.cuda, forward, depends)}"
        + "; on GeForce, the compat library that it always loads fails with an older driver (CUDA error 804)" * forced
    )
    return CUDANeed(
        cuda=inferred.cuda,
        minimum=False,
        native=inferred.native or toolkit.native,
        minor_version=toolkit.minor_version,
        requires=None if lifted else inferred.requires,
        forward=forward,
        forward_depends=bool(depends),
        forced_compat=forced,
        capability_floor=inferred.capability_floor,
        unsupported=knowledge.cuda.unsupported(inferred.cuda),
        targets=None if knowledge.image_code.build(container.image) else knowledge.cuda.targets(inferred.cuda),
        requirement=(),
        evidence=f"{evidence}, disabled by NVIDIA_DISABLE_REQUIRE" if lifted else evidence,
    )


def _forward_evidence(cuda: Version, forward: Branches, depends: str = "") -> str:
    """Describe the driver branches that forward compatibility adds, and the policy field that decides about it.

    `depends` is the variable without which the container itself does not load the package.
    """
    if not forward:
        return ""
    package = f"cuda-compat-{show_version(major_minor(cuda)).replace('.', '-')}"
    branches = ", ".join(f"R{branch}" for branch in sorted({branch for branch, _ in forward}))
    condition = f" if {depends}=1 is set or the container toolkit of the node enables it" if depends else ""
    return f"; its {package} also allows driver {branches} on data-centre GPUs{condition} (policy field cuda.accept)"


def show_need(need: CUDANeed) -> str:
    """Write a need and its evidence in words."""
    return f"CUDA {'>= ' if need.minimum else ''}{show_version(need.cuda)} ({need.evidence})"
