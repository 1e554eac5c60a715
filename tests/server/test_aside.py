# SPDX-License-Identifier: Apache-2.0
"""The thread of operations, which shares one interpreter with the main loop and which anybody can keep busy."""

import time
from pathlib import Path

import pytest

from tests.api.sockets import connect
from tests.builders import usher
from tests.running import running
from tests.server.callers import LIVEZ


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
