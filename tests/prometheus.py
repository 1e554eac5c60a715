# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus: the one on PATH, or Debian's package, downloaded and unpacked here without an installation.

`make prometheus` downloads about 20 MB, with apt's own settings and without root. Where there is no apt, the tests that
need it skip, and say so.
"""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.controlplane.processes import Process, free_port, wait_until
from tests.debian import DebianProgram, fetching

PROMETHEUS = DebianProgram("prometheus", ("prometheus",), "usr/bin/prometheus", ("prometheus",))

START_SECONDS = 60
"""Seconds for its start, which takes half a second."""
TOOL_SECONDS = 300
"""Seconds for a run of promtool: a check takes some tenths of a second, and writing a week of samples some seconds,
which were more than 60 on two cores with a load of 20."""


def find_promtool() -> Path | str:
    """Find promtool, which is in the same package; a str gives the cause why there is none."""
    server = PROMETHEUS.find()
    beside = server.with_name("promtool") if isinstance(server, Path) else None
    if beside is not None and beside.is_file():
        return beside
    which = shutil.which("promtool")
    return Path(which) if which else f"The program promtool is not there. {PROMETHEUS.remedy}"


def promtool(*words: str, fed: str | None = None) -> str:
    """Run promtool, and return its output where it complains, else ""."""
    program = find_promtool()
    assert isinstance(program, Path), program
    done = subprocess.run(
        [str(program), *words], input=fed, timeout=TOOL_SECONDS, check=False, capture_output=True, text=True
    )
    return "" if done.returncode == 0 else f"{done.stdout}{done.stderr}"


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
    sys.exit(fetching("prometheus", PROMETHEUS.fetch, sys.argv[1:]))
