# SPDX-License-Identifier: Apache-2.0
"""Client certificates: who calls, as TLS verified it, and which routes ask.

See docs/reference/listeners.md#client-certificates.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.wire import status_body

SUBJECT = "gpu-usher.client_subject"
"""Key of the ASGI scope: the common name of the client's verified certificate; None without one."""
CONNECTION = "gpu-usher.tls_connection"
"""Key of the ASGI scope: the connection's SSLObject; None without TLS."""
ABORT = "gpu-usher.abort"
"""Key of the ASGI scope: ends the connection at once, whatever is not sent yet."""
SCHEDULER = "/scheduler/"


def client_scope(transport: asyncio.BaseTransport) -> Mapping[str, Any]:
    """Say what a connection adds to the scope of its requests, once its handshake is over."""
    connection = transport.get_extra_info("ssl_object")
    subject = subject_of(connection) if connection is not None else None
    return {SUBJECT: subject, CONNECTION: connection, ABORT: getattr(transport, "abort", None)}


def subject_of(connection: ssl.SSLObject) -> str | None:
    """Give the common name of the certificate that a client has shown; None without one, with several, or unreadable.

    It is verified, or the handshake would have failed: OpenSSL refuses what no CA of ours signed. A CA may sign a
    name that is no UTF-8 or an extension that cannot be parsed, which OpenSSL notices only when it is asked for them.
    """
    try:
        shown: Mapping[str, Any] = connection.getpeercert() or {}
    except (ssl.SSLError, ValueError, RuntimeError):
        return None
    names = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 else None


class OnlyKnownClients:
    """Answers 403 to a caller without an allowed subject: on the scheduler's routes, on all of them with `webhooks`.

    `trusts` tells whether the certificate of a live connection is still of a CA of clients.
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
        asked = scope["type"] == "http" and (self._webhooks or scope["path"].startswith(SCHEDULER))
        if not asked or not (words := self._stranger(scope)):
            await self._app(scope, receive, send)
            return
        body = status_body(403, f"gpu-usher: {words}: wants one whose common name --client-subject lists")
        headers = {"Connection": "close"}  # the body stays unread
        await Response(body, 403, headers, "application/json")(scope, receive, send)

    def _stranger(self, scope: Scope) -> str:
        """Say why a caller is none that is allowed; empty for one that is."""
        shown = scope.get(SUBJECT)
        if shown not in self._allowed:
            return f"client certificate of {shown[:64]!r}" if shown else "no client certificate"
        if not self._trusts(scope[CONNECTION]):
            return f"client certificate of {shown[:64]!r}, of a CA that --client-ca has no more: connect again"
        return ""
