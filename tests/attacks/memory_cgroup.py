# SPDX-License-Identifier: Apache-2.0
"""A memory cgroup (version 1 or 2) for one replica, so that an attack that fills its memory ends it as in a pod."""

import contextlib
import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
EMPTY_SECONDS = 5.0
"""The kernel needs a moment to empty the cgroup of a process that has ended; the removal is tried for so long."""


class MemoryCgroup:
    """A memory cgroup. `limited` is False where this machine lets us make none: then nothing but RSS is measured."""

    def __init__(self, mib: int) -> None:
        unified = (ROOT / "cgroup.controllers").exists()
        self._folder = (ROOT if unified else ROOT / "memory") / f"gpu-usher-attacks-{os.getpid()}"
        limit = "memory.max" if unified else "memory.limit_in_bytes"
        self.limited = False
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            (self._folder / limit).write_text(str(mib << 20), "ascii")
            self.limited = True

    @property
    def enter(self) -> str:
        """The words of a shell that puts itself, and the program that it becomes, into the cgroup."""
        return f"echo $$ > {self._folder}/cgroup.procs" if self.limited else "true"

    def close(self) -> None:
        """Remove the cgroup, once its processes have ended."""
        end = time.monotonic() + EMPTY_SECONDS
        while self._folder.exists() and time.monotonic() < end:
            with contextlib.suppress(OSError):
                self._folder.rmdir()
            time.sleep(0.05)
