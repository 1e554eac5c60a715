# SPDX-License-Identifier: Apache-2.0
"""Restricts loopback listeners to requests addressed to loopback, so that no web page can rebind its name to them."""

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.wire import status_body

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def is_loopback(host: str) -> bool:
    """Tell whether a listener's address is a loopback address."""
    return host in ("localhost", "::1") or host.startswith("127.")


class RequireAllowedHost:
    """ASGI middleware that answers 403 if the Host header is not one of `names`."""

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


class RequireSameOrigin:
    """ASGI middleware that answers 403 to requests sent by pages of other sites; following a link is allowed.

    Browsers send the origin of a request (W3C Fetch Metadata, Sec-Fetch-Site and -Mode); other clients send none.
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
