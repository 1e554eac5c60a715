# SPDX-License-Identifier: Apache-2.0
"""More clients than there is room for: those without a request give way, requests and probes are answered."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from app.server.limits import Limits
from app.server.process import raise_descriptor_limit
from app.server.protocol import Connections
from tests.api.sockets import TIMEOUT_SECONDS, all_closed, closed, connect, post
from tests.builders import make_service
from tests.controlplane.processes import wait_until
from tests.running import Running, running
from tests.server.callers import HALF, LIVEZ, closed_for, repeating, served

SMALL = Limits(
    header_seconds=600,
    request_seconds=600,
    handshake_seconds=600,
    connections=24,
    newcomer_seconds=0.2,
    stalled_seconds=0.2,
    requests=16,
)
"""Limits under which no connection is closed for being slow, but only to make room."""
WAITERS = 700
"""More than a listener's connections, and more than its requests that may run at once."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[tuple[Running, Path]]:
    with running(make_service(tmp_path), SMALL) as clients:
        yield clients, tmp_path / "ca.crt"


def plain(port: int | None, sent: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port or 0), TIMEOUT_SECONDS)
    sock.sendall(sent)
    return sock


def send_each(socks: list[socket.socket], sent: bytes) -> None:
    """Send to each socket that is still open."""
    for sock in list(socks) if sent else []:
        with contextlib.suppress(OSError):
            sock.sendall(sent)


@pytest.mark.parametrize(
    "sent",
    [b"", HALF[:30], HALF, LIVEZ],
    ids=["silent", "half a header", "half a body", "between requests"],
)
def test_more_callers_than_connections_give_way_to_who_asks(small: tuple[Running, Path], sent: bytes) -> None:
    """Fault 24: all of them are on the listener that gets the request."""
    clients, _ = small
    port = clients.ops.base_url.port
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(plain(port, sent))
        statuses = [served(port, None, LIVEZ) for _ in range(10)]

        assert statuses == [200] * 10
        assert closed_for(clients, "room") >= 1


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"], ids=["nothing", "half"])
def test_half_handshakes_give_way_to_whole_ones(small: tuple[Running, Path], sent: bytes) -> None:
    """Fault 24: a handshake was once no connection yet, so that none was counted."""
    clients, ca = small
    port = clients.tls.base_url.port
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(plain(port, sent))
        statuses = [served(port, ca) for _ in range(10)]

        assert statuses == [200] * 10
        assert closed_for(clients, "handshake") >= 1


def test_handshake_that_is_too_late_is_counted(tmp_path: Path) -> None:
    """Fault 24."""
    with running(make_service(tmp_path), Limits(handshake_seconds=0.3)) as clients:
        with plain(clients.tls.base_url.port, b"") as silent:
            assert closed(silent)
        wait_until("it is counted", lambda: closed_for(clients, "handshake") == 1, 60)


@pytest.mark.parametrize(
    ("sent", "more"),
    [
        pytest.param(None, b"", id="handshake"),
        pytest.param(b"", b"", id="silent", marks=pytest.mark.long),
        pytest.param(HALF[:30], b"", id="header"),
        pytest.param(HALF, b"", id="body", marks=pytest.mark.long),
        pytest.param(post(b"", length=5_000), b" ", id="body that trickles"),
    ],
)
def test_seven_hundred_slow_callers_leave_room_for_the_others(tmp_path: Path, sent: bytes | None, more: bytes) -> None:
    """Fault 24: all are on the port of the requests and of one kind, more than the bound of each kind."""
    raise_descriptor_limit()
    limits = Limits(header_seconds=6, request_seconds=6, handshake_seconds=6)
    ca = tmp_path / "ca.crt"
    with running(make_service(tmp_path), limits) as clients, contextlib.ExitStack() as stack:
        port = clients.tls.base_url.port
        slow: list[socket.socket] = []
        with repeating(partial(send_each, slow, more), 0.5):
            for _ in range(WAITERS):
                caller = stack.enter_context(plain(port, b"") if sent is None else connect(port, ca))
                send_each([caller], sent or b"")
                slow.append(caller)
            statuses = [served(port, ca) for _ in range(50)]
        left = all_closed(slow)

        assert statuses == [200] * 50
        assert left == 0


def test_handshake_whose_bytes_we_have_not_read_is_not_cancelled() -> None:
    """Fault 24: a busy loop is late itself; the next oldest handshake, whose peer is silent, makes room."""

    async def evict() -> list[bool]:
        connections = Connections(Limits(connections=1))
        pairs = [socket.socketpair() for _ in range(2)]
        tasks = [asyncio.create_task(asyncio.sleep(60)) for _ in pairs]
        for task, (ours, _) in zip(tasks, pairs, strict=True):
            connections.handshakes[task] = (0.0, ours)
        pairs[0][1].sendall(b"the rest of a ClientHello")
        connections.make_room(now=60.0)
        await asyncio.wait(tasks, timeout=0.1)
        cancelled = [task.cancelled() for task in tasks]
        for task in tasks:
            task.cancel()
        for sock in (sock for pair in pairs for sock in pair):
            sock.close()
        return cancelled

    assert asyncio.run(evict()) == [False, True]
