# SPDX-License-Identifier: Apache-2.0
"""Measurements: CPU time of this thread around a call, and CPU time of a server's thread per request."""

import gc
import resource
import ssl
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import uvloop
from starlette.types import ASGIApp

from app.server.listener import make_server
from app.server.listeners import bind
from app.server.service import Service

Result = TypeVar("Result")
REFERENCE_MS = 2.0
"""The CPU milliseconds of the loop of `reference` on a machine of scale 1, for which budgets are written."""
ROUNDS = 5
"""Rounds of a measurement, of which the middle one counts: a shared machine changes its pace within seconds."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Microseconds of CPU time: median and 99th percentile."""

    p50: float
    p99: float


def cpu(call: Callable[[], object], calls: int, before: Callable[[], object] = lambda: None) -> Figure:
    """Time a call by `time.thread_time_ns` after a warm-up; `before` runs ahead of each call and is not timed."""
    for _ in range(5):
        before()
        call()
    gc.collect()
    taken = []
    for _ in range(calls):
        before()
        started = time.thread_time_ns()
        call()
        taken.append((time.thread_time_ns() - started) / 1000)
    taken.sort()
    return Figure(statistics.median(taken), taken[int(len(taken) * 0.99)])


@dataclass(frozen=True, slots=True)
class Scaled:
    """A time, and the machine scale beside its measurement: 2 on a machine that is half as fast as one of scale 1."""

    value: float
    scale: float

    @property
    def at_scale_1(self) -> float:
        """The time as it would be on a machine of scale 1."""
        return self.value / self.scale


def paced(measure: Callable[[], Result], rounds: int = ROUNDS) -> list[tuple[Result, float]]:
    """Measure in rounds; each result comes with the machine scale, by the mean of the loop before and after it."""
    results = []
    before = reference()
    for _ in range(rounds):
        result = measure()
        after = reference()
        results.append((result, (before + after) / 2 / REFERENCE_MS))
        before = after
    return results


def middle(rounds: Iterable[tuple[float, float]]) -> Scaled:
    """Return the time that is the median by the machine's pace, the lower of two."""
    times = sorted((Scaled(value, scale) for value, scale in rounds), key=lambda scaled: scaled.at_scale_1)
    return times[(len(times) - 1) // 2]


def reference() -> float:
    """Return the CPU milliseconds of a fixed loop, the least of ten, to compare machines by."""
    taken = []
    for _ in range(10):
        started, total = time.thread_time_ns(), 0
        for number in range(100_000):
            total += number
        taken.append(time.thread_time_ns() - started)
    return min(taken) / 1e6


def resident_mib() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


@contextmanager
def served(app: ASGIApp, usher: Service) -> Iterator[tuple[httpx.Client, int]]:
    """Serve an application over TLS in a thread; yields a client and the CPU clock of that thread."""
    sock = bind("127.0.0.1", 0, "--port")
    server = make_server(app, sock, usher.certificates.context)
    thread = threading.Thread(target=lambda: uvloop.run(server.serve()), daemon=True)
    thread.start()
    assert thread.ident is not None
    context = ssl.create_default_context(cafile=str(Path(usher.settings.certs) / "ca.crt"))
    with httpx.Client(base_url=f"https://127.0.0.1:{sock.getsockname()[1]}", verify=context, trust_env=False) as client:
        yield client, time.pthread_getcpuclockid(thread.ident)
    server.should_exit = True
    thread.join(15)


def per_request(client: httpx.Client, clock: int, path: str, body: bytes, requests: int = 150) -> float:
    """Return the server's CPU microseconds per request, the mean of a round over one kept-alive connection."""
    started = time.clock_gettime_ns(clock)
    for _ in range(requests):
        assert client.post(path, content=body).status_code == 200
    return (time.clock_gettime_ns(clock) - started) / 1000 / requests
