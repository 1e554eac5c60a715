# SPDX-License-Identifier: Apache-2.0
"""Who may call a listener: refusals before the body of a request is read.

The scheduler's routes, or all, may require a client certificate (docs/reference/listeners.md#client-certificates).
Loopback listeners take requests addressed to loopback alone, so that no web page can rebind its name to them.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.wire import status_body

SUBJECT = "gpu-usher.client_subject"
"""Key of the ASGI scope for the common name of the client's verified certificate; None without one."""
CONNECTION = "gpu-usher.tls_connection"
"""Key of the ASGI scope for the connection's SSLObject; None without TLS."""
SCHEDULER = "/scheduler/"


def client_scope(transport: asyncio.BaseTransport) -> Mapping[str, Any]:
    """Return what a connection adds to the scope of its requests after its TLS handshake."""
    connection = transport.get_extra_info("ssl_object")
    subject = subject_of(connection) if connection is not None else None
    return {SUBJECT: subject, CONNECTION: connection}


def subject_of(connection: ssl.SSLObject) -> str | None:
    """Return the common name of a client's certificate; None without one, with several names, or if it is unreadable.

    The certificate is verified, because OpenSSL refuses the handshake if no CA of ours signed it. A CA may sign a name
    that is not UTF-8 or an extension that cannot be parsed; OpenSSL notices that only when the certificate is read.
    """
    try:
        certificate: Mapping[str, Any] = connection.getpeercert() or {}
    except (ssl.SSLError, ValueError, RuntimeError):
        return None
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 else None


class RequireClientCertificate:
    """ASGI middleware that answers 403 without an allowed subject: on the scheduler's routes, with `webhooks` on all.

    `trusts` tells whether the certificate of an open connection is still signed by a current CA of clients.
    """

    def __init__(
        self, app: ASGIApp, allowed: frozenset[str], webhooks: bool, trusts: Callable[[ssl.SSLObject], bool]
    ) -> None:
        self._app = app
        self._allowed = allowed
        self._webhooks = webhooks
        self._trusts = trusts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it before its body is read."""
        required = scope["type"] == "http" and (self._webhooks or scope["path"].startswith(SCHEDULER))
        if not required or not (problem := self._problem(scope)):
            await self._app(scope, receive, send)
            return
        body = status_body(403, f"gpu-usher: {problem}: wants one whose common name --client-subject lists")
        headers = {"Connection": "close"}  # the body stays unread
        await Response(body, 403, headers, "application/json")(scope, receive, send)

    def _problem(self, scope: Scope) -> str:
        """Return why a caller is not allowed; an empty string if it is."""
        subject = scope.get(SUBJECT)
        if subject not in self._allowed:
            return f"client certificate of {subject[:64]!r}" if subject else "no client certificate"
        if not self._trusts(scope[CONNECTION]):
            return f"client certificate of {subject[:64]!r}, of a CA that --client-ca has no more: connect again"
        return ""


LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def is_loopback(host: str) -> bool:
    """Tell whether a listener's address is a loopback address."""
    return host in ("localhost", "::1") or host.startswith("127.")


class RequireAllowedHost:
    """ASGI middleware that answers 403 if the Host header is not one of LOOPBACK_NAMES."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._allowed(scope):
            await self._app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": status_body(403, "Host: wants localhost or 127.0.0.1")})

    def _allowed(self, scope: Scope) -> bool:
        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return name.lower() in LOOPBACK_NAMES


class RequireSameOrigin:
    """ASGI middleware that answers 403 to requests sent by pages of other sites; following a link is allowed.

    Browsers send the origin of a request (W3C Fetch Metadata, Sec-Fetch-Site and -Mode); other clients send none.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        ours = headers.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin")
        if ours or (scope["method"] == "GET" and headers.get(b"sec-fetch-mode") == b"navigate"):
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": status_body(403, "Sec-Fetch-Site: wants our own page")})
