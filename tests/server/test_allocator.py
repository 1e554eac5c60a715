# SPDX-License-Identifier: Apache-2.0
"""The memory of large bodies returns to the system."""

import platform
import subprocess
import sys

import pytest

BODIES = """
import resource, sys
from pathlib import Path
from app.server.process import return_large_blocks
if sys.argv[1] == "configured":
    return_large_blocks()
def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20
del (first := [bytearray(30 << 20)])[:]
before, kept = rss(), []
for _ in range(20):
    bodies = [bytearray(7 << 20)]
    kept.append(bytes(100_000))
    bodies += [bytearray(7 << 20)]
    kept.append(bytes(100_000))
    del bodies
    kept.append([bytes(1_000) for _ in range(900)])
print(rss() - before)
"""


def growth_mib(mode: str) -> int:
    """Return the MiB that a process has kept after bodies came and went between the objects that it keeps."""
    ran = subprocess.run([sys.executable, "-c", BODIES, mode], capture_output=True, text=True, check=True, timeout=60)
    return int(ran.stdout)


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc",
    reason="The test measures the heap of glibc, which this Python does not use. It runs with a Python that does.",
)
def test_large_bodies_leave_no_memory_behind() -> None:
    """HA-08: besides the 22 MiB that are kept, less than one body stays in the heap."""
    kept_mib = growth_mib("configured")

    assert kept_mib < 22 + 7
    assert kept_mib < growth_mib("default")
