# SPDX-License-Identifier: Apache-2.0
"""The facts that an image carries: the platforms of its index, and the environment of its config for each of them.

A container starts with the environment of the image, over which that of the pod is laid by name. The container toolkit
reads the result: NVIDIA_REQUIRE_*, NVIDIA_DISABLE_REQUIRE, and CUDA_VERSION, which stands for `cuda>=X.Y` where
NVIDIA_REQUIRE_CUDA is not set (NVIDIA/nvidia-container-toolkit internal/config/image/cuda_image.go).
"""

from collections.abc import Iterable, Mapping
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
"""Architectures of the machines that have GPUs of NVIDIA."""


Environment = tuple[tuple[str, str | None], ...]
"""Variables as (name, value); value None where it is not known, and the last of one name counts."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ImageFacts:
    """What an image carries, by the digest of its index or manifest.

    `environments` are the variables of each platform that are read, by its CPU architecture. It is empty if no platform
    runs Linux.
    """

    digest: str
    environments: tuple[tuple[str, Environment], ...]

    def architecture(self) -> str | None:
        """Give the only CPU architecture that the image runs on; None if it runs on each that GPU machines have."""
        built = [name for name, _ in self.environments]
        with_gpus = [name for name in built if name in GPU_ARCHITECTURES]
        return (with_gpus or built)[0] if built and len(with_gpus) < len(GPU_ARCHITECTURES) else None

    def by_architecture(self) -> tuple[tuple[str, Environment], ...]:
        """List the environments that differ, each with the architecture on which it counts, empty for any."""
        found = [pair for pair in self.environments if pair[0] in GPU_ARCHITECTURES] or self.environments[:1]
        if len({environment for _, environment in found}) <= 1:
            return tuple(("", environment) for _, environment in found[:1])
        return tuple(found)


def kept_variables(variables: Iterable[str]) -> Environment:
    """Keep what is read of a config's `Env`, a list of NAME=value."""
    pairs = (text.partition("=") for text in variables)
    kept = (CUDA_VERSION, DISABLE, COMPAT_PACKAGE)
    return tuple((name, value) for name, _, value in pairs if name in kept or is_requirement(name))


def is_requirement(name: str) -> bool:
    """Tell whether a variable is a requirement."""
    return name.startswith(_REQUIRE) and not name.startswith(_JETPACK)


def merged_environment(image: Environment, pod: Environment) -> dict[str, str | None]:
    """Lay the variables of a container over those of its image."""
    return {**dict(image), **dict(pod)}


def requirement_of(environment: Mapping[str, str | None]) -> RequireExpression:
    """Read the requirement with which a container starts; an unknown value requires nothing."""
    values = [environment[name] or "" for name in sorted(filter(is_requirement, environment))]
    version = cuda_version(environment)
    if version and environment.get("NVIDIA_REQUIRE_CUDA", "") == "":
        values.append(f"cuda>={show_version(major_minor(version))}")
    return parse_require(values)


def cuda_version(environment: Mapping[str, str | None]) -> Version | None:
    """Read CUDA_VERSION; None if it is unset or no version."""
    try:
        return parse_version((environment.get(CUDA_VERSION) or "").removeprefix("v"))
    except VersionError:
        return None


def is_lifted(environment: Mapping[str, str | None]) -> bool:
    """Tell whether NVIDIA_DISABLE_REQUIRE disables the requirement."""
    return environment.get(DISABLE) in TRUE
