# SPDX-License-Identifier: Apache-2.0
"""CUDA needs with their evidence: annotation → environment → image tag → unknown (first hit counts)."""

from collections.abc import Iterator
from dataclasses import replace

from app.knowledge.cuda import CUDANeed
from app.knowledge.images import ImageCUDA
from app.knowledge.tables import Knowledge
from app.pods import Container
from app.versions import Version, show_version

_TRUE = {"1", "t", "T", "TRUE", "true", "True"}
"""What Go's strconv.ParseBool reads as true (nvidia-container-toolkit internal/config/image)."""


def minimum_need(cuda: Version, evidence: str, knowledge: Knowledge) -> CUDANeed:
    """Compile "at least this CUDA must run": an annotation's or a policy's word."""
    toolkit = knowledge.cuda.toolkit(cuda)
    return CUDANeed(
        cuda=cuda,
        minimum=True,
        native=toolkit.native,
        minor_version=toolkit.minor_version,
        alternatives=None,
        forward=tuple((branch, (branch,)) for branch in sorted(toolkit.forward_branches)),
        capability_floor=None,
        unsupported=knowledge.cuda.unsupported(cuda, floor_only=True),
        evidence=evidence,
    )


def image_needs(containers: tuple[Container, ...], knowledge: Knowledge) -> Iterator[tuple[CUDANeed, bool]]:
    """Infer the needs of the containers that ask for a GPU from their images; the flag: it is required."""
    for container in containers:
        inferred = knowledge.images.infer(container.image) if container.image else None
        if inferred is None:
            continue
        lifted = container.variable("NVIDIA_DISABLE_REQUIRE") in _TRUE
        yield _image_need(inferred, container, knowledge, lifted), inferred.hard and not lifted


def _image_need(inferred: ImageCUDA, container: Container, knowledge: Knowledge, lifted: bool) -> CUDANeed:
    toolkit = knowledge.cuda.toolkit(inferred.cuda)
    carried = tuple((branch, (branch,)) for branch in sorted(toolkit.forward_branches))
    need = CUDANeed(
        cuda=inferred.cuda,
        minimum=False,
        native=inferred.native or toolkit.native,
        minor_version=toolkit.minor_version,
        alternatives=inferred.alternatives,
        forward=(*carried, *inferred.forward),
        capability_floor=inferred.capability_floor,
        unsupported=knowledge.cuda.unsupported(inferred.cuda, floor_only=False),
        evidence=f"container {container.name}: image {inferred.evidence}",
    )
    if not lifted:
        return need
    return replace(need, alternatives=None, evidence=f"{need.evidence}, lifted by NVIDIA_DISABLE_REQUIRE")


def show_need(need: CUDANeed) -> str:
    """Write a need for a person."""
    return f"CUDA {'>= ' if need.minimum else ''}{show_version(need.cuda)} ({need.evidence})"
