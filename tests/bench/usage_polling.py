# SPDX-License-Identifier: Apache-2.0
"""Benchmark of filter while the service polls the use of GPUs: requests at a steady pace, with a poll and without it.

The service is a process on a snapshot, and what answers for Prometheus is another, which holds the first answer back
until `POST /go`, when the service has been measured without a poll. Each GPU has the series of two pods, with a value
at each evaluation. The values are made up, and the labels as long as those of a real exporter.
"""

import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx

from tests.bench.explaining import filter_body, served, write_snapshot
from tests.bench.list_server import played_by
from tests.builders import policy
from tests.controlplane.processes import Process, free_port

ROUNDS = 3
PACE_SECONDS = 0.02
"""From one request to the next: a scheduler that places fifty pods a second."""
QUIET_REQUESTS = 500
POLL_SECONDS = 120
"""For one poll, at most."""
PODS_OF_A_GPU = 2
GPUS_OF_A_NODE = 8
POLLED = threading.Event()
"""Answers wait for it, in the process that answers."""
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
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with played_by("tests.bench.usage_polling", "serve", str(gpus), str(port)):
        flags = f"--prometheus={url}", f"--policies={policies}"
        with served(folder, snapshot, *flags) as (people, tls, process):
            _paced(tls, body, lambda count: count < QUIET_REQUESTS // 5)
            alone = _paced(tls, body, lambda count: count < QUIET_REQUESTS)
            before, grown, began = process.cpu_seconds(), peak_mib(process), time.perf_counter()
            httpx.post(f"{url}/go", trust_env=False)
            polling = _paced(tls, body, lambda count: count % 5 or not _has_polled(people))
            seconds, spent = time.perf_counter() - began, process.cpu_seconds() - before
            return Polled(alone, polling, seconds, spent, peak_mib(process) - grown)


def peak_mib(process: Process) -> float:
    """Read the most memory that a process has had in use, in MiB (proc(5), VmHWM)."""
    (line,) = (line for line in Path(f"/proc/{process.pid}/status").read_text("utf-8").splitlines() if "VmHWM" in line)
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


def serve(gpus: int, port: int) -> None:
    """Answer until the process ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # the name that the base class calls
            """Answer a query, or a query of a range."""
            POLLED.wait()
            url = urlsplit(self.path)
            asked = {key: values[0] for key, values in parse_qs(url.query).items()}
            if url.path.endswith("query"):
                self._send(_count(gpus * PODS_OF_A_GPU))
            else:
                evaluations = _evaluations(float(asked["start"]), float(asked["end"]), int(asked["step"]))
                self._send(_matrix(gpus, evaluations, asked["query"].startswith("max by")))

        def do_POST(self) -> None:  # the name that the base class calls
            """Let all answers go."""
            POLLED.set()
            self._send(b"")

        def _send(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print("listening", flush=True)
    server.serve_forever()


def _evaluations(start: float, end: float, step: int) -> tuple[float, ...]:
    return tuple(start + step * index for index in range(int((end - start) / step) + 1))


def _count(series: int) -> bytes:
    return _answer("vector", [{"metric": {}, "value": [0, str(series)]}])


@cache
def _matrix(gpus: int, evaluations: tuple[float, ...], peak: bool) -> bytes:
    """Write the series of all pods' GPUs, each with a value at every evaluation."""
    values = [[second, "0.734375" if peak else str(7.25)] for second in evaluations]
    return _answer("matrix", [{"metric": _labels(index), "values": values} for index in range(gpus * PODS_OF_A_GPU)])


def _labels(index: int) -> dict[str, str]:
    gpu, pod = divmod(index, PODS_OF_A_GPU)
    node, number = divmod(gpu, GPUS_OF_A_NODE)
    return {
        "Hostname": f"gpu-node-{node:05}.eu-central-1.compute.internal",
        "gpu": str(number),
        "UUID": f"GPU-{gpu:08x}-7c1b-4a52-9d0e-3f2a6b8c1d{gpu % 256:02x}",
        "modelName": "NVIDIA H100 80GB HBM3",
        "namespace": f"team-{gpu % 40}",
        "pod": f"train-{gpu}-worker-{pod}",
    }


def _answer(kind: str, result: list[object]) -> bytes:
    return json.dumps(
        {"status": "success", "data": {"resultType": kind, "result": result}}, separators=(",", ":")
    ).encode()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*map(int, sys.argv[2:4]))
    for measured in bench(*map(int, sys.argv[1:3])):
        print(measured, f"p99 x {measured.p99_ratio:.2f}")
