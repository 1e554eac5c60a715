# SPDX-License-Identifier: Apache-2.0
"""The client of the API server, for the watches, the controllers and the command line.

Why it is made of aiohttp: docs/decisions/0010-watch-the-api-server-with-a-reflector-of-our-own.md.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import msgspec
from aiohttp.connector import Connection

from app.cluster.kubeconfig import Access, Headers, Load, credentials, read_access
from app.values.errors import NOT_FOUND, UNAUTHORIZED, ApiError, BadInput
from app.values.json_members import JSON, Object

if TYPE_CHECKING:
    from kubernetes.client import Configuration

CONNECT_SECONDS = 10.0
LIST_SECONDS = 60.0
"""Bound on one page of a list; the API server's own limit for a request is 60 s."""
OBJECT_SECONDS = 10.0
"""Bound on a request about one object. It is less than DURATION_SECONDS of events/lease.py, so that the Lease does not
expire while one request hangs."""
LONGEST_MESSAGE = 600
"""Characters of a Status that are kept: the cause stands at its end, after a webhook's name and URL. A guess."""
BUFFER_BYTES = 1 << 18
"""Read buffer: a large one means fewer wake-ups in a burst of events. A line may be longer."""
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
REVIEWS = "authorization.k8s.io/v1"
LONGEST_LINE_BYTES = 1 << 24
"""An object in etcd is at most 1.5 MiB, so a longer line is not a watch event."""


