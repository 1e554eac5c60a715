# SPDX-License-Identifier: Apache-2.0
"""Images as publishers make them: their environments, and their documents in a registry."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.knowledge.image_configs import ImageFacts, kept_variables

INDEX_TYPE, MANIFEST_TYPE = (f"application/vnd.oci.image.{kind}.v1+json" for kind in ("index", "manifest"))
BRANDS = tuple("tesla unknown nvidia nvidiartx geforce geforcertx quadro quadrortx titan titanrtx".split(" "))  # noqa: SIM905


def require(cuda: str, *branches: int, brands: Sequence[str] = BRANDS) -> str:
    """Write NVIDIA_REQUIRE_CUDA as nvidia/cuda has it (gitlab.com/nvidia/container-images/cuda dist)."""
    named = (f"brand={brand},driver>={one},driver<{one + 1}" for one in branches for brand in brands)
    return " ".join((f"cuda>={cuda}", *named))


CUDA_12_4 = (
    "PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/bin:/bin",
    f"NVIDIA_REQUIRE_CUDA={require('12.4', 470, 525, 535)}",
    "NV_CUDA_CUDART_VERSION=12.4.127-1",
    "NV_CUDA_COMPAT_PACKAGE=cuda-compat-12-4",
    "CUDA_VERSION=12.4.1",
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
)
"""nvidia/cuda:12.4.1-base-ubuntu22.04 for amd64, and all that is built on it."""
CUDA_12_4_ARM = tuple(
    "NVIDIA_REQUIRE_CUDA=cuda>=12.4" if one.startswith("NVIDIA_REQUIRE") else one for one in CUDA_12_4
)
"""The same for arm64, whose list names no branches."""
NGC = ("CUDA_VERSION=12.9.1.010", "NVIDIA_REQUIRE_CUDA=cuda>=9.0", "NVIDIA_PRODUCT_NAME=PyTorch")
"""nvcr.io/nvidia/pytorch:25.06-py3, whose requirement says less than its toolkit needs."""


def facts(digest: str = "sha256:" + "1" * 64, **environments: tuple[str, ...]) -> ImageFacts:
    """Make the facts of an image by CPU architecture."""
    platforms = ((name, tuple(kept_variables(env).items())) for name, env in environments.items())
    return ImageFacts(digest, tuple(platforms))


@dataclass
class Published:
    """The documents of one image: `blobs` by digest, `manifests` by digest with media type, and the top digest."""

    top: str = ""
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)


def digest_of(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def publish(environments: Mapping[str, tuple[str, ...]], index: bool = True) -> Published:
    """Make the documents of an image with an environment for each CPU architecture; one alone may have no index."""
    made, entries = Published(), []
    for architecture, variables in environments.items():
        document = {"architecture": architecture, "os": "linux", "config": {"Env": list(variables)}, "rootfs": {}}
        config = _blob(made, {**document, "history": [{"created_by": "RUN apt-get install"}] * 20})
        made.top = _manifest(
            made,
            MANIFEST_TYPE,
            {"config": {"mediaType": "application/vnd.oci.image.config.v1+json", **config}, "layers": []},
        )
        size = len(made.manifests[made.top][1])
        platform = {"architecture": architecture, "os": "linux"}
        entries.append({"mediaType": MANIFEST_TYPE, "digest": made.top, "size": size, "platform": platform})
    if index:
        attestation = {**entries[0], "platform": {"architecture": "unknown", "os": "unknown"}}
        made.top = _manifest(made, INDEX_TYPE, {"manifests": [*entries, attestation]})
    return made


def _blob(made: Published, document: Any) -> dict[str, Any]:
    body = json.dumps(document).encode()
    made.blobs[digest_of(body)] = body
    return {"digest": digest_of(body), "size": len(body)}


def _manifest(made: Published, media_type: str, document: dict[str, Any]) -> str:
    body = json.dumps({"schemaVersion": 2, "mediaType": media_type, **document}).encode()
    made.manifests[digest_of(body)] = (media_type, body)
    return digest_of(body)
