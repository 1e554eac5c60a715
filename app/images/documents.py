# SPDX-License-Identifier: Apache-2.0
"""References to images, and the documents of the OCI distribution API: index, manifest and config.

The grammar of references is that of distribution/reference (reference/reference.go and normalize.go), the documents
those of opencontainers/image-spec and of Docker's registry (schema 2). Everything here comes from strangers: sizes are
limited before this module sees it, and what does not have the form of the specification raises RegistryError.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from app.knowledge.image_configs import GPU_ARCHITECTURES, Environment, kept_variables
from app.kube.pod_limits import LONGEST_IMAGE, MOST_CLAUSES, VARIABLES_CHARACTERS
from app.values.errors import BadInput, RegistryError

DOCKER_HUB = "docker.io"
_HOST = r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:]{2,39}\])(?::[0-9]{1,5})?"
_REFERENCE = re.compile(
    rf"(?:(?P<host>{_HOST})/)?(?P<path>[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
ACCEPT = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))
DOCUMENT_BYTES = 1 << 20
"""Bytes of an index, a manifest or a config. The largest of NVIDIA's have some 60 kB, by their history of layers; the
distribution specification has registries accept manifests of 4 MiB."""
MOST_PLATFORMS = 64
"""Entries of an index; official images have 20, half of them attestations."""

Digest = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
Word = Annotated[str, Meta(max_length=64)]


@dataclass(frozen=True, slots=True)
class Reference:
    """An image reference; `version` is a digest if it has one, else its tag."""

    registry: str
    repository: str
    version: str

    @property
    def pinned(self) -> bool:
        """Tell whether the reference has a digest, so that it always means the same image."""
        return self.version.startswith("sha256:")


def read_reference(image: str) -> Reference:
    """Read an image reference as container runtimes do: without a host it is one of Docker Hub.

    Raises BadInput.
    """
    match = _REFERENCE.fullmatch(image) if len(image) <= LONGEST_IMAGE else None
    if match is None:
        raise BadInput(f"image: got {image[:80]!r}, wants a reference such as registry.example/team/name:tag")
    host, path = match["host"], match["path"]
    if host and not ("." in host or ":" in host or host == "localhost"):
        host, path = None, f"{host}/{path}"
    host = DOCKER_HUB if host in (None, f"index.{DOCKER_HUB}") else host
    if host == DOCKER_HUB and "/" not in path:
        path = f"library/{path}"
    return Reference(host, path, match["digest"] or match["tag"] or "latest")


class EntryPlatform(msgspec.Struct):
    """The platform of an entry of an index."""

    architecture: Word = ""
    os: Word = "linux"


class Descriptor(msgspec.Struct):
    """A reference by digest to another document."""

    digest: Digest
    size: Annotated[int, Meta(ge=0)] = 0
    platform: EntryPlatform | None = None


class Manifest(msgspec.Struct):
    """An index, which has `manifests`, or the manifest of one platform, which has `config`."""

    manifests: Annotated[list[Descriptor], Meta(max_length=MOST_PLATFORMS)] | None = None
    config: Descriptor | None = None


class ConfigVariables(msgspec.Struct):
    """The execution parameters of a config, of which only the environment is read."""

    Env: Annotated[list[str], Meta(max_length=4_096)] | None = None


class Config(msgspec.Struct):
    """The config of an image for one platform."""

    architecture: Word = ""
    os: Word = "linux"
    config: ConfigVariables | None = None


def read_manifest(body: bytes) -> Manifest:
    """Read an index or a manifest.

    Raises RegistryError.
    """
    manifest: Manifest = _decode(body, Manifest, "manifest")
    return manifest


def read_config(body: bytes) -> tuple[str, Environment]:
    """Read the CPU architecture and the variables of a config; the architecture of one for another system is empty.

    Raises RegistryError.
    """
    config: Config = _decode(body, Config, "config")
    variables = kept_variables(config.config.Env or () if config.config else ())
    if sum(len(name) + len(value or "") for name, value in variables) > VARIABLES_CHARACTERS:
        raise RegistryError("malformed", f"config: variables of more than {VARIABLES_CHARACTERS} characters")
    clauses = sum(value.count(",") + len(value.split()) for name, value in variables if value and "_REQUIRE_" in name)
    if clauses > MOST_CLAUSES:
        raise RegistryError("malformed", f"config: NVIDIA_REQUIRE_* with {clauses} comparisons, wants {MOST_CLAUSES}")
    kept = tuple((intern(name), intern(value or "")) for name, value in variables)
    return config.architecture if config.os == "linux" else "", kept


def platforms_to_read(manifest: Manifest) -> list[Descriptor]:
    """List the entries of an index whose configs are read: the first of each architecture of GPU machines.

    Attestations have the platform unknown (moby/buildkit).
    """
    linux = [one for one in manifest.manifests or () if one.platform and one.platform.os == "linux"]
    first = {one.platform.architecture: one for one in reversed(linux) if one.platform}
    return [first[name] for name in GPU_ARCHITECTURES if name in first] or linux[:1] or (manifest.manifests or [])[:1]


class Credential(msgspec.Struct):
    """An entry of `auths` of a docker config."""

    auth: str = ""
    username: str = ""
    password: str = ""


class DockerConfig(msgspec.Struct):
    """The file of `docker login`, and the content of a Secret of type kubernetes.io/dockerconfigjson."""

    auths: dict[str, Credential] = {}
    credHelpers: dict[str, str] = {}  # noqa: N815  # Docker's spelling
    credsStore: str = ""  # noqa: N815  # Docker's spelling


def credentials_of(document: DockerConfig) -> Mapping[str, tuple[str, str]]:
    """Give user name and password by registry, or by a prefix of host and repository.

    Entries without a password, as those of a credential helper, are left out.
    """
    return dict(_credentials(document))


def _credentials(document: DockerConfig) -> Iterator[tuple[str, tuple[str, str]]]:
    for key, entry in document.auths.items():
        user, password = entry.username, entry.password
        if entry.auth:
            try:
                user, _, password = base64.b64decode(entry.auth, validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                continue
        host, slash, path = re.sub(r"^https?://", "", key).partition("/")
        path = re.sub(r"^v[12]/?|/$", "", path)
        host = DOCKER_HUB if host in (f"index.{DOCKER_HUB}", f"registry-1.{DOCKER_HUB}") else host
        if user and password:
            yield (f"{host}/{path}" if slash and path else host), (user, password.rstrip("\0"))


def credential_for(credentials: Mapping[str, tuple[str, str]], reference: Reference) -> tuple[str, str] | None:
    """Give the credential with the longest prefix of a reference, as podman and the kubelet do; None without any."""
    parts = [reference.registry, *reference.repository.split("/")]
    keys = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((credentials[key] for key in keys if key in credentials), None)


def _decode(body: bytes, kind: Any, name: str) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RegistryError("malformed", f"{name}: {str(error)[:160]}") from error
