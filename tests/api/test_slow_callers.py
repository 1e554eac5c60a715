# SPDX-License-Identifier: Apache-2.0
"""Callers that send slowly, too much, or something else than they announced, over real sockets."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.server.limits import Limits
from tests.api.sockets import BODY, answer, closed, connect, post
from tests.builders import make_service, pod, review
from tests.controlplane.processes import wait_until
from tests.running import Running, running

SHORT = Limits(header_seconds=0.4, request_seconds=0.4, handshake_seconds=0.5, goodbye_seconds=0.3)
HALF = post()[:-40]
SLOW = {"silent": b"", "partial header": HALF[:30], "header in part of a line": b"POST /mu", "partial body": HALF}


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    folder = tmp_path_factory.mktemp("certs")
    with running(make_service(folder), SHORT) as clients:
        yield clients, folder / "ca.crt"


def metric(clients: Running, line: str) -> float:
    matches = (row for row in clients.ops.get("/metrics").text.splitlines() if row.startswith(line + " "))
    return float(next(matches, "0 0").split()[1])


@pytest.mark.parametrize("sent", SLOW.values(), ids=SLOW.keys())
def test_caller_that_stops_sending_is_closed(hasty: tuple[Running, Path], sent: bytes) -> None:
    """Fault 24: the caller uses TLS, as the API server does."""
    clients, ca = hasty
    with connect(clients.tls.base_url.port, ca) as slow:
        slow.sendall(sent)

        assert closed(slow)
    assert clients.tls.post("/mutate", json=review(pod())).status_code == 200


def test_silent_tls_handshake_is_closed(hasty: tuple[Running, Path]) -> None:
    """Fault 24: the caller sends no byte of a ClientHello."""
    clients, _ = hasty
    with connect(clients.tls.base_url.port) as silent:
        assert closed(silent)


@pytest.mark.parametrize("kind", ["header", "body"])
def test_closed_connections_are_counted_by_what_they_were_waited_for(hasty: tuple[Running, Path], kind: str) -> None:
    clients, _ = hasty
    line = f'gpu_usher_closed_connections_total{{waiting_for="{kind}"}}'
    before = metric(clients, line)
    with connect(clients.ops.base_url.port) as slow:
        slow.sendall({"header": b"GET /", "body": HALF}[kind])
        assert closed(slow)

    assert metric(clients, line) > before


def test_header_that_trickles_is_closed_although_it_goes_on(hasty: tuple[Running, Path]) -> None:
    """In a Slowloris attack each byte comes in time, but the header never ends."""
    clients, _ = hasty
    with connect(clients.ops.base_url.port) as slow:
        slow.settimeout(0.05)
        sent = 0
        with contextlib.suppress(ConnectionError):
            for _ in range(400):  # 20 s, the bound
                slow.sendall(b"GET /readyz HTTP/1.1\r\nX: " if not sent else b"a")
                sent += 1
                with contextlib.suppress(TimeoutError):
                    if not slow.recv(1):
                        break

    assert sent < 400


def test_body_in_pieces_is_answered_however_many_they_are(hasty: tuple[Running, Path]) -> None:
    clients, ca = hasty
    with connect(clients.tls.base_url.port, ca) as slow:
        whole = post()
        for start in range(0, len(whole), 100):
            slow.sendall(whole[start : start + 100])

        assert answer(slow)[0] == 200


def test_idle_connection_outlives_the_waits_for_requests(hasty: tuple[Running, Path]) -> None:
    """HA-04: keep-alive has uvicorn's own timer, and the bound on slow callers another one."""
    clients, ca = hasty
    with connect(clients.tls.base_url.port, ca) as idle:
        idle.sendall(post())
        first = answer(idle)[0]
        for _ in range(3):
            with connect(clients.ops.base_url.port) as slow:
                slow.sendall(HALF)
                assert closed(slow)
        idle.sendall(post())

        assert (first, answer(idle)[0]) == (200, 200)


def test_stray_line_ends_between_requests_do_not_keep_a_connection(hasty: tuple[Running, Path]) -> None:
    clients, ca = hasty
    with connect(clients.tls.base_url.port, ca) as stray:
        stray.sendall(post())
        answer(stray)
        stray.sendall(b"\r\n")

        assert closed(stray)


@pytest.mark.parametrize("line", [b"X: " + b"a" * (1 << 20), b"X: a\r\n" * 20_000], ids=["one line", "many lines"])
def test_large_header_is_refused_and_closed(hasty: tuple[Running, Path], line: bytes) -> None:
    """Fault 25."""
    clients, ca = hasty
    with connect(clients.tls.base_url.port, ca) as bomb:
        with contextlib.suppress(OSError):
            bomb.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n" + line)

        assert closed(bomb)
    assert clients.tls.post("/mutate", json=review(pod())).status_code == 200
    assert metric(clients, 'gpu_usher_closed_connections_total{waiting_for="header_size"}') > 0


