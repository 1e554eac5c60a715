# SPDX-License-Identifier: Apache-2.0
"""An HTTP client of the API server: reads of whole bodies, streams of lines, reviews and dry runs; it stores nothing.

aiohttp, which the `kubernetes` package requires, costs 5.5 µs per watch event where httpx costs 14
(docs/decisions/0010-watch-the-api-server-with-a-reflector-of-our-own.md).
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from aiohttp.connector import Connection
from kubernetes.client import Configuration

from app.cluster.kubeconfig import Access, Headers, Load, credentials, read_access
from app.values.errors import ApiError, BadInput

CONNECT_SECONDS = 10.0
LIST_SECONDS = 60.0
"""Bound on one page of a list; the API server's own limit for a request is 60 s."""
DRY_RUN_SECONDS = 30
"""The longest timeout of one webhook (admissionregistration.k8s.io/v1); the API server's own limit is twice that."""
LONGEST_MESSAGE = 600
"""Characters of a Status that are kept: the cause stands at its end, after a webhook's name and URL. A guess."""
BUFFER_BYTES = 1 << 18
"""Read buffer: a large one means fewer wake-ups in a burst of events. A line may be longer."""
WHOLE_ANSWER = aiohttp.ClientTimeout(total=LIST_SECONDS, sock_connect=CONNECT_SECONDS)
REVIEWS = "authorization.k8s.io/v1"
LONGEST_LINE_BYTES = 1 << 24
"""An object in etcd is at most 1.5 MiB, so a longer line is not a watch event."""


class ApiServer:
    """One client for all reflectors. Credentials are read for every request."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._configuration: Configuration | None = None
        self._access: Access | None = None
        self._session: aiohttp.ClientSession | None = None
        self._lock = asyncio.Lock()

    async def get(self, path: str, params: Mapping[str, str], accept: str = "application/json") -> bytes:
        """Read one answer.

        Raises ApiError.
        """
        async with self._request(path, params, accept, WHOLE_ANSWER) as answer:
            return await answer.read()

    async def version(self) -> tuple[bytes, str]:
        """Read the API server's version and the Date header of its answer, which is empty if a proxy removed it.

        Raises ApiError.
        """
        async with self._request("/version", {}, "application/json", WHOLE_ANSWER) as answer:
            return await answer.read(), answer.headers.get("Date", "")

    async def rules(self, user: str, groups: tuple[str, ...], namespace: str) -> bytes:
        """Ask, as an account, what it may do in a namespace (SelfSubjectRulesReview); needs the verb `impersonate`.

        Raises ApiError.
        """
        headers = (("Impersonate-User", user), *(("Impersonate-Group", group) for group in groups))
        review = {"apiVersion": REVIEWS, "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}}
        path = f"/apis/{REVIEWS}/selfsubjectrulesreviews"
        async with self._request(path, {}, "application/json", WHOLE_ANSWER, headers, review) as answer:
            return await answer.read()

    async def create_dry_run(self, path: str, document: Mapping[str, Any]) -> bytes:
        """Create an object by dry run, which admission decides and which is never stored; return the object.

        Raises ApiError, also if the API server does not decide within DRY_RUN_SECONDS.
        """
        params = {"dryRun": "All", "timeout": f"{DRY_RUN_SECONDS}s"}
        async with self._request(path, params, "application/json", WHOLE_ANSWER, (), document) as answer:
            return await answer.read()

    @asynccontextmanager
    async def watch(
        self, path: str, params: Mapping[str, str], silent_seconds: float
    ) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        """Open a watch and yield whole lines, as many as arrived together, until the server ends it.

        Raises ApiError, also if nothing arrives for `silent_seconds`.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silent_seconds)
        async with self._request(path, params, "application/json", limits) as answer:
            yield _lines(answer.content)

    @asynccontextmanager
    async def _request(
        self,
        path: str,
        params: Mapping[str, str],
        accept: str,
        limits: aiohttp.ClientTimeout,
        more_headers: Headers = (),
        posted: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            session, access, headers = await self._connect()
            if more_headers and any(name == more_headers[0][0] for name, _ in headers):
                raise ApiError(None, "not asked: the kubeconfig acts as another user already (as)")
            async with session.request(
                "GET" if posted is None else "POST",
                access.url + path,
                params=params,
                headers=[("Accept", accept), ("Accept-Encoding", "identity"), *headers, *more_headers],
                json=posted,
                timeout=limits,
                proxy=access.proxy,
                server_hostname=access.server_name,
                allow_redirects=False,
            ) as answer:
                if answer.status == 401:
                    await self._forget_credentials(session)
                if answer.status != (200 if posted is None else 201):
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
            self._configuration = self._access = self._session = None
            await refused.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


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
