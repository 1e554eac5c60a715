# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of explain: through a running service, from a snapshot file, and its effect on filter.

The service and the command are processes of their own, on a snapshot of nodes of 20 kB and pods of 4 kB.
"""

import json
import resource
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import httpx

from tests.bench.fleet import filter_arguments, node_name
from tests.bench.following import full_nodes, full_pods
from tests.bench.measure import Scaled, middle, paced
from tests.builders import gpus, pod
from tests.controlplane.processes import Process, free_port, wait_until

READY_SECONDS = 120
ROUNDS = 4
"""Rounds, of which the middle one counts, because a shared machine is slow for seconds at a time."""
PENDING: tuple[dict[str, Any], ...] = (
    pod(gpus(8), annotations={"products": "H100", "gpu-memory": "100Gi"}, nodeSelector={"pool": "gold"}),
    pod(gpus(16)),
    pod(gpus(1, image="nvcr.io/nvidia/pytorch:25.05-py3"), nodeSelector={"pool": "gold"}),
    pod(gpus(1)),
)
"""Three pods that fit nowhere, of which the first needs three edits, and one that fits everywhere."""
ALLOCATABLE = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "900Gi"}


@dataclass(frozen=True, slots=True)
class Explained:
    """Worst seconds of an explanation: CPU of the service, wall time of the client; CPU of the command on a file.

    `beside` is the p99 of filter by the wall clock with an endless explain, in units of that without it in the same
    round.
    """

    service_seconds: Scaled
    wall_seconds: Scaled
    file_seconds: Scaled
    beside: float


def bench(node_count: int, pod_count: int) -> Explained:
    """Write the snapshot, then measure on it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        snapshot = folder / "snapshot.json"
        write_snapshot(snapshot, node_count, pod_count)
        from_file = middle(paced(lambda: _from_file(folder, snapshot), ROUNDS))
        with served(folder, snapshot) as (people, tls, process):
            used, wall = _through(people, process)
            body = filter_body(node_count)
            beside = []
            for _ in range(ROUNDS):
                alone = p99(tls, body)
                with meanwhile(lambda client: client.post(people + "/explain", json=PENDING[0])):
                    beside.append(p99(tls, body) / alone)
    return Explained(used, wall, from_file, statistics.median(beside))


def filter_body(node_count: int) -> bytes:
    """Write the arguments of kube-scheduler's filter call about all nodes."""
    return filter_arguments([node_name(index) for index in range(node_count)])


def write_snapshot(path: Path, node_count: int, pod_count: int) -> None:
    """Write what `kubectl get nodes,pods -A -o json` would, with one object per line."""
    with path.open("w", encoding="utf-8") as out:
        out.write('{"kind":"List","apiVersion":"v1","items":[')
        for index, document in enumerate(_objects(node_count, pod_count)):
            out.write(("," if index else "") + json.dumps(document, separators=(",", ":")))
        out.write("]}")


def _objects(node_count: int, pod_count: int) -> Iterator[dict[str, Any]]:
    for document in full_nodes(node_count):
        document["status"]["allocatable"] |= ALLOCATABLE
        yield document
    for document in full_pods(pod_count, node_count):
        document["spec"]["containers"][0]["resources"]["requests"] |= {"cpu": "500m", "memory": "1Gi"}
        yield document


def _from_file(folder: Path, snapshot: Path) -> float:
    """Return the CPU seconds of the whole command."""
    file = folder / "pod.json"
    file.write_text(json.dumps(PENDING[0]), "utf-8")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = ["explain", "-f", str(file), "--snapshot", str(snapshot), "-o", "json"]
    subprocess.run([sys.executable, "-m", "app.cli.main", *words], check=False, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@contextmanager
def served(folder: Path, snapshot: Path, *flags: str) -> Iterator[tuple[str, httpx.Client, Process]]:
    """Serve a snapshot in a process; yields the web UI's address, a client of the TLS port, and the process."""
    port, ops, people = free_port(), free_port(), free_port()
    words = [
        f"--snapshot={snapshot}",
        f"--certs={folder}",
        f"--port={port}",
        f"--ops-port={ops}",
        "--recount=false",
        f"--ui-address=127.0.0.1:{people}",
        *flags,
    ]
    process = Process("service", [sys.executable, "-m", "app.cli.main", "serve", *words], folder / "service.log")
    try:
        wait_until("the service is ready", lambda: _ready(f"http://127.0.0.1:{ops}/readyz"), READY_SECONDS, process)
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=context, trust_env=False) as tls:
            yield f"http://127.0.0.1:{people}", tls, process
    finally:
        process.stop()


def _ready(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _through(people: str, process: Process) -> tuple[Scaled, Scaled]:
    """Return the worst explanation's CPU seconds in the service, and its wall seconds here."""
    used, wall = [], []
    with httpx.Client(trust_env=False, timeout=60) as client:
        for document in PENDING:
            rounds = paced(partial(_explanation, client, people, process, document), ROUNDS)
            used.append(middle((seconds, scale) for (seconds, _), scale in rounds))
            wall.append(middle((seconds, scale) for (_, seconds), scale in rounds))
    return max(used, key=attrgetter("at_scale_1")), max(wall, key=attrgetter("at_scale_1"))


def _explanation(client: httpx.Client, people: str, process: Process, document: dict[str, Any]) -> tuple[float, float]:
    """Return the CPU seconds of one explanation in the service, and its wall seconds here."""
    before, started = process.cpu_seconds(), time.perf_counter()
    assert client.post(people + "/explain", json=document).status_code == 200
    return process.cpu_seconds() - before, time.perf_counter() - started


@contextmanager
def meanwhile(ask: Callable[[httpx.Client], object], seconds: float = 0.0) -> Iterator[None]:
    """Send a request again and again while the block lasts, with so many seconds between."""
    ended = threading.Event()

    def work() -> None:
        with httpx.Client(trust_env=False, timeout=60) as client:
            while not ended.wait(seconds):
                ask(client)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def p99(client: httpx.Client, body: bytes, requests: int = 200) -> float:
    """Return the 99th percentile of filter, in ms of wall time."""
    taken = []
    for _ in range(requests):
        started = time.perf_counter()
        assert client.post("/scheduler/filter", content=body).status_code == 200
        taken.append((time.perf_counter() - started) * 1000)
    return statistics.quantiles(taken, n=100)[98]


if __name__ == "__main__":
    print(bench(*map(int, sys.argv[1:3])))