class ApiServer:
    """One client for all requests of an event loop; it connects at the first. Credentials are read for every request.

    `async with` closes it.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._configuration: Configuration | None = None
        self._access: Access | None = None
        self._session: aiohttp.ClientSession | None = None
        self._lock = asyncio.Lock()

    async def get(self, path: str, params: Mapping[str, str] | None = None, accept: str = JSON) -> bytes:
        """Read one answer, undecoded.

        Raises ApiError.
        """
        async with self._request("GET", path, params, _whole(LIST_SECONDS), accept) as answer:
            return await answer.read()

    async def version(self) -> tuple[bytes, str]:
        """Read the API server's version and the Date header of its answer, which is empty if a proxy removed it.

        Raises ApiError.
        """
        async with self._request("GET", "/version", None, _whole(LIST_SECONDS)) as answer:
            return await answer.read(), answer.headers.get("Date", "")

    async def read(
        self, path: str, params: Mapping[str, str] | None = None, seconds: float = OBJECT_SECONDS
    ) -> Object | None:
        """Read an object; None if it does not exist.

        Raises ApiError.
        """
        try:
            return await self._send("GET", path, None, params, seconds)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    async def create(
        self,
        path: str,
        document: Mapping[str, Any],
        params: Mapping[str, str] | None = None,
        seconds: float = OBJECT_SECONDS,
    ) -> Object:
        """Create an object in the list at a path.

        Raises ApiError, with the status CONFLICT if an object of that name exists.
        """
        return await self._send("POST", path, document, params, seconds)

    async def replace(self, path: str, document: Mapping[str, Any]) -> Object:
        """Replace an object; its resourceVersion guards the write.

        Raises ApiError, with the status CONFLICT if the object has changed.
        """
        return await self._send("PUT", path, document)

    async def patch(self, path: str, change: Mapping[str, Any], kind: str = STRATEGIC) -> Object:
        """Change fields of an object.

        Raises ApiError, with the status CONFLICT if the change names an outdated resourceVersion.
        """
        return await self._send("PATCH", path, change, headers=(("Content-Type", kind),))

    async def rules(self, user: str, groups: tuple[str, ...], namespace: str) -> Object:
        """Ask, as an account, what it may do in a namespace (SelfSubjectRulesReview); needs the verb `impersonate`.

        Raises ApiError.
        """
        headers = (("Impersonate-User", user), *(("Impersonate-Group", group) for group in groups))
        review = {"apiVersion": REVIEWS, "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}}
        return await self._send("POST", f"/apis/{REVIEWS}/selfsubjectrulesreviews", review, headers=headers)

    async def _send(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        seconds: float = OBJECT_SECONDS,
        headers: Headers = (),
    ) -> Object:
        """Send one request, and decode the object in its answer."""
        async with self._request(method, path, params, _whole(seconds), JSON, headers, document) as answer:
            body = await answer.read()
        try:
            return msgspec.json.decode(body, type=Object)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError(answer.status, f"{path}: no object: {error}") from error

    @asynccontextmanager
    async def watch(
        self, path: str, params: Mapping[str, str], silent_seconds: float
    ) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        """Open a watch and yield whole lines, as many as arrived together, until the server ends it.

        Raises ApiError, also if nothing arrives for `silent_seconds`.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silent_seconds)
        async with self._request("GET", path, params, limits) as answer:
            yield _lines(answer.content)

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        limits: aiohttp.ClientTimeout,
        accept: str = JSON,
        headers: Headers = (),
        document: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            session, access, own_headers = await self._connect()
            if {name for name, _ in headers} & {name for name, _ in own_headers}:
                raise ApiError(None, "not asked: the kubeconfig acts as another user already (as)")
            async with session.request(
                method,
                access.url + path,
                params=params,
                headers=[("Accept", accept), ("Accept-Encoding", "identity"), *own_headers, *headers],
                json=document,
                timeout=limits,
                proxy=access.proxy,
                server_hostname=access.server_name,
                allow_redirects=False,
            ) as answer:
                if answer.status == UNAUTHORIZED:
                    await self._forget_credentials(session)
                if not 200 <= answer.status < 300:
                    raise ApiError(answer.status, _status_message(answer.status, await answer.read()))
                transport = _transport_of(answer.connection)
                try:
                    yield answer
                finally:
                    if not answer.content.is_eof():
                        _abort(transport)
        except BadInput as error:  # the kubeconfig or token file has changed and cannot be read
            raise ApiError(None, str(error)) from error
        except TimeoutError as error:
            raise ApiError(None, "no answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(None, _why_unanswered(error)) from error

    async def _connect(self) -> tuple[aiohttp.ClientSession, Access, Headers]:
        async with self._lock:
            if self._configuration is None:
                self._configuration = await asyncio.to_thread(self._load)
            if self._session is None or self._access is None:
                self._access = read_access(self._configuration)
                connector = aiohttp.TCPConnector(ssl=self._access.context or True, limit=0)
                self._session = aiohttp.ClientSession(
                    connector=connector, read_bufsize=BUFFER_BYTES, response_class=_Answer
                )
            headers = await asyncio.to_thread(credentials, self._configuration)
            return self._session, self._access, headers

    async def _forget_credentials(self, refused: aiohttp.ClientSession) -> None:
        """Forget credentials that were refused; the next request reads new ones. Open watches end, and resume."""
        if self._session is refused:
            self._configuration = None
            await self.close()

    async def close(self) -> None:
        """Close the connections; a later request would open new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def read_object(load: Load, path: str, params: Mapping[str, str] | None = None) -> Object | None:
    """Read one object, or a list, over a connection of its own; None if it does not exist. Raises ApiError."""
    async with ApiServer(load) as server:
        return await server.read(path, params, LIST_SECONDS)


class _Answer(aiohttp.ClientResponse):
    """An answer whose connection is aborted if waiting for its head is given up."""

    async def start(self, connection: Connection) -> "_Answer":
        transport = _transport_of(connection)
        try:
            await super().start(connection)
        except BaseException:
            _abort(transport)
            raise
        return self


def _whole(seconds: float) -> aiohttp.ClientTimeout:
    """Bound a request and its whole answer."""
    return aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)


def _transport_of(connection: Connection | None) -> asyncio.Transport | None:
    """Return the transport of a connection, which forgets it when it is closed; None if the answer is complete."""
    return connection.transport if connection is not None else None


def _abort(transport: asyncio.Transport | None) -> None:
    """Abort the connection of an answer that was not read to its end.

    If it were closed, TLS would wait for the close_notify of a peer that may be gone, and leave a socket open here.
    """
    if transport is not None:
        transport.abort()


def _why_unanswered(error: Exception) -> str:
    """Say in words of the operating system and of TLS why a request has no answer."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
        return f"its certificate is not trusted: {getattr(cause, 'verify_message', '') or cause}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"no address is known for the host {error.host}"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"the TLS handshake failed: {getattr(error.os_error, 'reason', '') or error.os_error}"
    if isinstance(error, aiohttp.ClientConnectorError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def _status_message(status: int, body: bytes) -> str:
    """Return the message of a Status with its code."""
    try:
        message = msgspec.json.decode(body).get("message")
    except (msgspec.DecodeError, AttributeError, UnicodeDecodeError, RecursionError):
        message = None
    return f"{status}: {message}"[:LONGEST_MESSAGE] if message else str(status)


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[list[bytes]]:
    rest = b""
    async for data in content.iter_any():
        *lines, rest = (rest + data if rest else data).split(b"\n")
        if len(rest) > LONGEST_LINE_BYTES:
            raise ApiError(None, f"a line of more than {LONGEST_LINE_BYTES} bytes")
        if lines:
            yield lines
