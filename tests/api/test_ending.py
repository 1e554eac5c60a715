# SPDX-License-Identifier: Apache-2.0
"""How the process ends, and what cannot delay it: hung handlers, silent callers, full pipes under stdout and stderr."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.server.process import HUNG
from tests.api.sockets import answer, closed, connect, post
from tests.authorities import make_authority, write_leaf
from tests.builders import make_service, pod, review
from tests.controlplane.processes import wait_until
from tests.replicas import Replica
from tests.running import running

HUNG_PROGRAM = """
import threading, time, signal, os, sys
from app.server.process import stop_on_signals
with stop_on_signals(lambda: None, float(sys.argv[1])):
    print("up", flush=True)
    while True:
        time.sleep(0.05)
"""
"""An event loop that is told to stop, and hangs."""

GROWTH_MIB = 64
"""The 8 MiB that are read before the refusal, some copies of them, and the imports of the first request."""


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    write_leaf(make_authority("only"), tmp_path)
    made = Replica("one", tmp_path, tmp_path, 30)
    yield made
    made.process.stop(signal.SIGKILL)


def test_draining_replica_says_so_answers_and_closes_each_connection(replica: Replica) -> None:
    """HA-03: this holds for old connections and for new ones."""
    with connect(replica.ops) as old:
        old.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        before = answer(old)
        os.kill(replica.process.pid, signal.SIGTERM)
        wait_until("it is not ready", lambda: replica.status() == 503, 60, replica.process)
        old.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        status, headers, body = answer(old)
        ended = closed(old)
    with connect(replica.ops) as new:
        new.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        last = answer(new)

    assert (before[0], "connection" in before[1]) == (200, False)
    assert (status, headers["connection"], json.loads(body)["draining"], ended) == (503, "close", True, True)
    assert (last[0], last[1]["connection"]) == (200, "close")


def test_second_signal_ends_at_once(replica: Replica) -> None:
    """Fault 40: the process would otherwise drain for 30 s."""
    os.kill(replica.process.pid, signal.SIGTERM)
    wait_until("it is not ready", lambda: replica.status() == 503, 60, replica.process)

    assert replica.process.stop(signal.SIGINT) == 128 + signal.SIGINT


def test_loop_that_hangs_is_ended_when_patience_is_over() -> None:
    """Fault 40."""
    with subprocess.Popen([sys.executable, "-c", HUNG_PROGRAM, "0.3"], stdout=subprocess.PIPE, text=True) as hung:
        assert hung.stdout is not None
        assert hung.stdout.readline() == "up\n"
        hung.send_signal(signal.SIGTERM)

        assert hung.wait(20) == HUNG


def test_request_on_its_way_when_the_listener_closes_is_answered(tmp_path: Path) -> None:
    """HA-03: even without draining, a body that is half sent at the end is still read."""
    service = make_service(tmp_path)
    with running(service) as clients:
        slow = connect(clients.tls.base_url.port, tmp_path / "ca.crt")
        slow.sendall(post()[:-5])
        assert clients.tls.post("/mutate", json=review(pod())).status_code == 200  # the half is read by now
        ending = threading.Timer(0.3, slow.sendall, (post()[-5:],))
        ending.start()
    ending.join()
    with slow:
        status, headers, _ = answer(slow)

    assert (status, headers["connection"]) == (200, "close")


def test_streams_that_nobody_reads_keep_neither_requests_nor_the_end(tmp_path: Path) -> None:
    """Fault 49: stdout and stderr are one full pipe."""
    write_leaf(make_authority("only"), tmp_path)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 65536)
    except BlockingIOError:
        os.set_blocking(writing, True)
    replica = Replica("one", tmp_path, tmp_path, 0, output=writing)
    try:
        with connect(replica.ops) as sock:
            for _ in range(300):
                sock.sendall(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert answer(sock)[0] == 404
        with connect(replica.tls) as plain:
            plain.sendall(b"no TLS\r\n\r\n")
            assert closed(plain)
    finally:
        code = replica.stop()
        os.close(reading)
        os.close(writing)

    assert code == 0


def test_full_disk_under_the_log_does_not_end_it(tmp_path: Path) -> None:
    """Fault 49."""
    write_leaf(make_authority("only"), tmp_path)
    full = os.open("/dev/full", os.O_WRONLY)
    replica = Replica("one", tmp_path, tmp_path, 0, output=full)
    os.close(full)

    assert (replica.status(), replica.stop()) == (200, 0)


def peak_mib(replica: Replica) -> int:
    lines = Path(f"/proc/{replica.process.pid}/status").read_text("ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) >> 10


def test_stream_of_200_mb_is_a_413_and_is_not_kept(tmp_path: Path) -> None:
    """Fault 22: the body comes in chunks, without a Content-Length."""
    authority = make_authority("only")
    write_leaf(authority, tmp_path)
    (tmp_path / "ca.crt").write_text(authority.pem, "ascii")
    replica = Replica("one", tmp_path, tmp_path, 0)
    before = peak_mib(replica)
    try:
        with connect(replica.tls, tmp_path / "ca.crt") as sock:
            sock.sendall(b"POST /mutate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            with contextlib.suppress(OSError):  # the server may close before all of it is sent
                for _ in range(200):
                    sock.sendall(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
        after = peak_mib(replica)
        refused = metric(replica, "mutate")
    finally:
        replica.stop()

    assert refused == 1
    assert after - before < GROWTH_MIB


def metric(replica: Replica, verb: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{replica.ops}/metrics", timeout=20) as read:
        lines = read.read().decode().splitlines()
    sample = f'gpu_usher_oversized_bodies_total{{verb="{verb}"}} '
    return float(next((line for line in lines if line.startswith(sample)), "0 0").split()[1])
