# SPDX-License-Identifier: Apache-2.0
"""Pipelined requests: one is processed at a time, the others stay bytes, and these are bounded."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.server.limits import Limits
from tests.api.sockets import answer, closed, connect, post
from tests.authorities import make_authority, write_leaf
from tests.builders import make_service
from tests.controlplane.processes import wait_until
from tests.replicas import Replica
from tests.running import Running, running
from tests.server.callers import LIVEZ, closed_for

SHORT = Limits(header_seconds=0.4, request_seconds=0.4, handshake_seconds=0.5, goodbye_seconds=0.3)
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
PILED = GET * 7_000
"""Requests of 245 kB in all, just below what the event loop reads at once."""
PEERS = 8
GROWTH_MIB = 48
"""MiB; each request that was parsed ahead once took 5 kB, so that 8 peers took 270 MiB."""


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    folder = tmp_path_factory.mktemp("certs")
    with running(make_service(folder), SHORT) as clients:
        yield clients, folder / "ca.crt"


def peak_mib(replica: Replica) -> int:
    lines = Path(f"/proc/{replica.process.pid}/status").read_text("ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) >> 10


def test_pipelined_requests_are_answered_one_by_one(hasty: tuple[Running, Path]) -> None:
    clients, ca = hasty
    with connect(clients.tls.base_url.port, ca) as sock:
        sock.sendall(post() + GET + post() + GET * 50)
        read = b""
        while read.count(b"HTTP/1.1 404") < 51:
            part = sock.recv(65536)
            assert part
            read += part

    assert re.findall(rb"HTTP/1.1 (\d+)", read) == [b"200", b"404", b"200", *[b"404"] * 50]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_pipelined_requests_take_no_memory_before_their_turn(tmp_path: Path, tls: bool) -> None:
    """Faults 24 and 50: 15 connections that read nothing once ended a replica of 512 MiB."""
    authority = make_authority("only")
    write_leaf(authority, tmp_path)
    (tmp_path / "ca.crt").write_text(authority.pem, "ascii")
    replica = Replica("one", tmp_path, tmp_path, 0)
    try:
        before = peak_mib(replica)
        with contextlib.ExitStack() as stack:
            for _ in range(PEERS):
                sock = stack.enter_context(
                    connect(replica.tls if tls else replica.ops, (tls and tmp_path / "ca.crt") or None)
                )
                sock.settimeout(1)
                with contextlib.suppress(OSError):
                    sock.sendall(PILED)
            with connect(replica.ops) as other:
                other.sendall(LIVEZ)
                status = answer(other)[0]
        grown = peak_mib(replica) - before
    finally:
        replica.stop()

    assert (status, grown < GROWTH_MIB) == (200, True), grown


def test_connection_that_sends_much_before_its_answer_is_closed(tmp_path: Path) -> None:
    """No caller of ours pipelines; without the bound 640 connections would hold 256 KiB each."""
    with running(make_service(tmp_path)) as clients, connect(clients.ops.base_url.port) as sock:
        sock.settimeout(20)
        with contextlib.suppress(OSError):
            sock.sendall(PILED)
        wait_until("it gives way", lambda: closed_for(clients, "room") >= 1, 60)

        assert closed(sock)
        assert clients.ops.get("/livez").status_code == 200


def test_half_a_header_behind_a_finished_request_is_closed_in_time(hasty: tuple[Running, Path]) -> None:
    """Fault 24: it arrived with the request, so that no later byte began a wait for it."""
    clients, ca = hasty
    before = closed_for(clients, "header")
    with connect(clients.tls.base_url.port, ca) as sock:
        sock.sendall(post() + b"GET /livez HTTP/1.1\r\nX: ")
        status = answer(sock)[0]

        assert (status, closed(sock)) == (200, True)
    assert closed_for(clients, "header") == before + 1


def test_half_a_body_behind_a_finished_request_is_closed_in_time(hasty: tuple[Running, Path]) -> None:
    """Fault 24."""
    clients, ca = hasty
    before = closed_for(clients, "body")
    with connect(clients.tls.base_url.port, ca) as sock:
        sock.sendall(post() + post()[:-40])
        status = answer(sock)[0]

        assert (status, closed(sock)) == (200, True)
    assert closed_for(clients, "body") == before + 1
