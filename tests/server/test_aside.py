# SPDX-License-Identifier: Apache-2.0
"""The main loop beside a thread that computes: the operations listener has one, and anybody can keep it busy."""

import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.api.sockets import connect
from tests.builders import usher
from tests.running import running
from tests.server.callers import LIVEZ

DEFAULT_SECONDS = 0.005
"""Python's own switch interval."""
TURNS = 40
"""Of the loop; in each it gives the interpreter away, and asks for it again."""


@contextmanager
def computing() -> Iterator[None]:
    """Keep the interpreter busy in another thread."""
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(100))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(20)


async def seconds_of_turns() -> float:
    began = time.monotonic()
    for _ in range(TURNS):
        await asyncio.sleep(0.0001)
    return time.monotonic() - began


def test_main_loop_gets_its_turns_beside_a_busy_thread(tmp_path: Path) -> None:
    """A ratio within one run: with Python's default one pipelining client delayed each admission by half a second."""
    ours: list[float] = []
    default: list[float] = []
    before = sys.getswitchinterval()
    try:
        with running(usher(tmp_path)) as clients:
            switch = sys.getswitchinterval()
            for _ in range(5):
                for seconds, measured in ((switch, ours), (DEFAULT_SECONDS, default)):
                    sys.setswitchinterval(seconds)
                    with computing():
                        turns = asyncio.run_coroutine_threadsafe(seconds_of_turns(), clients.loop)
                        measured.append(turns.result(60))
    finally:
        sys.setswitchinterval(before)

    assert statistics.median(ours) < statistics.median(default) / 2, (ours, default)


def test_thread_of_operations_sleeps_between_pipelined_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A least time, so that a busy machine cannot fail it: where the thread does not sleep the main loop starves."""
    monkeypatch.setattr("app.server.aside.PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("app.server.aside.WORK_SECONDS", 0.0)
    with running(usher(tmp_path)) as clients, connect(clients.ops.base_url.port) as sock:
        sock.settimeout(20)
        began, read = time.monotonic(), b""
        sock.sendall(LIVEZ * 50)
        while read.count(b"HTTP/1.1 200") < 50:
            read += sock.recv(65_536)

        assert time.monotonic() - began >= 0.5
