# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus: the one on PATH, or Debian's package, downloaded and unpacked here without an installation.

`make prometheus` downloads about 20 MB, with apt's own settings and without root. Where there is no apt, the tests that
need it skip, and say so.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.controlplane.binaries import BUILT
from tests.controlplane.processes import Process, free_port, wait_until
from tests.debian import fetching, unpack

VARIABLE = "GPU_USHER_PROMETHEUS"
UNPACKED = BUILT / "prometheus"
PROGRAM = UNPACKED / "usr" / "bin" / "prometheus"
START_SECONDS = 60
"""Seconds for its start, which takes half a second."""
TOOL_SECONDS = 300
"""Seconds for a run of promtool: a check takes some tenths of a second, and writing a week of samples some seconds,
which were more than 60 on two cores with a load of 20."""
REMEDY = f"run `make prometheus` (needs apt-get), or set {VARIABLE} to a program"


def find_prometheus() -> Path | str:
    """Find the program; a str gives the cause why there is none, and the remedy."""
    if named := os.environ.get(VARIABLE):
        return Path(named) if os.access(named, os.X_OK) else f"{VARIABLE}={named}: no program"
    if path := shutil.which("prometheus"):
        return Path(path)
    return PROGRAM if PROGRAM.is_file() else f"no prometheus: {REMEDY}"


def find_promtool() -> Path | str:
    """Find promtool, which is in the same package; a str gives the cause why there is none."""
    server = find_prometheus()
    beside = server.with_name("promtool") if isinstance(server, Path) else None
    if beside is not None and beside.is_file():
        return beside
    which = shutil.which("promtool")
    return Path(which) if which else f"no promtool: {REMEDY}"


def promtool(*words: str, fed: str | None = None) -> str:
    """Run promtool, and return its output where it complains, else ""."""
    program = find_promtool()
    assert isinstance(program, Path), program
    done = subprocess.run(
        [str(program), *words], input=fed, timeout=TOOL_SECONDS, check=False, capture_output=True, text=True
    )
    return "" if done.returncode == 0 else f"{done.stdout}{done.stderr}"


def fetch() -> Path:
    """Download Debian's package and unpack it, unless there is a program already.

    Raises SystemExit with apt's output.
    """
    program = find_prometheus()
    if isinstance(program, Path):
        return program
    unpack("prometheus", ("prometheus",), UNPACKED)
    return PROGRAM


@dataclass(frozen=True, slots=True)
class Running:
    """A running Prometheus."""

    url: str
    process: Process


@contextlib.contextmanager
def prometheus(program: Path, folder: Path, scrape_configs: str) -> Iterator[Running]:
    """Run Prometheus on loopback; `scrape_configs` is its list of that name in flow style. It scrapes every second."""
    port = free_port()
    config = folder / "prometheus.yml"
    config.write_text(
        f"global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs: {scrape_configs}\n", "utf-8"
    )
    consoles = [f"--web.console.{kind}={folder}" for kind in ("templates", "libraries")]
    command = [str(program), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", *consoles]
    process = Process("prometheus", [*command, f"--web.listen-address=127.0.0.1:{port}"], folder / "prometheus.log")
    try:
        wait_until("it listens", lambda: "ready to receive" in process.tail(), START_SECONDS, process)
        yield Running(f"http://127.0.0.1:{port}", process)
    finally:
        process.stop()


if __name__ == "__main__":
    sys.exit(fetching("prometheus", fetch, sys.argv[1:]))
