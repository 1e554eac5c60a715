# SPDX-License-Identifier: Apache-2.0
"""Answers of the server itself, as Kubernetes Status objects: to invalid requests, and to too many requests."""

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.api.wire import status_body

NO_SNIFFING = (b"x-content-type-options", b"nosniff")
"""A header of every answer, so that a browser does not guess that an answer is a page or a script."""
Headers = list[tuple[bytes, bytes]]
_HEADERS = b"content-type: application/json\r\n%b: %b\r\nconnection: close\r\n" % NO_SNIFFING


LENGTH_AND_END = b"content-length: %d\r\n\r\n"
LENGTH_AND_CLOSE = b"connection: close\r\n" + LENGTH_AND_END


class AnswerHeads:
    """The first bytes of JSON answers by status, made again whenever uvicorn has renewed the date in its headers."""

    def __init__(self) -> None:
        self._headers: Headers = []
        self._by_status: dict[int, bytes] = {}

    def of(self, status: int, headers: Headers) -> bytes:
        """Return the status line and all headers but the length; `headers` are those of every answer of the server."""
        if headers is not self._headers:
            self._headers, self._by_status = headers, {}
        head = self._by_status.get(status)
        if head is None:
            pairs = [*headers, (b"content-type", b"application/json")]
            lines = [b"%b: %b\r\n" % pair for pair in pairs]
            head = self._by_status[status] = b"".join([STATUS_LINE[status], *lines])
        return head


def error_response(status: int, message: str) -> bytes:
    """Return the complete HTTP answer to an invalid request, after which the connection is closed."""
    body = status_body(status, message)
    return b"".join([STATUS_LINE[status], _HEADERS, b"content-length: %d\r\n\r\n" % len(body), body])


def busy_app(requests: int, on_shed: Callable[[], object]) -> ASGIApp:
    """Make the application that answers 503 without closing the connection; `on_shed` is called for every request."""
    body = status_body(503, f"busy with {requests} requests")
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]

    async def answer_busy(_scope: Scope, _receive: Receive, send: Send) -> None:
        on_shed()
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer_busy
