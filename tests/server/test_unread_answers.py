# SPDX-License-Identifier: Apache-2.0
"""Peers that do not read their answers are closed in time, and hold nothing that others need."""

import contextlib
import re
import time
from pathlib import Path

from app.server.limits import Limits
from tests.api.sockets import closed
from tests.builders import make_service
from tests.controlplane.processes import wait_until
from tests.running import running
from tests.server.callers import METRICS, closed_for, connect_without_reading

QUICK = Limits(answer_seconds=0.3)


def test_answer_that_nobody_takes_does_not_keep_the_connection(tmp_path: Path) -> None:
    """Fault 24: the server sends nothing to detect such a peer, so that its own timer ends the connection."""
    with (
        running(make_service(tmp_path), QUICK) as clients,
        connect_without_reading(clients.ops.base_url.port, METRICS) as sock,
    ):
        wait_until("it is closed", lambda: closed_for(clients, "answer") >= 1, 20)
        sock.settimeout(20)

        assert closed(sock)


def test_pipelined_answers_that_nobody_takes_do_not_keep_the_connection(tmp_path: Path) -> None:
    """Fault 24: there are more answers than the buffers of both kernels hold."""
    with (
        running(make_service(tmp_path), QUICK) as clients,
        connect_without_reading(clients.ops.base_url.port, METRICS * 400) as sock,
    ):
        wait_until("it is closed", lambda: closed_for(clients, "answer") >= 1, 20)
        sock.settimeout(20)

        assert closed(sock)


def test_peers_that_take_nothing_leave_the_probes_answered(tmp_path: Path) -> None:
    """Fault 24: there are more such peers than requests may run at once; no time limit helps here."""
    limits = Limits(requests=4, answer_seconds=600)
    with running(make_service(tmp_path), limits) as clients, contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(connect_without_reading(clients.ops.base_url.port, METRICS * 400))
        statuses = [clients.ops.get(path).status_code for path in ("/livez", "/readyz") * 5]

    assert statuses == [200] * 10


def test_answer_that_is_taken_slowly_is_taken_whole(tmp_path: Path) -> None:
    """It takes longer than the limit for one byte, but makes progress all the time."""
    with (
        running(make_service(tmp_path), QUICK) as clients,
        connect_without_reading(clients.ops.base_url.port, METRICS) as sock,
    ):
        sock.settimeout(20)
        read = sock.recv(2_000)
        head, _, _ = read.partition(b"\r\n\r\n")
        length = len(head) + 4 + int(re.findall(rb"content-length: (\d+)", head)[0])
        while len(read) < length:
            time.sleep(0.03)
            part = sock.recv(2_000)
            assert part
            read += part

    assert len(read) == length
