# SPDX-License-Identifier: Apache-2.0
"""Reads images from registries: a client of the OCI distribution API that goes nowhere but where it is allowed.

Users choose references, and so where we connect. RegistryAccess (the operator's file) says which registries are read,
to which other hosts they may refer for a token or a blob, and which of both may have a private address. Every address
is checked when it is connected to, so that a name cannot change in between. Only HTTPS is spoken; nothing is
decompressed.

The digest of each document is computed and compared with the one under which it was asked for.
"""

import asyncio
import base64
import hashlib
import ipaddress
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urljoin, urlsplit

import aiohttp
import msgspec
from aiohttp.abc import ResolveResult
from msgspec import Meta

from app.cluster.scrape import ScrapeClient
from app.images.documents import (
    ACCEPT,
    DOCKER_HUB,
    HOST,
    BearerToken,
    Config,
    Manifest,
    Reference,
    credential_for,
    decode,
    platforms_to_read,
    read_credentials,
    read_reference,
    variables_of,
)
from app.knowledge.image_configs import ImageFacts
from app.values.computations import T
from app.values.errors import BadInput, SourceError

REQUEST_SECONDS, READ_SECONDS = 10.0, 30.0
"""For one answer, and for all of one image. A registry answers within a second (a guess)."""
CLOSE_SECONDS = 0.1
"""For the event loop to close TLS connections, which aiohttp does not wait for (its docs, Graceful Shutdown)."""
DOCUMENT_BYTES, TOKEN_BYTES, FILE_BYTES = 1 << 20, 64 << 10, 1 << 20
"""Bytes of an index, a manifest or a config; of a token; of the operator's files. The largest document of NVIDIA's has
some 60 kB, by its history of layers; the distribution specification has registries accept manifests of 4 MiB."""
MOST_REDIRECTS = 3
"""Redirects of one request; registries send blobs from one other host."""
_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")))
"""Addresses of clouds' metadata services that are not link-local: AWS, Alibaba, Azure, Oracle. Never connected to."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
Hosts = frozenset[Annotated[str, Meta(pattern=rf"^{HOST}\Z")]]


class RegistryAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The operator's file: hosts as in references, with their port if they have one.

    `redirects` are further hosts to which registries may refer. `private` are hosts of both whose addresses need not be
    public. `ca` is a file of further CAs, `credentials` one of a Secret of type kubernetes.io/dockerconfigjson.
    """

    registries: Hosts = frozenset()
    redirects: Hosts = frozenset()
    private: Hosts = frozenset()
    ca: str = ""
    credentials: str = ""


def read_access(path: Path) -> RegistryAccess:
    """Read the operator's file, and check that its credentials can be read.

    Raises BadInput.
    """
    try:
        access = msgspec.yaml.decode(_bounded_file(path), type=RegistryAccess)
        _known_credentials([access.credentials] if access.credentials else [])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, SourceError) as error:
        raise BadInput(f"{path}: {str(error)[:200]}") from error
    return access


def _bounded_file(path: str | Path) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(FILE_BYTES)


def _known_credentials(paths: Iterable[str | Path]) -> dict[str, str]:
    """Read credentials; those of a later file count first. Raises OSError, SourceError."""
    return {prefix: word for path in paths for prefix, word in read_credentials(_bounded_file(path)).items()}


class _CheckedResolver(aiohttp.ThreadedResolver):
    """Resolves names to addresses that may be connected to, at each connection anew."""

    def __init__(self, lists_as_private: Callable[[str, str], bool]) -> None:
        super().__init__()
        self._lists_as_private = lists_as_private

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        listed = self._lists_as_private(host, f"{host}:{port}")
        found = [one for one in await super().resolve(host, port, family) if may_connect(one["host"], listed)]
        if not found:
            raise _no_address(host)
        return found


def _no_address(host: str) -> SourceError:
    return SourceError(f"{host[:80]} has no address that is public or listed as private", "address")


