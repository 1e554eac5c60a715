# SPDX-License-Identifier: Apache-2.0
"""Loopback listeners answer only requests addressed to loopback: a web page cannot rebind its name to them."""

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.wire import status_body

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def loopback(host: str) -> bool:
    """Tell whether a listener's address is loopback."""
    return host in ("localhost", "::1") or host.startswith("127.")


class OnlyHosts:
    """Pure ASGI middleware that answers 403 where the Host header is not on the list."""

    def __init__(self, app: ASGIApp, names: frozenset[str] = LOOPBACK_NAMES) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http" or self._allowed(scope):
            await self._app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": status_body(403, "Host: wants localhost or 127.0.0.1")})

    def _allowed(self, scope: Scope) -> bool:
        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return name.lower() in self._names


class OnlyOwnPages:
    """Pure ASGI middleware that answers 403 to what another site's page sends; following a link is nothing of that.

    Browsers say who asks (W3C Fetch Metadata, Sec-Fetch-Site and -Mode); without the headers it is no browser.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        ours = headers.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin")
        if ours or (scope["method"] == "GET" and headers.get(b"sec-fetch-mode") == b"navigate"):
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": status_body(403, "Sec-Fetch-Site: wants our own page")})
