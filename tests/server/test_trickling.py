# SPDX-License-Identifier: Apache-2.0
"""Bodies that arrive too slowly: each piece comes in time, but the whole body never does."""

from pathlib import Path

from app.server.limits import Limits
from tests.api.sockets import connect, post
from tests.builders import make_service
from tests.controlplane.processes import wait_until
from tests.running import running
from tests.server.callers import closed_for, ended, repeating, served

BEGUN = post(b"", length=5_000)
PAUSE_SECONDS = 0.05


def test_body_that_trickles_is_closed_after_the_time_of_a_request(tmp_path: Path) -> None:
    """Fault 24: one byte per 0.7 s on 530 connections once kept all others out."""
    limits = Limits(request_seconds=0.5)
    with (
        running(make_service(tmp_path), limits) as clients,
        connect(clients.tls.base_url.port, tmp_path / "ca.crt") as slow,
    ):
        slow.sendall(BEGUN)

        assert ended(slow, lambda: slow.sendall(b" "), PAUSE_SECONDS, 10)
        assert closed_for(clients, "body") == 1


def test_trickling_bodies_give_way_to_requests_when_there_is_no_room(tmp_path: Path) -> None:
    """HA-08: such bodies never stalled, so that they once gave way to nothing. No time limit helps here."""
    limits = Limits(request_seconds=6_000, requests=8)
    ca = tmp_path / "ca.crt"
    with running(make_service(tmp_path), limits) as clients:
        port = clients.tls.base_url.port
        socks = [connect(port, ca) for _ in range(8)]
        for sock in socks:
            sock.sendall(BEGUN)

        def trickle() -> None:
            for sock in list(socks):
                try:
                    sock.sendall(b" ")
                except OSError:
                    socks.remove(sock)
                    sock.close()

        with repeating(trickle, PAUSE_SECONDS):
            wait_until("a request is served", lambda: served(port, ca) == 200, 60)
        for sock in socks:
            sock.close()

        assert closed_for(clients, "room") >= 1


def test_endless_trailer_behind_chunks_is_refused(tmp_path: Path) -> None:
    """Fault 25: the parser keeps a line until its end, and no limit on bodies counts it."""
    head = b"POST /mutate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: "
    with running(make_service(tmp_path)) as clients, connect(clients.tls.base_url.port, tmp_path / "ca.crt") as endless:
        endless.sendall(head)

        assert ended(endless, lambda: endless.sendall(b"a" * 65_536), 0.01, 10)
        assert closed_for(clients, "header_size") == 1
