# SPDX-License-Identifier: Apache-2.0
"""Two processes that run tests at once never start servers on one port."""

import subprocess
import sys

from tests.controlplane.processes import BLOCK

DRAW = f"""
import sys
from tests.controlplane.processes import free_port
print(*(free_port() for _ in range({BLOCK + 50})), flush=True)
sys.stdin.read()
"""


def test_processes_that_run_at_once_find_different_ports() -> None:
    processes = [
        subprocess.Popen((sys.executable, "-c", DRAW), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    drawn = [process.stdout.readline().split() for process in processes if process.stdout]
    for process in processes:
        process.communicate(timeout=60)

    ports = {port for one in drawn for port in one}
    assert [len(one) for one in drawn] == [BLOCK + 50] * 3
    assert len(ports) == 3 * (BLOCK + 50)
