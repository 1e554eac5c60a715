# SPDX-License-Identifier: Apache-2.0
"""Probes of a listener that accepts no more requests: a busy replica is alive, and must not be restarted for that."""

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from starlette.types import Receive, Scope, Send

from app.server.limits import Limits
from tests.api.sockets import connect
from tests.controlplane.processes import wait_until
from tests.server.callers import served, serving

REQUESTS = 4


async def hang(scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer all paths but /hang."""
    if scope["path"] == "/hang":
        await asyncio.Event().wait()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


@pytest.fixture
def port() -> Iterator[int]:
    with serving(hang, Limits(requests=REQUESTS)) as port:
        yield port


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def test_probes_are_answered_while_no_request_more_is_taken(port: int) -> None:
    """HA-08, fault 24."""
    with contextlib.ExitStack() as stack:
        for _ in range(REQUESTS):
            stack.enter_context(connect(port)).sendall(get("/hang"))
        wait_until("all are in hand", lambda: served(port, None, get("/other")) == 503, 60)
        statuses = {path: served(port, None, get(path)) for path in ("/livez", "/readyz", "/readyz?verbose", "/x")}

    assert statuses == {"/livez": 200, "/readyz": 200, "/readyz?verbose": 200, "/x": 503}
