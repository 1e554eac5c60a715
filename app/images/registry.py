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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from app.images.documents import (
    ACCEPT,
    DOCKER_HUB,
    DOCUMENT_BYTES,
    DockerConfig,
    Reference,
    credential_for,
    credentials_of,
    platforms_to_read,
    read_config,
    read_manifest,
    read_reference,
)
from app.knowledge.image_configs import ImageFacts
from app.values.errors import BadInput, RegistryError

REQUEST_SECONDS, READ_SECONDS, CONNECT_SECONDS = 10.0, 30.0, 5.0
"""For one answer, for all of one image, and for a connection. A registry answers within a second (a guess)."""
CLOSE_SECONDS = 0.1
"""For the event loop to close TLS connections, which aiohttp does not wait for (its docs, Graceful Shutdown)."""
MOST_REDIRECTS = 3
"""Redirects of one request; registries send blobs from one other host."""
TOKEN_BYTES, FILE_BYTES = 64 << 10, 1 << 20
_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")))
"""Addresses of clouds' metadata services that are not link-local: AWS, Alibaba, Azure, Oracle. Never connected to."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class AccessFile(msgspec.Struct, forbid_unknown_fields=True):
    """The operator's file: hosts as in references, with their port if they have one.

    `redirects` are further hosts to which registries may refer. `private` are hosts of both whose addresses need not be
    public. `ca` is a file of further CAs, `credentials` one of a Secret of type kubernetes.io/dockerconfigjson.
    """

    registries: list[str] = []
    redirects: list[str] = []
    private: list[str] = []
    ca: str = ""
    credentials: str = ""


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """The hosts that are read; None instead of hosts allows any, for a command of a user."""

    registries: frozenset[str] | None = frozenset()
    redirects: frozenset[str] | None = frozenset()
    private: frozenset[str] | None = frozenset()
    ca: str = ""
    credentials: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def lists_as_private(self, *names: str) -> bool:
        """Tell whether a host of one of these names, with or without its port, may have a private address."""
        return self.private is None or not self.private.isdisjoint(names)


def read_access(path: Path) -> RegistryAccess:
    """Read the operator's file.

    Raises BadInput.
    """
    try:
        with path.open("rb") as file:
            read = msgspec.yaml.decode(file.read(FILE_BYTES), type=AccessFile)
        credentials = read_credentials(Path(read.credentials)) if read.credentials else {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {str(error)[:200]}") from error
    registries, redirects, private = (
        frozenset(map(str.lower, names)) for names in (read.registries, read.redirects, read.private)
    )
    return RegistryAccess(registries, redirects, private, read.ca, credentials)


def read_credentials(path: Path) -> Mapping[str, tuple[str, str]]:
    """Read user names and passwords by registry.

    Raises OSError, msgspec.DecodeError.
    """
    with path.open("rb") as file:
        return credentials_of(msgspec.json.decode(file.read(FILE_BYTES), type=DockerConfig))


class _CheckedResolver(AbstractResolver):
    """Resolves names to addresses that may be connected to, at each connection anew."""

    def __init__(self, access: RegistryAccess) -> None:
        self._access = access

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> Any:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        listed = self._access.lists_as_private(host, f"{host}:{port}")
        addresses = [(kind, str(at[0])) for kind, _, _, _, at in found if may_connect(str(at[0]), listed)]
        if not addresses:
            raise RegistryError("address", f"{host} has no address that is public or listed as private")
        return [
            ResolveResult(hostname=host, host=at, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
            for kind, at in addresses
        ]

    async def close(self) -> None:
        return None


def may_connect(text: str, listed: bool) -> bool:
    """Tell whether an address is public, or is neither link-local nor of metadata and `listed` as private."""
    address = ipaddress.ip_address(text.partition("%")[0])
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


class Registries:
    """The client; it has connections of its own, which `close` ends. An image must be read within `seconds`."""

    def __init__(self, access: RegistryAccess, seconds: float = READ_SECONDS) -> None:
        self._access = access
        self._seconds = seconds
        self._session: aiohttp.ClientSession | None = None

    async def read(self, image: str, known: str = "") -> ImageFacts | None:
        """Read what an image carries; None if its digest is still `known`.

        Raises RegistryError.
        """
        try:
            reference = read_reference(image)
        except BadInput as error:
            raise RegistryError("not_allowed", str(error)) from error
        if self._access.registries is not None and reference.registry not in self._access.registries:
            raise RegistryError("not_allowed", f"{reference.registry} is not among the registries that are read")
        host = f"registry-1.{DOCKER_HUB}" if reference.registry == DOCKER_HUB else reference.registry
        try:
            async with asyncio.timeout(self._seconds):
                return await self._read(_Conversation(reference, host), known)
        except TimeoutError as error:
            raise RegistryError("timeout", f"{reference.registry}: no answer in time") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
            await asyncio.sleep(CLOSE_SECONDS)

    async def _read(self, talk: _Conversation, known: str) -> ImageFacts | None:
        reference = talk.reference
        if known and not reference.pinned:
            _, headers = await self._ask(talk, "HEAD", f"manifests/{reference.version}")
            if headers.get("Docker-Content-Digest") == known:
                return None
        body, headers = await self._ask(talk, "GET", f"manifests/{reference.version}")
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        expected = reference.version if reference.pinned else headers.get("Docker-Content-Digest", digest)
        if digest != expected:
            raise RegistryError("digest", f"{reference.registry}: manifest of {expected[:80]} has {digest}")
        manifest = read_manifest(body)
        configs = [manifest.config] if manifest.config else []
        for entry in platforms_to_read(manifest):
            inner = read_manifest(await self._by_digest(talk, "manifests", entry.digest))
            configs += [inner.config] if inner.config else []
        if not configs:
            raise RegistryError("malformed", "manifest: got no config, wants that of an image")
        environments = [read_config(await self._by_digest(talk, "blobs", config.digest)) for config in configs]
        return ImageFacts(digest, tuple(pair for pair in environments if pair[0]))

    async def _by_digest(self, talk: _Conversation, kind: str, digest: str) -> bytes:
        body, _ = await self._ask(talk, "GET", f"{kind}/{digest}")
        if (actual := f"sha256:{hashlib.sha256(body).hexdigest()}") != digest:
            raise RegistryError("digest", f"{talk.reference.registry}: {kind} of {digest} has {actual}")
        return body

    async def _ask(self, talk: _Conversation, method: str, path: str) -> tuple[bytes, Mapping[str, str]]:
        """Ask for a document, with a token if the registry wants one, and follow its redirects."""
        url = f"https://{talk.host}/v2/{talk.reference.repository}/{path}"
        asked_for_token = False
        for _ in range(MOST_REDIRECTS + 2):
            at_home = urlsplit(url).netloc == talk.host
            headers = {"Accept": ACCEPT, **({"Authorization": talk.authorization} if at_home else {})}
            status, answer_headers, body = await self._request(method, url, headers, DOCUMENT_BYTES)
            if status == 200:
                return body, answer_headers
            if status == 401 and at_home and not asked_for_token:
                asked_for_token = True
                talk.authorization = await self._authorize(talk, answer_headers.get("WWW-Authenticate", ""))
            elif status in (301, 302, 303, 307, 308):
                url = self._checked(talk, url, answer_headers.get("Location", ""))
            else:
                raise _refused(talk.reference, status)
        raise RegistryError("redirect", f"{talk.host}: more than {MOST_REDIRECTS} redirects")

    async def _authorize(self, talk: _Conversation, challenge: str) -> str:
        """Return the header that answers a challenge: Basic, or a token of the service that it names."""
        credential = credential_for(self._access.credentials, talk.reference)
        basic = "Basic " + base64.b64encode(":".join(credential).encode()).decode() if credential else ""
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic" and basic:
            return basic
        values = dict(_CHALLENGE.findall(rest[:4_096]))
        if scheme.lower() != "bearer" or "realm" not in values:
            raise RegistryError("unauthorized", f"{talk.host}: wants credentials, and none are known for it")
        realm = self._checked(talk, f"https://{talk.host}", values["realm"])
        params = {"scope": f"repository:{talk.reference.repository}:pull", "service": values.get("service", "")}
        headers = {"Authorization": basic} if basic else {}
        status, _, body = await self._request("GET", realm, headers, TOKEN_BYTES, params)
        try:
            answer = msgspec.json.decode(body, type=dict[str, Any]) if status == 200 else {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RegistryError("malformed", "token: no JSON object") from error
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]{1,16384}", token):
            raise RegistryError("unauthorized", f"{urlsplit(realm).netloc}: gave no token, HTTP {status}")
        return f"Bearer {token}"

    def _checked(self, talk: _Conversation, base: str, location: str) -> str:
        """Return the URL to which a registry refers, unless that leads to another host than those that are listed."""
        try:
            target = urlsplit(url := urljoin(base, location))
            host, user = target.netloc.lower(), target.username
        except ValueError as error:
            raise RegistryError("redirect", f"{talk.host}: refers to no URL") from error
        redirects = self._access.redirects
        if target.scheme != "https" or user or not (redirects is None or host in {talk.host, *redirects}):
            raise RegistryError("redirect", f"{talk.host}: refers to {target.scheme[:8]}://{host[:80]}, not listed")
        return url

    async def _request(
        self, method: str, url: str, headers: Mapping[str, str], limit: int, params: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        try:
            self._check_literal(urlsplit(url))
            async with self._open().request(
                method, url, params=params, headers={"Accept-Encoding": "identity", **headers}, allow_redirects=False
            ) as answer:
                body = await _bounded(answer, limit) if answer.status == 200 and method == "GET" else b""
                return answer.status, answer.headers, body
        except TimeoutError as error:
            raise RegistryError("timeout", f"{urlsplit(url).netloc[:80]}: no answer in time") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            text = str(error) or type(error).__name__
            raise RegistryError("unreachable", f"{urlsplit(url).netloc[:80]}: {text[:160]}") from error

    def _check_literal(self, url: SplitResult) -> None:
        """Check a host that is written as an address, since aiohttp passes it by the resolver, also one like 127.1.

        Raises RegistryError.
        """
        host = url.hostname or ""
        if ":" in host or host.replace(".", "").isdigit():
            listed = self._access.lists_as_private(host, url.netloc)
            try:
                allowed = may_connect(host, listed)
            except ValueError:
                allowed = False
            if not allowed:
                raise RegistryError("address", f"{host[:80]} is no address that is public or listed as private")

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            context = ssl.create_default_context()
            if self._access.ca:
                context.load_verify_locations(self._access.ca)
            connector = aiohttp.TCPConnector(
                ssl=context, resolver=_CheckedResolver(self._access), use_dns_cache=False, limit=16
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS, sock_connect=CONNECT_SECONDS),
            )
        return self._session


async def _bounded(answer: aiohttp.ClientResponse, limit: int) -> bytes:
    body = bytearray()
    if (answer.content_length or 0) <= limit:
        async for chunk in answer.content.iter_chunked(1 << 16):
            body += chunk
            if len(body) > limit:
                break
        else:
            return bytes(body)
    answer.close()
    raise RegistryError("too_large", f"{answer.url.host}: an answer of more than {limit} bytes")


def _refused(reference: Reference, status: int) -> RegistryError:
    outcome = {401: "unauthorized", 403: "unauthorized", 404: "not_found"}.get(status, "http_error")
    return RegistryError(outcome, f"{reference.registry}: HTTP {status} for {reference.repository}")
