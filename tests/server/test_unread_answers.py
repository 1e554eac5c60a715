# SPDX-License-Identifier: Apache-2.0
"""Peers that do not read their answers are closed in time, and hold nothing that others need."""

import contextlib
import select
import socket
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from app.api.direct_routes import Answer, send_answer
from app.server.accepting import SEND_BUFFER
from app.server.limits import Limits
from app.telemetry.logs import now
from app.tls.serving_certificates import issue_if_needed, load_serving
from tests.api.sockets import closed, connect
from tests.builders import make_service
from tests.controlplane.processes import wait_until
from tests.running import running
from tests.server.callers import METRICS, closed_for, connect_without_reading, served, serving

WANTS_LINUX = pytest.mark.skipif(
    not Path("/proc/net/tcp").exists(), reason="The kernel's buffers are read in /proc/net/tcp. The test runs on Linux."
)

QUICK = Limits(request_seconds=0.3)


def test_answer_that_nobody_takes_does_not_keep_the_connection(tmp_path: Path) -> None:
    """Fault 24: the server sends nothing to detect such a peer, so that its own timer ends the connection."""
    with (
        running(make_service(tmp_path), QUICK) as clients,
        connect_without_reading(clients.ops.base_url.port, METRICS) as sock,
    ):
        wait_until("it is closed", lambda: closed_for(clients, "answer") >= 1, 60)
        sock.settimeout(20)

        assert closed(sock)


def test_pipelined_answers_that_nobody_takes_do_not_keep_the_connection(tmp_path: Path) -> None:
    """Fault 24: there are more answers than the buffers of both kernels hold."""
    with (
        running(make_service(tmp_path), QUICK) as clients,
        connect_without_reading(clients.ops.base_url.port, METRICS * 400) as sock,
    ):
        wait_until("it is closed", lambda: closed_for(clients, "answer") >= 1, 60)
        sock.settimeout(20)

        assert closed(sock)


def test_peers_that_take_nothing_leave_the_probes_answered(tmp_path: Path) -> None:
    """Fault 24: there are more such peers than requests may run at once; no time limit helps here."""
    limits = Limits(requests=4, request_seconds=600)
    with running(make_service(tmp_path), limits) as clients, contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(connect_without_reading(clients.ops.base_url.port, METRICS * 400))
        statuses = [clients.ops.get(path).status_code for path in ("/livez", "/readyz") * 5]

    assert statuses == [200] * 10


LARGE = 4 << 20


async def large_answer(_scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer with more than a kernel takes for a peer at once."""
    length = (b"content-length", str(LARGE).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": bytes(LARGE)})


@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"], ids=["kept", "last answer"])
def test_peers_that_take_nothing_leave_room_for_others(close: bytes) -> None:
    """Fault 24: there are more such peers than connections; no time limit helps here."""
    limits = Limits(request_seconds=600, connections=4, newcomer_seconds=0.05, stalled_seconds=0.05)
    with serving(large_answer, limits) as port, contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(connect_without_reading(port, METRICS[:-2] + close + b"\r\n"))

        assert served(port, None, METRICS) == 200


async def large_json(scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer as the verbs do, in one write."""
    await send_answer(Answer(bytes(LARGE)), scope, send)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_answers_that_nobody_takes_are_bounded_over_all_connections(tmp_path: Path, tls: bool) -> None:
    """Fault 24: a TLS transport does not count the first answer that it holds. The longest waiting peer is closed."""
    pair = issue_if_needed(tmp_path, now())
    context = load_serving(pair, now()).context if tls else None
    limits = Limits(request_seconds=600, unread_bytes=LARGE + LARGE // 2)
    with serving(large_json, limits, context) as port, contextlib.ExitStack() as stack:
        peers = [stack.enter_context(connect(port, pair.ca if tls else None)) for _ in range(2)]
        for peer in peers:
            peer.sendall(METRICS)
            assert peer.recv(1)

        assert closed(peers[0])
        assert len(rest_of(peers[1])) == LARGE


def rest_of(sock: socket.socket) -> bytes:
    """Read the rest of an answer whose first byte was read, and return its body."""
    read = b""
    while len(body := read.partition(b"\r\n\r\n")[2]) < LARGE and (part := sock.recv(1 << 20)):
        read += part
    return body


def sending(port: int) -> list[tuple[str, int]]:
    """List the state and the unsent bytes of the kernel's connections of a port, those of no process included.

    See proc_net_tcp(5): a state is a number of include/net/tcp_states.h, and 0A is the listening socket.
    """
    rows = [line.split() for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]]
    own = [row for row in rows if int(row[1].partition(":")[2], 16) == port and row[3] != "0A"]
    return [(row[3], int(row[4].partition(":")[0], 16)) for row in own]


@WANTS_LINUX
def test_kernel_keeps_nothing_of_a_closed_peer_that_takes_nothing() -> None:
    """Fault 24: an orderly close would leave its bytes in the kernel's memory for one to two minutes."""
    with serving(large_answer, QUICK) as port, contextlib.ExitStack() as stack:
        deaf = [stack.enter_context(connect_without_reading(port, METRICS)) for _ in range(20)]
        wait_until("all are closed", lambda: all(map(reset_or_closed, deaf)), 60)

        assert sending(port) == []


def reset_or_closed(sock: socket.socket) -> bool:
    """Tell whether the peer has closed a connection, without taking what it sent before."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return any(events & (select.POLLRDHUP | select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


@WANTS_LINUX
def test_kernel_takes_a_bounded_part_of_an_answer_that_nobody_takes() -> None:
    """Fault 24: what does not fit waits in our buffer, where it is counted."""
    with serving(large_answer, Limits(request_seconds=600)) as port, connect_without_reading(port, METRICS):
        wait_until("it sends", lambda: any(unsent for _, unsent in sending(port)), 60)
        wait_until("it is blocked", lambda: sending(port) == sending(port), 60)

        assert sum(unsent for _, unsent in sending(port)) <= 2 * SEND_BUFFER
