# SPDX-License-Identifier: Apache-2.0
"""References to images, and the documents of the OCI distribution API: index, manifest and config.

The grammar of references is that of distribution/reference (reference/reference.go and normalize.go), the documents
those of opencontainers/image-spec and of Docker's registry (schema 2). Everything here comes from strangers: sizes are
limited before this module sees it, and what does not have the form of the specification raises SourceError.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from sys import intern
from typing import Annotated

import msgspec
from msgspec import Meta

from app.knowledge.image_configs import GPU_ARCHITECTURES, kept_variables
from app.kube.pod_limits import LONGEST_IMAGE
from app.kube.pods import check_variables
from app.values.computations import T
from app.values.errors import BadInput, SourceError

DOCKER_HUB = "docker.io"
HOST = r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:]{2,39}\])(?::[0-9]{1,5})?"
_NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:(?P<host>{HOST})/)?(?P<path>{_NAME}(?:/{_NAME})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_DOCKER = "docker.distribution.manifest"
_KINDS = ("oci.image.index.v1", "oci.image.manifest.v1", f"{_DOCKER}.list.v2", f"{_DOCKER}.v2")
ACCEPT = ", ".join(f"application/vnd.{kind}+json" for kind in _KINDS)
MOST_PLATFORMS = 64
"""Entries of an index; official images have 20, half of them attestations."""

Digest = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
Word = Annotated[str, Meta(pattern=r"^[a-z0-9_-]{0,63}\Z")]
_TokenText = Annotated[str, Meta(pattern=r"^[\x21-\x7e]{0,16384}\Z")]


@dataclass(frozen=True, slots=True)
class Reference:
    """An image reference; `version` is its digest if it has one, so that it is `pinned` to one image, else its tag."""

    registry: str
    repository: str
    version: str
    pinned: bool


def read_reference(image: str) -> Reference:
    """Read an image reference as container runtimes do: without a host it is one of Docker Hub.

    Raises SourceError.
    """
    match = _REFERENCE.fullmatch(image) if len(image) <= LONGEST_IMAGE else None
    if match is None:
        raise SourceError(f"image: got {image[:80]!r}, wants one such as registry.example/team/name:tag", "not_allowed")
    host, path = match["host"], match["path"]
    if host and not ("." in host or ":" in host or host == "localhost"):
        host, path = None, f"{host}/{path}"
    host = DOCKER_HUB if host in (None, f"index.{DOCKER_HUB}") else host
    if host == DOCKER_HUB and "/" not in path:
        path = f"library/{path}"
    return Reference(host, path, match["digest"] or match["tag"] or "latest", match["digest"] is not None)


def decode(body: bytes, kind: type[T]) -> T:
    """Read a document of a kind.

    Raises SourceError.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"{kind.__name__}: {str(error)[:160]}", "malformed") from error


class IndexPlatform(msgspec.Struct):
    """The platform of an entry of an index, or of a config."""

    architecture: Word = ""
    os: Word = "linux"


class Descriptor(msgspec.Struct):
    """A reference by digest to another document."""

    digest: Digest
    platform: IndexPlatform | None = None


class Manifest(msgspec.Struct):
    """An index, which has `manifests`, or the manifest of one platform, which has `config`."""

    manifests: Annotated[list[Descriptor], Meta(max_length=MOST_PLATFORMS)] | None = None
    config: Descriptor | None = None


class Parameters(msgspec.Struct):
    """The execution parameters of a config."""

    Env: Annotated[list[str], Meta(max_length=4_096)] | None = None


class Config(IndexPlatform):
    """The config of an image for one platform."""

    config: Parameters | None = None


def variables_of(config: Config) -> dict[str, str]:
    """Give the variables of a config that are read.

    Raises SourceError for more than a pod may have.
    """
    variables = kept_variables(config.config.Env or () if config.config else ())
    try:
        check_variables(tuple(variables.items()))
    except BadInput as error:
        raise SourceError(f"config: {error}", "malformed") from error
    return {intern(name): intern(value) for name, value in variables.items()}


def platforms_to_read(manifest: Manifest) -> list[Descriptor]:
    """List the entries of an index whose configs are read: the first of each architecture of GPU machines.

    Attestations have the platform unknown (moby/buildkit).
    """
    entries = manifest.manifests or []
    linux = [one for one in entries if one.platform and one.platform.os == "linux"]
    first = {one.platform.architecture: one for one in reversed(linux) if one.platform}
    return [first[name] for name in GPU_ARCHITECTURES if name in first] or (linux or entries)[:1]


class BearerToken(msgspec.Struct):
    """The answer of a token service (distribution docs, spec/auth/token)."""

    token: _TokenText = ""
    access_token: _TokenText = ""


class Credential(msgspec.Struct):
    """An entry of `auths` of a docker config."""

    auth: str = ""
    username: str = ""
    password: str = ""


class DockerConfig(msgspec.Struct):
    """The file of `docker login`, and the content of a Secret of type kubernetes.io/dockerconfigjson."""

    auths: dict[str, Credential] = {}


def read_credentials(body: bytes) -> dict[str, str]:
    """Give `user:password` by registry, or by a prefix of host and repository.

    Entries without a password, as those of a credential helper, are left out. Raises SourceError.
    """
    found = dict[str, str]()
    for key, entry in decode(body, DockerConfig).auths.items():
        prefix = re.sub(r"^https?://|(/v[12])?/?$", "", key)
        prefix = re.sub(r"^(index|registry-1)\.(?=docker\.io(/|$))", "", prefix)
        try:
            written = base64.b64decode(entry.auth, validate=True).decode() or f"{entry.username}:{entry.password}"
        except ValueError:
            continue
        if all(written.partition(":")):
            found[prefix] = written
    return found


def credential_for(credentials: Mapping[str, str], reference: Reference) -> str:
    """Give the credential with the longest prefix of a reference, as podman and the kubelet do; empty without any."""
    parts = [reference.registry, *reference.repository.split("/")]
    keys = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((credentials[key] for key in keys if key in credentials), "")
