# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus: the one on PATH, or Debian's package, downloaded and unpacked here without installing anything.

`make prometheus` downloads it: some 20 MB, with apt's own settings and without root. Where there is no apt the tests
that want one skip, and say so.
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
"""Bound on its start; takes half a second."""
TOOL_SECONDS = 60
"""Bound on a check by promtool; takes some tenths of a second."""
REMEDY = f"run `make prometheus` (needs apt-get), or set {VARIABLE} to a program"


def find_prometheus() -> Path | str:
    """Find the program; a string says why there is none, and what to do."""
    if named := os.environ.get(VARIABLE):
        return Path(named) if os.access(named, os.X_OK) else f"{VARIABLE}={named}: no program"
    if found := shutil.which("prometheus"):
        return Path(found)
    return PROGRAM if PROGRAM.is_file() else f"no prometheus: {REMEDY}"


def find_promtool() -> Path | str:
    """Find promtool, which is in the same package; a string says why there is none."""
    found = find_prometheus()
    beside = found.with_name("promtool") if isinstance(found, Path) else None
    if beside is not None and beside.is_file():
        return beside
    which = shutil.which("promtool")
    return Path(which) if which else f"no promtool: {REMEDY}"


def promtool(*words: str, fed: str | None = None) -> str:
    """Run promtool; gives what it said where it complains, else nothing."""
    program = find_promtool()
    assert isinstance(program, Path), program
    done = subprocess.run(
        [str(program), *words], input=fed, timeout=TOOL_SECONDS, check=False, capture_output=True, text=True
    )
    return "" if done.returncode == 0 else f"{done.stdout}{done.stderr}"


def fetch() -> Path:
    """Download Debian's package and unpack it, unless there is a program already.

    Raises SystemExit with apt's own words.
    """
    found = find_prometheus()
    if isinstance(found, Path):
        return found
    unpack("prometheus", ("prometheus",), UNPACKED)
    return PROGRAM


@dataclass(frozen=True, slots=True)
class Running:
    """A Prometheus that runs."""

    url: str
    process: Process


@contextlib.contextmanager
def prometheus(program: Path, folder: Path, scrape_configs: str) -> Iterator[Running]:
    """Run one on loopback, scraping every second. `scrape_configs`: the list of that name, as YAML in flow style."""
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
