# SPDX-License-Identifier: Apache-2.0
"""The facts that an image carries: the CPU architectures of its index, and the environment of its config.

A container starts with the environment of the image, over which that of the pod is laid by name. The container toolkit
reads the result: NVIDIA_REQUIRE_*, NVIDIA_DISABLE_REQUIRE, and CUDA_VERSION, which stands for `cuda>=X.Y` where
NVIDIA_REQUIRE_CUDA is not set (NVIDIA/nvidia-container-toolkit internal/config/image/cuda_image.go).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.knowledge.cuda_compatibility import RequireExpression, parse_require
from app.values.errors import VersionError
from app.values.versions import Version, major_minor, parse_version, show_version

TRUE = {"1", "t", "T", "TRUE", "true", "True"}
"""The values that Go's strconv.ParseBool reads as true (nvidia-container-toolkit internal/config/image)."""
CUDA_VERSION, DISABLE = "CUDA_VERSION", "NVIDIA_DISABLE_REQUIRE"
COMPAT_PACKAGE = "NV_CUDA_COMPAT_PACKAGE"
"""Set in NVIDIA's images that contain that package (gitlab.com/nvidia/container-images/cuda dist)."""
_REQUIRE, _JETPACK = "NVIDIA_REQUIRE_", "NVIDIA_REQUIRE_JETPACK"
"""Variables with the second prefix are no CUDA requirements (nvidia-container-toolkit internal/config/image)."""
GPU_ARCHITECTURES = ("amd64", "arm64")
"""CPU architectures of the machines that have GPUs of NVIDIA."""

Environment = Mapping[str, str | None]
"""Variables by name; None is a value that is not known."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What an image carries, by the digest of its index or manifest.

    `platforms` are the CPU architectures of GPU machines that it runs on, or else the first that it runs on, each with
    those variables of its environment that are read; none if it does not run on Linux.
    """

    digest: str
    platforms: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]

    @property
    def architectures(self) -> tuple[str, ...]:
        """The CPU architectures of its platforms."""
        return tuple(architecture for architecture, _ in self.platforms)

    @property
    def variables(self) -> dict[str, str]:
        """What is said whichever platform a container has."""
        return accepted_by_one([dict(variables) for _, variables in self.platforms])


def kept_variables(variables: Iterable[str]) -> dict[str, str]:
    """Keep what is read of a config's `Env`, a list of NAME=value of which the last of one name counts."""
    pairs = (text.partition("=") for text in variables)
    kept = (CUDA_VERSION, DISABLE, COMPAT_PACKAGE)
    return {name: value for name, _, value in pairs if name in kept or is_requirement(name)}


def accepted_by_one(platforms: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Join the variables of an image's platforms, so that what starts on one of them is not refused.

    The alternatives of their requirements are put together. Where they differ in CUDA_VERSION or in which requirements
    they have, nothing is said. NVIDIA's images for arm64 name fewer driver branches than those for amd64.
    """
    compared = {(each.get(CUDA_VERSION), *sorted(filter(is_requirement, each))) for each in platforms}
    if len(compared) != 1:
        return {}
    joined = {name: value for each in reversed(platforms) for name, value in each.items()}
    requirements = filter(is_requirement, joined)
    return joined | {name: " ".join(dict.fromkeys(each[name] for each in platforms)) for name in requirements}


def is_requirement(name: str) -> bool:
    """Tell whether a variable is a requirement."""
    return name.startswith(_REQUIRE) and not name.startswith(_JETPACK)


def requirement_of(environment: Environment) -> RequireExpression:
    """Read the requirement with which a container starts; an unknown value requires nothing."""
    values = [environment[name] or "" for name in sorted(filter(is_requirement, environment))]
    version = cuda_version(environment)
    if version and environment.get("NVIDIA_REQUIRE_CUDA", "") == "":
        values.append(f"cuda>={show_version(major_minor(version))}")
    return parse_require(values)


def cuda_version(environment: Environment) -> Version | None:
    """Read CUDA_VERSION; None if it is unset or no version."""
    try:
        return parse_version((environment.get(CUDA_VERSION) or "").removeprefix("v"))
    except VersionError:
        return None
