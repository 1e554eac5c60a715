# SPDX-License-Identifier: Apache-2.0
"""The CUDA need of each container, and the evidence for it.

The first of these counts:

| evidence | with | counts |
|---|---|---|
| the pod's annotation gpu-usher.io/cuda | a minimum, for all containers | always |
| the container's environment | NVIDIA_REQUIRE_*, with those of the image's config that it does not replace | always |
| the image table of a policy | a minimum | always |
| the image's config (app/images) | NVIDIA_REQUIRE_* and CUDA_VERSION | if cuda.fromImage |
| the image's name and tag | the CUDA version of a row of image_cuda.yaml, or in the tag | if cuda.fromImage |

Otherwise the need is unknown. NVIDIA_DISABLE_REQUIRE, of the container or else of the image's config, turns what the
images say into a preference.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from app.knowledge.cuda_compatibility import CUDANeed, RequireExpression, Toolkit, lowest_cuda, named_branches
from app.knowledge.image_code import ImageBuild
from app.knowledge.image_configs import (
    COMPAT_PACKAGE,
    CUDA_VERSION,
    DISABLE,
    TRUE,
    cuda_version,
    is_requirement,
    requirement_of,
)
from app.knowledge.images import Branches, ImageCUDA, ImagePlatform
from app.knowledge.tables import Knowledge
from app.kube.pods import Container
from app.values.versions import Version, major_minor, show_version


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
        evidence=evidence + _unlisted_evidence(cuda, knowledge) + _forward_evidence(cuda, forward),
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
        environment = (container.facts.variables if container.facts else {}) | dict(container.env)
        if container.facts is None:
            environment.pop(CUDA_VERSION, None)  # without the image it is not known whether a requirement replaces it
        lifted = environment.get(DISABLE) in TRUE
        expression = () if lifted else requirement_of(environment)
        row = next((row for row in rows if row.pattern.fullmatch(container.image)), None)
        inferred = knowledge.images.infer(container.image) if from_image else None
        if expression and any(value and is_requirement(name) for name, value in container.env):
            yield _environment_need(container, expression, knowledge, "environment"), True
        elif row is not None:
            evidence = f"container {container.name}: image table of policy {row.policy}"
            yield minimum_need(row.cuda, evidence, knowledge, row.compat), True
        elif from_image and container.facts and (cuda := cuda_version(environment)):
            carried = _carried(cuda, inferred, expression if COMPAT_PACKAGE in environment else None)
            need = _image_need(carried, container, knowledge, lifted, "image's config,")
            yield replace(need, requirement=expression, requirements=_by_platform(container)), not lifted
        elif from_image and expression:
            yield _environment_need(container, expression, knowledge, "image's config,"), True
        elif inferred is not None:
            yield _image_need(inferred, container, knowledge, lifted), inferred.required and not lifted


def _carried(cuda: Version, inferred: ImageCUDA | None, compat_for: RequireExpression | None) -> ImageCUDA:
    """Describe an image by its config, with what the tables know besides of an image of the same CUDA X.Y.

    `compat_for` is its requirement if it carries a cuda-compat package, for the branches that this names.
    """
    same = inferred is not None and major_minor(inferred.cuda) == major_minor(cuda)
    known = inferred if inferred is not None and same else ImageCUDA(cuda, True, "")
    known = replace(known, cuda=cuda, evidence=f"CUDA {show_version(cuda)}", requires=None)
    if compat_for is None:
        return known
    return replace(known, carries_compat=True, forward=known.forward or named_branches(compat_for))


def image_platforms(containers: tuple[Container, ...], knowledge: Knowledge) -> Iterator[ImagePlatform]:
    """List the platforms that the images of containers are built for, each once, the certain ones before the others."""
    shown = [
        replace(platform, evidence=f"container {container.name}: {platform.evidence}")
        for container in {container.image: container for container in reversed(containers)}.values()
        for platform in _platforms_of(container, knowledge)
    ]
    yield from dict.fromkeys(sorted(shown, key=lambda platform: not platform.required))


def _platforms_of(container: Container, knowledge: Knowledge) -> Iterator[ImagePlatform]:
    """Give the platform of an image: as its index says, and otherwise, or for one kind of board, as its name does."""
    named, facts = _platform(container.image, knowledge), container.facts
    if facts is not None and len(facts.architectures) == 1:
        yield ImagePlatform(facts.architectures[0], None, True, "image's config")
    if named is not None and (facts is None or (named.products is not None and named.required)):
        yield named


def _platform(image: str, knowledge: Knowledge) -> ImagePlatform | None:
    """Give the platform of an image: by a row about its tag, else by its publisher's builds, else by its words."""
    platform, build = knowledge.images.platform(image), knowledge.image_code.build(image)
    return platform if platform and platform.required else (build and build.platform) or platform


def image_builds(containers: Iterable[Container], knowledge: Knowledge) -> Iterator[ImageBuild]:
    """List what the frameworks in the images of containers were compiled for, each once."""
    built = ((container.name, knowledge.image_code.build(container.image)) for container in containers)
    named = (replace(build, evidence=f"container {name}: {build.evidence}") for name, build in built if build)
    yield from dict.fromkeys(named)


def _environment_need(
    container: Container, expression: RequireExpression, knowledge: Knowledge, source: str
) -> CUDANeed:
    """Compile the requirement in the environment; without a `cuda` clause any driver is native for it."""
    cuda = lowest_cuda(expression)
    evidence = f"container {container.name}: {source} NVIDIA_REQUIRE_*"
    if cuda is not None:
        need = minimum_need(cuda, evidence, knowledge)
    else:
        need = CUDANeed((0,), True, (0,), None, None, (), None, frozenset(), None, expression, evidence)
    return replace(need, requirement=expression, requirements=_by_platform(container))


def _by_platform(container: Container) -> tuple[tuple[str, RequireExpression], ...]:
    """Give the requirement with which a container starts on each platform of its image, where these differ."""
    platforms = container.facts.platforms if container.facts else ()
    found = tuple((name, requirement_of(dict(variables) | dict(container.env))) for name, variables in platforms)
    return found if len({expression for _, expression in found}) > 1 else ()


def _image_need(
    inferred: ImageCUDA, container: Container, knowledge: Knowledge, lifted: bool, source: str = "image"
) -> CUDANeed:
    toolkit = knowledge.cuda.toolkit(inferred.cuda)
    package = _branches_from_first_driver(toolkit.forward_branches) if inferred.carries_compat else ()
    forward = _beyond_minor_version(toolkit, (*package, *inferred.forward))
    variable = inferred.compat_variable
    loads = not variable or (container.variable(variable) or "").strip().lower() in ("1", "true")
    depends = variable if forward and not loads else ""
    forced = inferred.loads_compat and loads and container.variable("LD_LIBRARY_PATH") is None
    evidence = (
        f"container {container.name}: {source} {inferred.evidence}{_unlisted_evidence(inferred.cuda, knowledge)}"
        f"{_forward_evidence(inferred.cuda, forward, depends)}"
        + "; on GeForce, the compat library that it always loads fails with an older driver (CUDA error 804)"
        * forced
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


def _unlisted_evidence(cuda: Version, knowledge: Knowledge) -> str:
    """Say that no driver of the tables reports a CUDA version, so that the least one is not known; else empty."""
    newest = max(map(major_minor, (*knowledge.cuda.reported.values(), *knowledge.cuda.native)))
    return f"; no known driver has more than CUDA {show_version(newest)}" if major_minor(cuda) > newest else ""


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
