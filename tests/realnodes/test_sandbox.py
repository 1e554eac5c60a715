# SPDX-License-Identifier: Apache-2.0
"""Nothing of a sandbox is left, however it ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane.processes import wait_until
from tests.realnodes.sandbox import CGROUPS, CONTROLLERS, missing

SECONDS = 120
"""Bound on the start and the end of a sandbox, which take a second on quiet cores."""
COMMAND = "mkdir /sys/fs/cgroup/memory/inner; sleep 877 & sleep 878"
"""Numbers of seconds by which the processes are found again."""


@pytest.fixture(autouse=True)
def able() -> None:
    """Skips where there can be no sandbox."""
    if why := missing():
        pytest.skip(why)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Heeds SIGINT, which a shell makes every command ignore that it starts with `&`, and its children too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def processes() -> list[str]:
    """List the command lines of this machine that are of the sandbox's command."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if line.startswith("sleep 87"):
            lines.append(line)
    return lines


def cgroups(pid: int) -> list[Path]:
    """List the cgroups of a sandbox that a process started."""
    return [path for name in CONTROLLERS if (path := CGROUPS / name / f"gpu-usher-{pid}").is_dir()]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_nothing_is_left_of_a_sandbox_that_was_killed(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.realnodes.sandbox", "sh", "-c", COMMAND]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as sandbox:
        try:
            wait_until("the command runs", lambda: len(processes()) == 2, SECONDS)
            assert len(cgroups(sandbox.pid)) == len(CONTROLLERS)
            assert len(list(tmp_path.iterdir())) == 1
            sandbox.send_signal(number)
            sandbox.wait(SECONDS)
        finally:
            sandbox.kill()

    wait_until("its processes have ended", lambda: not processes(), SECONDS)
    wait_until("its cgroups are removed", lambda: not cgroups(sandbox.pid), SECONDS)
    wait_until("its folder is removed", lambda: not list(tmp_path.iterdir()), SECONDS)


def test_exit_code_of_the_command_is_that_of_the_sandbox() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.realnodes.sandbox", "sh", "-c", "exit 7"], timeout=SECONDS, check=False
    )

    assert done.returncode == 7
