# SPDX-License-Identifier: Apache-2.0
"""What the server itself answers, as a Kubernetes Status: requests that are none, and requests too many."""

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.api.wire import status_body

NO_SNIFFING = (b"x-content-type-options", b"nosniff")
"""Of every answer: a browser that is led here takes no answer for a page or a script."""
_HEADERS = b"content-type: application/json\r\n%b: %b\r\nconnection: close\r\n" % NO_SNIFFING


def refusal(status: int, message: str) -> bytes:
    """Write the whole answer to what is no request; it is the connection's last."""
    body = status_body(status, message)
    return b"".join([STATUS_LINE[status], _HEADERS, b"content-length: %d\r\n\r\n" % len(body), body])


def turning_away(requests: int, shed: Callable[[], object]) -> ASGIApp:
    """Make the application of a request too many: 503, and the connection stays."""
    body = status_body(503, f"busy with {requests} requests")
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]

    async def turn_away(_scope: Scope, _receive: Receive, send: Send) -> None:
        shed()
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return turn_away
