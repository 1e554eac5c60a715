# SPDX-License-Identifier: Apache-2.0
"""An HTTP client for metrics and registries, whose answers are limited in bytes and seconds."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

import aiohttp

from app.nodes.gpu_health import MetricSample
from app.values.errors import BadInput, SourceError

CONNECT_SECONDS = 3.0
"""A connection within a cluster takes milliseconds; an address that is gone must not delay a poll."""
CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class PollResult:
    """The samples of one poll. `problem` tells which part could not be read; None if all could."""

    samples: list[MetricSample]
    problem: str | None = None


class ScrapeClient:
    """An HTTP client. Its session is made at the first request, because it needs the event loop."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def get(
        self,
        url: str,
        limit_bytes: int,
        seconds: float,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        server_name: str | None = None,
    ) -> bytes:
        """Read one answer of status 200. `server_name` is the name of the certificate if the URL has an address.

        Raises SourceError.
        """
        status, _, body = await self.request("GET", url, limit_bytes, seconds, params, headers, server_name)
        if status != 200:
            raise SourceError(f"HTTP {status}: {' '.join(body.decode('utf-8', 'replace').split())}".rstrip(": "))
        return body

    async def request(
        self,
        method: str,
        url: str,
        limit_bytes: int,
        seconds: float,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        server_name: str | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Read the status, the headers and the body of one answer; of another status than 200 the body's start.

        Raises SourceError.
        """
        try:
            async with self._open_session().request(
                method,
                url,
                params=params,
                headers={"Accept-Encoding": "identity", **(headers or {})},
                timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS),
                server_hostname=server_name,
                allow_redirects=False,
            ) as answer:
                succeeded = answer.status == 200
                body = await (_read_bounded(answer.content, limit_bytes) if succeeded else answer.content.read(200))
                return answer.status, answer.headers, body
        except TimeoutError as error:
            raise SourceError("no answer in time", "timeout") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: an invalid host name
            raise SourceError((str(error) or type(error).__name__)[:300]) from error

    def connector(self) -> aiohttp.TCPConnector:
        """Make the connections."""
        return aiohttp.TCPConnector(ssl=ssl.create_default_context(), limit=0)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=self.connector(), cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _read_bounded(content: aiohttp.StreamReader, limit_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in content.iter_chunked(CHUNK_BYTES):
        body += chunk
        if len(body) > limit_bytes:
            raise SourceError(f"an answer of more than {limit_bytes} bytes", "too_large")
    return bytes(body)


def read_url(text: str, flag: str) -> SplitResult:
    """Read the URL of a source.

    Raises BadInput, which does not repeat a URL with credentials.
    """
    try:
        url = urlsplit(text)
        host, _port = url.hostname, url.port
    except ValueError as error:
        raise BadInput(f"{flag}: {error}, wants http://host:port or https://host:port") from error
    if "@" in url.netloc:
        raise BadInput(f"{flag}: got credentials in the URL, wants them in --prometheus-token-file")
    if url.scheme not in ("http", "https") or not host or url.query or url.fragment:
        raise BadInput(f"{flag}: got {text[:80]!r}, wants http://host:port or https://host:port, with a path at most")
    return url
