# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of the web UI: the effect of an open page on filter. The service runs as a process on a snapshot."""

import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.bench.explaining import filter_body, meanwhile, p99, served, write_snapshot
from tests.controlplane.processes import Process

ROUNDS = 6
REQUESTS = 200
"""Requests of about 0.7 s of CPU, which the kernel counts in hundredths of a second."""
LOAD_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Watched:
    """Medians over rounds of ratios, each within a round against the service without a page.

    `cpu` is that of the service for the same requests with a page open, and includes the cost of the page itself.
    `loaded` is the p99 of filter by the wall clock, with the page loaded twice a second.
    """

    cpu: float
    loaded: float


def bench(node_count: int, pod_count: int) -> Watched:
    """Write the snapshot, then measure on it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        snapshot = folder / "snapshot.json"
        write_snapshot(snapshot, node_count, pod_count)
        body = filter_body(node_count)
        cpu, loaded = [], []
        with served(folder, snapshot) as (people, tls, process):
            p99(tls, body)
            for _ in range(ROUNDS):
                alone = _cpu(tls, body, process)
                with _open_page(people):
                    cpu.append(_cpu(tls, body, process) / alone)
                quiet = p99(tls, body)
                with meanwhile(lambda client: client.get(people + "/"), LOAD_SECONDS):
                    loaded.append(p99(tls, body) / quiet)
    return Watched(statistics.median(cpu), statistics.median(loaded))


def _cpu(client: httpx.Client, body: bytes, process: Process) -> float:
    before = process.cpu_seconds()
    for _ in range(REQUESTS):
        assert client.post("/scheduler/filter", content=body).status_code == 200
    return process.cpu_seconds() - before


@contextmanager
def _open_page(people: str) -> Iterator[None]:
    with httpx.Client(trust_env=False, timeout=60) as client:
        client.get(people + "/")
        with client.stream("GET", people + "/events?of=fleet"):
            yield


if __name__ == "__main__":
    print(bench(*map(int, sys.argv[1:3])))
