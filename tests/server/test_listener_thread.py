# SPDX-License-Identifier: Apache-2.0
"""The thread of the operations listener, which shares one interpreter with the main loop and can be kept busy."""

import contextlib
import socket
import time
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from app.server.listener import yield_to_main_loop
from tests.api.sockets import TIMEOUT_SECONDS, connect
from tests.builders import make_service
from tests.running import running
from tests.server.callers import LIVEZ, METRICS, served, serving


def test_thread_of_operations_sleeps_between_requests_of_new_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test asserts a least time, which a busy machine cannot fail; without the sleep the main loop starves."""
    monkeypatch.setattr("app.server.listener.PAUSE_SECONDS", 0.02)
    monkeypatch.setattr("app.server.listener.WORK_SECONDS", 0.0)
    with running(make_service(tmp_path)) as clients:
        began = time.monotonic()
        statuses = {served(clients.ops.base_url.port, None, LIVEZ) for _ in range(25)}

        assert statuses == {200}
        assert time.monotonic() - began >= 0.5


def test_pipelined_requests_have_a_turn_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test asserts a least time: requests of all connections wait for their turns one after the other."""
    monkeypatch.setattr("app.server.listener.LATER_REQUEST_SECONDS", 0.01)
    with running(make_service(tmp_path)) as clients, contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(clients.ops.base_url.port)) for _ in range(5)]
        began = time.monotonic()
        for sock in socks:
            sock.sendall(LIVEZ * 11)
        for sock in socks:
            assert answers(sock, 11) == 11

        assert time.monotonic() - began >= 0.5


def test_probe_on_a_connection_of_its_own_waits_for_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet opens a connection for each probe."""
    monkeypatch.setattr("app.server.listener.LATER_REQUEST_SECONDS", 3600.0)
    served_paths: list[str] = []

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        served_paths.append(scope["path"])
        await PlainTextResponse("ok")(scope, receive, send)

    with serving(yield_to_main_loop(note)) as port, connect(port) as sock:
        sock.sendall(METRICS * 3)
        assert answers(sock, 1) == 1
        assert [served(port, None, LIVEZ) for _ in range(2)] == [200, 200]

    assert served_paths == ["/metrics", "/livez", "/livez"]


def answers(sock: socket.socket, count: int) -> int:
    """Read until there are that many answers, and return how many came."""
    sock.settimeout(TIMEOUT_SECONDS)
    read = b""
    while read.count(b"HTTP/1.1 200") < count and (piece := sock.recv(65_536)):
        read += piece
    return read.count(b"HTTP/1.1 200")
