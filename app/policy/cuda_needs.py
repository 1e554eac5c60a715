# SPDX-License-Identifier: Apache-2.0
"""CUDA needs with their evidence: annotation → environment → policy table → image tag → unknown (first hit counts)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from app.knowledge.cuda_compatibility import CUDANeed, Toolkit
from app.knowledge.images import Branches, ImageCUDA
from app.knowledge.nvidia_require import Expression, lowest_cuda, parse_require
from app.knowledge.tables import Knowledge
from app.kube.pods import Container
from app.values.versions import Version, release, show_version

_TRUE = {"1", "t", "T", "TRUE", "true", "True"}
"""What Go's strconv.ParseBool reads as true (nvidia-container-toolkit internal/config/image)."""
_REQUIRE = "NVIDIA_REQUIRE_"
_JETPACK = "NVIDIA_REQUIRE_JETPACK"
"""The toolkit leaves these out (NVIDIA/nvidia-container-toolkit internal/config/image)."""


@dataclass(frozen=True, slots=True)
class ImageRow:
    """One row of a policy's image table: images whose reference matches were built with this CUDA.

    `compat`: they carry the cuda-compat package of that CUDA.
    """

    pattern: re.Pattern[str]
    cuda: Version
    policy: str
    compat: bool = False


def minimum_need(cuda: Version, evidence: str, knowledge: Knowledge, compat: bool = False) -> CUDANeed:
    """Compile "at least this CUDA must run": the word of an annotation, an environment or a policy.

    Forward compatibility comes from a package in the image, so that a minimum claims it only where `compat` says so.
    """
    toolkit = knowledge.cuda.toolkit(cuda)
    forward = _older(toolkit, _any_driver_of(toolkit.forward_branches)) if compat else ()
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
        evidence=evidence + _compat(cuda, forward),
    )


def _any_driver_of(branches: frozenset[int]) -> tuple[tuple[int, Version], ...]:
    return tuple((branch, (branch,)) for branch in sorted(branches))


def _older(toolkit: Toolkit, forward: Branches) -> Branches:
    """Leave out the branches on which minor-version compatibility holds anyway, and what is said twice."""
    floor = toolkit.minor_version or toolkit.native
    return tuple((branch, lowest) for branch, lowest in dict.fromkeys(forward) if lowest < floor)


def container_needs(
    containers: tuple[Container, ...], rows: tuple[ImageRow, ...], from_image: bool, knowledge: Knowledge
) -> Iterator[tuple[CUDANeed, bool]]:
    """Find each container's need by its own evidence chain; the flag tells whether it is required."""
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


def _environment(container: Container) -> Expression:
    named = {name for name, _ in container.env if name.startswith(_REQUIRE) and not name.startswith(_JETPACK)}
    return parse_require(container.variable(name) or "" for name in sorted(named))


def _environment_need(container: Container, expression: Expression, knowledge: Knowledge) -> CUDANeed:
    """Compile the environment's requirement; without a `cuda` clause no toolkit is named and any driver is native."""
    cuda = lowest_cuda(expression)
    evidence = f"container {container.name}: environment NVIDIA_REQUIRE_*"
    if cuda is not None:
        return replace(minimum_need(cuda, evidence, knowledge), requirement=expression)
    return CUDANeed((0,), True, (0,), None, None, (), None, frozenset(), None, expression, evidence)


def _image_need(inferred: ImageCUDA, container: Container, knowledge: Knowledge, lifted: bool) -> CUDANeed:
    toolkit = knowledge.cuda.toolkit(inferred.cuda)
    package = _any_driver_of(toolkit.forward_branches) if inferred.carries_compat else ()
    forward = _older(toolkit, (*package, *inferred.forward))
    evidence = f"container {container.name}: image {inferred.evidence}{_compat(inferred.cuda, forward)}"
    return CUDANeed(
        cuda=inferred.cuda,
        minimum=False,
        native=inferred.native or toolkit.native,
        minor_version=toolkit.minor_version,
        requires=None if lifted else inferred.requires,
        forward=forward,
        capability_floor=inferred.capability_floor,
        unsupported=knowledge.cuda.unsupported(inferred.cuda),
        targets=knowledge.cuda.targets(inferred.cuda),
        requirement=(),
        evidence=f"{evidence}, lifted by NVIDIA_DISABLE_REQUIRE" if lifted else evidence,
    )


def _compat(cuda: Version, forward: Branches) -> str:
    """Say what forward compatibility adds, and which policy field decides about it; nothing where it adds nothing."""
    if not forward:
        return ""
    package = f"cuda-compat-{show_version(release(cuda)).replace('.', '-')}"
    branches = ", ".join(f"R{branch}" for branch in sorted({branch for branch, _ in forward}))
    return f", carries {package}: data-centre GPUs on {branches} too (policy field cuda.accept)"


def show_need(need: CUDANeed) -> str:
    """Write a need for a person."""
    return f"CUDA {'>= ' if need.minimum else ''}{show_version(need.cuda)} ({need.evidence})"
