# SPDX-License-Identifier: Apache-2.0
"""Benchmark of filter while the service polls the use of GPUs: requests at a steady pace, with a poll and without it.

The service is a process on a snapshot, and what answers for Prometheus is another, which holds the first answer back
until the service has been measured without a poll.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.bench.explaining import cpu_seconds, filter_body, served, write_snapshot
from tests.builders import policy
from tests.controlplane.processes import free_port

ROUNDS = 3
PACE_SECONDS = 0.02
"""From one request to the next: a scheduler that places fifty pods a second."""
QUIET_REQUESTS = 500
POLL_SECONDS = 120
"""For one poll, at most."""
IDLE = policy("idle", "admission: {idle: {after: 4h}}")


@dataclass(frozen=True, slots=True)
class Polled:
    """Milliseconds of filter by the wall clock, as median, 99th percentile and worst, and the seconds of a poll.

    `poll_seconds` are by the wall clock, `cpu_seconds` those of the service in that time, the requests included.
    `grown_mib` is by how much the most memory of the process in use grew with the poll.
    """

    alone: tuple[float, float, float]
    polling: tuple[float, float, float]
    poll_seconds: float
    cpu_seconds: float
    grown_mib: float

    @property
    def p99_ratio(self) -> float:
        """The 99th percentile with a poll, in units of that without."""
        return self.polling[1] / self.alone[1]


def bench(node_count: int, gpus: int) -> list[Polled]:
    """Write the snapshot and the policy, and measure one poll in each round: the first of a new process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        snapshot, policies = folder / "snapshot.json", folder / "policies"
        policies.mkdir()
        (policies / "idle.yaml").write_text(IDLE, "utf-8")
        write_snapshot(snapshot, node_count, node_count)
        return [_round(folder, snapshot, policies, filter_body(node_count), gpus) for _ in range(ROUNDS)]


def _round(folder: Path, snapshot: Path, policies: Path, body: bytes, gpus: int) -> Polled:
    with _usage_server(gpus) as url:
        flags = f"--prometheus={url}", f"--policies={policies}"
        with served(folder, snapshot, *flags) as (people, tls, process):
            _paced(tls, body, lambda count: count < QUIET_REQUESTS // 5)
            alone = _paced(tls, body, lambda count: count < QUIET_REQUESTS)
            before, grown, began = cpu_seconds(process), peak_mib(process), time.perf_counter()
            httpx.post(f"{url}/go", trust_env=False)
            polling = _paced(tls, body, lambda count: count % 5 or not _has_polled(people))
            seconds, spent = time.perf_counter() - began, cpu_seconds(process) - before
            return Polled(alone, polling, seconds, spent, peak_mib(process) - grown)


def peak_mib(process: int) -> float:
    """Read the most memory that a process has had in use, in MiB (proc(5), VmHWM)."""
    (line,) = (line for line in Path(f"/proc/{process}/status").read_text("utf-8").splitlines() if "VmHWM" in line)
    return int(line.split()[1]) / 1024


def _paced(client: httpx.Client, body: bytes, more: Callable[[int], object]) -> tuple[float, float, float]:
    """Ask filter at a steady pace, or as fast as answers come where that is slower."""
    taken: list[float] = []
    due = time.perf_counter()
    while more(len(taken)) and len(taken) * PACE_SECONDS < POLL_SECONDS:
        time.sleep(max(0.0, due - time.perf_counter()))
        sent = time.perf_counter()
        assert client.post("/scheduler/filter", content=body).status_code == 200
        answered = time.perf_counter()
        taken.append((answered - sent) * 1000)
        due = max(due + PACE_SECONDS, answered)
    return statistics.median(taken), statistics.quantiles(taken, n=100, method="inclusive")[98], max(taken)


def _has_polled(people: str) -> bool:
    usage = httpx.get(f"{people}/statusz", trust_env=False, timeout=30).json()["use"]
    assert usage["error"] is None, usage
    return usage["age_seconds"] is not None


@contextmanager
def _usage_server(gpus: int) -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.usage_server", str(gpus), str(port)])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    for measured in bench(*map(int, sys.argv[1:3])):
        print(measured, f"p99 x {measured.p99_ratio:.2f}")
