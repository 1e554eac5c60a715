# SPDX-License-Identifier: Apache-2.0
"""Client certificates: who calls, as TLS verified it, and which routes ask (INTERFACES §10, Client certificates)."""

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.wire import status_body

SUBJECT = "gpu-usher.client_subject"
"""Key of the ASGI scope: the common name of the client's verified certificate; None without one."""
ABORT = "gpu-usher.abort"
"""Key of the ASGI scope: ends the connection at once, whatever is not sent yet."""
SCHEDULER = "/scheduler/"


def client_scope(transport: asyncio.BaseTransport) -> Mapping[str, Any]:
    """Say what a connection adds to the scope of its requests, once its handshake is over."""
    connection = transport.get_extra_info("ssl_object")
    shown = connection.getpeercert() if connection is not None else None
    # Verified, or the handshake would have failed: OpenSSL refuses what no CA of ours signed.
    names = [value for part in (shown or {}).get("subject", ()) for key, value in part if key == "commonName"]
    return {SUBJECT: names[0] if len(names) == 1 else None, ABORT: getattr(transport, "abort", None)}


class OnlyKnownClients:
    """Answers 403 to a caller without an allowed subject: on the scheduler's routes, on all of them with `webhooks`."""

    def __init__(self, app: ASGIApp, allowed: frozenset[str], webhooks: bool) -> None:
        self._app = app
        self._allowed = allowed
        self._webhooks = webhooks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it before its body is read."""
        asked = scope["type"] == "http" and (self._webhooks or scope["path"].startswith(SCHEDULER))
        if not asked or scope.get(SUBJECT) in self._allowed:
            await self._app(scope, receive, send)
            return
        shown = scope.get(SUBJECT)
        words = f"client certificate of {shown[:64]!r}" if shown else "no client certificate"
        body = status_body(403, f"gpu-usher: {words}: wants one whose common name --client-subject lists")
        headers = {"Connection": "close"}  # the body stays unread
        await Response(body, 403, headers, "application/json")(scope, receive, send)