def may_connect(text: str, listed: bool) -> bool:
    """Tell whether an address is public, or is neither link-local nor of metadata and `listed` as private."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False  # such as 127.1, which is an address to the operating system
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        inner = inner or (ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None)
        address = inner or address
    if address in _METADATA or address.is_link_local or address.is_multicast or address.is_unspecified:
        return False
    return listed or address.is_global


@dataclass(slots=True)
class _Conversation:
    """The requests about one image: what authorizes them, and the host to which that alone is sent."""

    reference: Reference
    host: str
    authorization: str = ""


class Registries(ScrapeClient):
    """The client; it has connections of its own, which `close` ends. An image must be read within `seconds`.

    With `anywhere` it reads any registry, for the command of a user, whose files of credentials are `credentials`. The
    files are read for each challenge, since they are renewed.
    """

    def __init__(
        self,
        access: RegistryAccess,
        seconds: float = READ_SECONDS,
        anywhere: bool = False,
        credentials: Iterable[Path] = (),
    ) -> None:
        super().__init__()
        self._access, self._seconds, self._anywhere = access, seconds, anywhere
        self._credentials = [*credentials, *([Path(access.credentials)] if access.credentials else [])]

    async def read(self, image: str, known: ImageFacts | None = None) -> ImageFacts:
        """Read what an image carries; `known` itself if the digest is still that.

        Raises SourceError.
        """
        reference = read_reference(image)
        if not (self._anywhere or reference.registry in self._access.registries):
            raise SourceError(f"{reference.registry} is not among the registries that are read", "not_allowed")
        host = f"registry-1.{DOCKER_HUB}" if reference.registry == DOCKER_HUB else reference.registry
        try:
            async with asyncio.timeout(self._seconds):
                return await self._read(_Conversation(reference, host), known)
        except TimeoutError as error:
            raise SourceError(f"{reference.registry}: no answer in time", "timeout") from error

    async def close(self) -> None:
        await super().close()
        await asyncio.sleep(CLOSE_SECONDS)

    async def _read(self, talk: _Conversation, known: ImageFacts | None) -> ImageFacts:
        reference = talk.reference
        if known and not reference.pinned:
            _, headers = await self._ask(talk, "HEAD", f"manifests/{reference.version}")
            if headers.get("Docker-Content-Digest") == known.digest:
                return known
        digest, manifest = await self._document(talk, f"manifests/{reference.version}", Manifest)
        configs = [manifest.config] if manifest.config else []
        for entry in platforms_to_read(manifest):
            _, inner = await self._document(talk, f"manifests/{entry.digest}", Manifest)
            configs += [inner.config] if inner.config else []
        if not configs:
            raise SourceError("manifest: got no config, wants that of an image", "malformed")
        read = [(await self._document(talk, f"blobs/{config.digest}", Config))[1] for config in configs]
        platforms = {one.architecture: variables_of(one) for one in read if one.os == "linux" and one.architecture}
        return ImageFacts(digest, tuple((name, tuple(found.items())) for name, found in platforms.items()))

    async def _document(self, talk: _Conversation, path: str, kind: type[T]) -> tuple[str, T]:
        """Read a document, and compare its digest with that of the path, or for a tag with what the registry says."""
        body, headers = await self._ask(talk, "GET", path)
        digest, version = f"sha256:{hashlib.sha256(body).hexdigest()}", path.rpartition("/")[2]
        wanted = version if version.startswith("sha256:") else headers.get("Docker-Content-Digest", digest)
        if digest != wanted:
            raise SourceError(f"{talk.host}: the document of {wanted[:80]} has {digest}", "digest")
        return digest, decode(body, kind)

    async def _ask(self, talk: _Conversation, method: str, path: str) -> tuple[bytes, Mapping[str, str]]:
        """Ask for a document, with a token if the registry wants one, and follow its redirects."""
        url = f"https://{talk.host}/v2/{talk.reference.repository}/{path}"
        asked_for_token = False
        for _ in range(MOST_REDIRECTS + 2):
            at_home = urlsplit(url).netloc == talk.host
            headers = {"Accept": ACCEPT, **({"Authorization": talk.authorization} if at_home else {})}
            status, answer_headers, body = await self.request(method, url, DOCUMENT_BYTES, headers=headers)
            if status == 200:
                return body, answer_headers
            if status == 401 and at_home and not asked_for_token:
                asked_for_token = True
                talk.authorization = await self._authorize(talk, answer_headers.get("WWW-Authenticate", ""))
            elif status in (301, 302, 303, 307, 308):
                url = self._checked(talk, url, answer_headers.get("Location", ""))
            else:
                outcome = {401: "unauthorized", 403: "unauthorized", 404: "not_found"}.get(status, "http_error")
                raise SourceError(f"{talk.host}: HTTP {status} for {talk.reference.repository}", outcome)
        raise SourceError(f"{talk.host}: more than {MOST_REDIRECTS} redirects", "redirect")

    async def _authorize(self, talk: _Conversation, challenge: str) -> str:
        """Return the header that answers a challenge: Basic, or a token of the service that it names."""
        try:
            credential = credential_for(_known_credentials(self._credentials), talk.reference)
        except OSError as error:
            raise SourceError(f"{talk.host}: credentials: {error}", "unauthorized") from error
        basic = f"Basic {base64.b64encode(credential.encode()).decode()}" if credential else ""
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic" and basic:
            return basic
        values = dict(_CHALLENGE.findall(rest[:4_096]))
        if scheme.lower() != "bearer" or "realm" not in values:
            raise SourceError(f"{talk.host}: wants credentials, and none are known for it", "unauthorized")
        realm = self._checked(talk, f"https://{talk.host}", values["realm"])
        params = {"scope": f"repository:{talk.reference.repository}:pull", "service": values.get("service", "")}
        headers = {"Authorization": basic} if basic else {}
        status, _, body = await self.request("GET", realm, TOKEN_BYTES, params=params, headers=headers)
        answer = decode(body, BearerToken) if status == 200 else BearerToken()
        if not (answer.token or answer.access_token):
            raise SourceError(f"{urlsplit(realm).netloc}: gave no token, HTTP {status}", "unauthorized")
        return f"Bearer {answer.token or answer.access_token}"

    def _checked(self, talk: _Conversation, base: str, location: str) -> str:
        """Return the URL to which a registry refers, unless that leads to another host than those that are listed."""
        try:
            target = urlsplit(url := urljoin(base, location))
            host, user = target.netloc.lower(), target.username
        except ValueError as error:
            raise SourceError(f"{talk.host}: refers to no URL", "redirect") from error
        if target.scheme != "https" or user or not (self._anywhere or host in {talk.host, *self._access.redirects}):
            raise SourceError(f"{talk.host}: refers to {target.scheme[:8]}://{host[:80]}, not listed", "redirect")
        return url

    async def request(
        self, method: str, url: str, limit_bytes: int, seconds: float = REQUEST_SECONDS, *rest: Any, **more: Any
    ) -> tuple[int, Mapping[str, str], bytes]:
        host = urlsplit(url).hostname or ""
        is_address = ":" in host or host.replace(".", "").isdigit()  # which aiohttp does not give to the resolver
        if is_address and not may_connect(host, self._lists_as_private(host, urlsplit(url).netloc)):
            raise _no_address(host)
        try:
            return await super().request(method, url, limit_bytes, seconds, *rest, **more)
        except SourceError as error:
            raise SourceError(f"{host[:80]}: {str(error)[:160]}", error.outcome) from error

    def connector(self) -> aiohttp.TCPConnector:
        context = ssl.create_default_context()
        if self._access.ca:
            context.load_verify_locations(self._access.ca)
        resolver = _CheckedResolver(self._lists_as_private)
        return aiohttp.TCPConnector(ssl=context, resolver=resolver, use_dns_cache=False, limit=16)

    def _lists_as_private(self, *names: str) -> bool:
        return self._anywhere or not self._access.private.isdisjoint(names)
