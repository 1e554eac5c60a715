# SPDX-License-Identifier: Apache-2.0
"""Memory of large bodies goes back to the system."""

import platform
import subprocess
import sys

import pytest

BODIES = """
import resource, sys
from pathlib import Path
from app.server.allocator import return_large_blocks
if sys.argv[1] == "told":
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


def grown(told: str) -> int:
    """Give the mebibytes that a process has kept after bodies have come and gone between what it remembers."""
    ran = subprocess.run([sys.executable, "-c", BODIES, told], capture_output=True, text=True, check=True, timeout=60)
    return int(ran.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_large_bodies_leave_no_memory_behind() -> None:
    """HA-08: what they leave in the heap is less than one of them, besides the 22 MiB that are remembered."""
    told = grown("told")

    assert told < 22 + 7
    assert told < grown("untold")
