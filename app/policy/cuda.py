# SPDX-License-Identifier: Apache-2.0
"""CUDA needs with their evidence: annotation → environment → policy table → image tag → unknown (first hit counts)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from app.knowledge.cuda import CUDANeed
from app.knowledge.images import Branches, ImageCUDA
from app.knowledge.require import Expression, lowest_cuda, parse_require
from app.knowledge.tables import Knowledge
from app.pods import Container
from app.versions import Version, show_version

_TRUE = {"1", "t", "T", "TRUE", "true", "True"}
"""What Go's strconv.ParseBool reads as true (nvidia-container-toolkit internal/config/image)."""
_REQUIRE = "NVIDIA_REQUIRE_"
_JETPACK = "NVIDIA_REQUIRE_JETPACK"
"""The toolkit leaves these out (facts: image_cuda env, several_variables)."""


@dataclass(frozen=True, slots=True)
class ImageRow:
    """One row of a policy's image table: images whose reference matches were built with this CUDA."""

    pattern: re.Pattern[str]
    cuda: Version
    policy: str


def minimum_need(cuda: Version, evidence: str, knowledge: Knowledge) -> CUDANeed:
    """Compile "at least this CUDA must run": the word of an annotation, an environment or a policy."""
    toolkit = knowledge.cuda.toolkit(cuda)
    return CUDANeed(
        cuda=cuda,
        minimum=True,
        native=toolkit.native,
        minor_version=toolkit.minor_version,
        alternatives=None,
        forward=_any_driver_of(toolkit.forward_branches),
        capability_floor=None,
        unsupported=knowledge.cuda.unsupported(cuda, floor_only=True),
        requirement=(),
        evidence=evidence,
    )


def _any_driver_of(branches: frozenset[int]) -> tuple[tuple[int, Version], ...]:
    return tuple((branch, (branch,)) for branch in sorted(branches))


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
            yield (
                minimum_need(row.cuda, f"container {container.name}: image table of policy {row.policy}", knowledge),
                True,
            )
        elif from_image and (inferred := knowledge.images.infer(container.image)) is not None:
            yield _image_need(inferred, container, knowledge, lifted), inferred.hard and not lifted


def _environment(container: Container) -> Expression:
    named = {name for name, _ in container.env if name.startswith(_REQUIRE) and not name.startswith(_JETPACK)}
    return parse_require(container.variable(name) or "" for name in sorted(named))


def _environment_need(container: Container, expression: Expression, knowledge: Knowledge) -> CUDANeed:
    """Compile the environment's requirement; without a `cuda` clause no toolkit is named and any driver is native."""
    cuda = lowest_cuda(expression)
    evidence = f"container {container.name}: environment NVIDIA_REQUIRE_*"
    if cuda is not None:
        return replace(minimum_need(cuda, evidence, knowledge), requirement=expression)
    return CUDANeed((0,), True, (0,), None, None, (), None, frozenset(), expression, evidence)


def _image_need(inferred: ImageCUDA, container: Container, knowledge: Knowledge, lifted: bool) -> CUDANeed:
    toolkit = knowledge.cuda.toolkit(inferred.cuda)
    need = CUDANeed(
        cuda=inferred.cuda,
        minimum=False,
        native=inferred.native or toolkit.native,
        minor_version=toolkit.minor_version,
        alternatives=_with_own_branch(inferred, toolkit.native),
        forward=tuple(dict.fromkeys((*_any_driver_of(toolkit.forward_branches), *inferred.forward))),
        capability_floor=inferred.capability_floor,
        unsupported=knowledge.cuda.unsupported(inferred.cuda, floor_only=False),
        requirement=(),
        evidence=f"container {container.name}: image {inferred.evidence}",
    )
    if not lifted:
        return need
    return replace(need, alternatives=None, evidence=f"{need.evidence}, lifted by NVIDIA_DISABLE_REQUIRE")


def _with_own_branch(inferred: ImageCUDA, native: Version) -> Branches | None:
    """Add the toolkit's own driver branch to those an image's environment names: `cuda>=X.Y` holds on all of it.

    A release note's list (a month's) names its branches whole, and is left as it is.
    """
    if inferred.alternatives is None or inferred.by_month:
        return inferred.alternatives
    listed = any(branch == native[0] for branch, _ in inferred.alternatives)
    return inferred.alternatives if listed else (*inferred.alternatives, (native[0], (native[0],)))


def show_need(need: CUDANeed) -> str:
    """Write a need for a person."""
    return f"CUDA {'>= ' if need.minimum else ''}{show_version(need.cuda)} ({need.evidence})"
