# SPDX-License-Identifier: Apache-2.0
"""Connections beyond the descriptors and bodies beyond the memory, on a real server process."""

import contextlib
import json
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.sockets import answer, connect, post
from tests.authorities import make_authority, write_leaf
from tests.builders import container, pod, review
from tests.controlplane.processes import wait_until
from tests.replicas import Replica

DESCRIPTORS = 96
"""Open files that the service may have; at rest it has about twenty."""
SOCKETS = 5_000
AT_ONCE = 400
HELD = 60
"""Bodies of 7.5 MiB that begin and never end: 450 MiB if all were kept."""
HELD_MIB = 220
"""MiB of 16 such bodies at once, and copies of some."""
REQUESTS = 1_500
GROWTH_MIB = 8
"""MiB after 1,500 reviews of as many templates: 15 MiB if one were kept for each; the allocator varies by about 2."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    authority = make_authority("only")
    write_leaf(authority, tmp_path)
    (tmp_path / "ca.crt").write_text(authority.pem, "ascii")
    return tmp_path


@contextlib.contextmanager
def descriptors(count: int) -> Iterator[None]:
    """Raise this process's limit of open files to `count`, where it may."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(before[1], count)), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def resident_mib(replica: Replica) -> int:
    lines = Path(f"/proc/{replica.process.pid}/status").read_text("ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) >> 10


def get(connection: socket.socket, path: str) -> tuple[int, str]:
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    status, _, body = answer(connection)
    return status, body.decode()


def policies(connection: socket.socket) -> Any:
    """Return the policies member of /readyz: their number, their hash, the last error."""
    return json.loads(get(connection, "/readyz")[1])["policies"]


def served(replica: Replica, folder: Path, request: bytes = b"") -> bool:
    with connect(replica.tls, folder / "ca.crt") as sock:
        sock.sendall(request or post())
        return answer(sock)[0] == 200


def flood(replica: Replica, probe: socket.socket, sockets: contextlib.ExitStack) -> tuple[int, set[int]]:
    """Open connections, close the oldest; return the most descriptors seen, and the statuses of /readyz meanwhile."""
    held: list[socket.socket] = []
    most, states = 0, set[int]()
    for number in range(SOCKETS):
        with contextlib.suppress(OSError):
            held.append(sockets.enter_context(socket.create_connection(("127.0.0.1", replica.tls), 1)))
        if len(held) > AT_ONCE:
            held.pop(0).close()
        if number % 100 == 99:
            most = max(most, len(list(Path(f"/proc/{replica.process.pid}/fd").iterdir())))
            states.add(get(probe, "/readyz")[0])
    return most, states


def test_more_connections_than_descriptors_end_nothing_and_are_got_over(folder: Path) -> None:
    """Fault 26: open connections are served, and files that cannot be opened do not change the last good state."""
    replica = Replica("one", folder, folder, 0, shell=f"ulimit -n {DESCRIPTORS}")
    try:
        with descriptors(2 * AT_ONCE), connect(replica.ops) as probe:
            before = policies(probe)
            with contextlib.ExitStack() as sockets:
                most, states = flood(replica, probe, sockets)
            wait_until("a new caller is served", lambda: served(replica, folder), 90, replica.process)
            wait_until("it sees its files again", lambda: policies(probe) == before, 30)
        lines = replica.process.log.read_text("utf-8").splitlines()
    finally:
        code = replica.stop()

    assert (most, states) == (DESCRIPTORS, {200})
    assert code == 0
    assert len(lines) < SOCKETS / 10
    assert not [line for line in lines if "Traceback" in line]


def test_large_bodies_are_held_a_few_at_a_time_and_small_ones_are_served(folder: Path) -> None:
    """Fault 50: 512 bodies just below the limit would take 4 GiB."""
    replica = Replica("one", folder, folder, 0)
    before = resident_mib(replica)
    size = 15 << 19
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(HELD):
                sock = stack.enter_context(connect(replica.tls, folder / "ca.crt"))
                with contextlib.suppress(OSError):
                    sock.sendall(post(b" " * (size - 10), length=size))
            held = resident_mib(replica) - before
            small = served(replica, folder)
    finally:
        replica.stop()

    assert small
    assert held < HELD_MIB


def template(number: int) -> bytes:
    """Write a review of a pod that equals no other, with an image, variables and annotations of its own."""
    variables = [{"name": "NVIDIA_REQUIRE_CUDA", "value": f"cuda>=12.{number % 9},driver>={number}"}]
    asking = container(None, {"nvidia.com/gpu": "1"}, image=f"example.com/train:{number}", env=variables)
    annotations = {"products": f"A{number}, H100", "gpu-memory": f"{number % 70}Gi"}
    return post(json.dumps(review(pod(asking, annotations=annotations), uid=f"r-{number}")).encode())


def ask_many(replica: Replica, folder: Path, numbers: range) -> int:
    """Review that many pods one after the other, and return the resident memory afterwards, in MiB."""
    with connect(replica.tls, folder / "ca.crt") as sock:
        for number in numbers:
            sock.sendall(template(number))
            assert answer(sock)[0] == 200
    return resident_mib(replica)


@pytest.mark.long
def test_memory_does_not_grow_with_the_requests_answered(folder: Path) -> None:
    """Fault 50: caches are bounded, so that a week of requests takes no more memory than a minute."""
    replica = Replica("one", folder, folder, 0)
    began = time.monotonic()
    try:
        warm = ask_many(replica, folder, range(REQUESTS))
        after = ask_many(replica, folder, range(REQUESTS, 2 * REQUESTS))
    finally:
        replica.stop()

    assert after - warm < GROWTH_MIB, f"{warm} to {after} MiB in {time.monotonic() - began:.0f} s"