@pytest.mark.parametrize(("size", "status"), [(60_000, 200), (66_000, 431)], ids=["below", "above"])
def test_header_of_64_kib_is_the_limit_and_the_refusal_a_status(
    hasty: tuple[Running, Path], size: int, status: int
) -> None:
    clients, ca = hasty
    with connect(clients.tls.base_url.port, ca) as sock:
        sock.sendall(post(b" " * 90_000 + BODY, more=b"X: " + b"a" * size + b"\r\n"))
        code, _, body = answer(sock)

    assert code == status
    assert (json.loads(body)["kind"] == "Status") is (status == 431)


def test_what_is_no_http_is_a_400_status(hasty: tuple[Running, Path]) -> None:
    clients, ca = hasty
    with connect(clients.tls.base_url.port, ca) as sock:
        sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        code, headers, body = answer(sock)
        ended = closed(sock)

    assert (code, headers["connection"], json.loads(body)["kind"], ended) == (400, "close", "Status", True)


def test_content_length_that_says_too_much_is_closed(hasty: tuple[Running, Path]) -> None:
    """Fault 23."""
    clients, ca = hasty
    with connect(clients.tls.base_url.port, ca) as liar:
        liar.sendall(post(length=len(BODY) + 100))

        assert closed(liar)


def test_content_length_that_says_too_little_is_no_second_request(hasty: tuple[Running, Path]) -> None:
    """Fault 23: the rest of the body is not HTTP, so it gets a second 400, and the connection is closed."""
    clients, ca = hasty
    with connect(clients.tls.base_url.port, ca) as liar:
        liar.sendall(post(length=len(BODY) - 10))
        code, _, _ = answer(liar)

        assert code == 400
        assert closed(liar)


@pytest.mark.parametrize("length", [b"-1", b"99999999999999999999", b"1 1", b"0x10"])
def test_content_length_that_is_none_is_a_400(hasty: tuple[Running, Path], length: bytes) -> None:
    clients, ca = hasty
    with connect(clients.tls.base_url.port, ca) as liar:
        liar.sendall(b"POST /mutate HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + length + b"\r\n\r\n{}")

        assert answer(liar)[0] == 400


def test_chunks_that_never_end_are_closed(hasty: tuple[Running, Path]) -> None:
    """Fault 23."""
    clients, ca = hasty
    head = b"POST /mutate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(clients.tls.base_url.port, ca) as endless:
        endless.sendall(head + b"4\r\n    \r\n" * 50)

        assert closed(endless)


def test_bodies_that_stall_give_way_to_requests_when_there_is_no_room(tmp_path: Path) -> None:
    """HA-08: stalled bodies hold no place that a request needs."""
    limits = Limits(request_seconds=600, requests=8, stalled_seconds=0.2)
    with running(make_service(tmp_path), limits) as clients, contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(connect(clients.tls.base_url.port, tmp_path / "ca.crt")).sendall(HALF)

        def served() -> bool:
            return clients.tls.post("/mutate", json=review(pod())).status_code == 200

        wait_until("they have stalled", served, 60)

        assert metric(clients, 'gpu_usher_closed_connections_total{waiting_for="room"}') >= 1


def test_request_beyond_those_in_hand_is_a_503_status_and_counted(tmp_path: Path) -> None:
    """HA-08: the connection stays open."""
    limits = Limits(request_seconds=600, requests=8, stalled_seconds=600)
    ca = tmp_path / "ca.crt"
    with running(make_service(tmp_path), limits) as clients, contextlib.ExitStack() as stack:
        port = clients.tls.base_url.port
        held = [stack.enter_context(connect(port, ca)) for _ in range(8)]
        for sock in held:
            sock.sendall(HALF)

        def full() -> bool:
            return clients.tls.post("/mutate", json=review(pod())).status_code == 503

        wait_until("all eight are in hand", full, 60)
        refused = clients.tls.post("/mutate", json=review(pod()))
        for sock in held:
            sock.sendall(post()[len(HALF) :])
        finished = [answer(sock)[0] for sock in held]

        assert (refused.status_code, refused.json()["reason"]) == (503, "ServiceUnavailable")
        assert finished == [200] * 8
        assert clients.tls.post("/mutate", json=review(pod())).status_code == 200
        assert metric(clients, "gpu_usher_shed_requests_total") >= 2
