# SPDX-License-Identifier: Apache-2.0
"""Measurements during an attack: resident memory, CPU of the event loop, `/livez`, and an honest client's answers."""

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.api.sockets import answer, connect, post

SAMPLE_SECONDS = 0.25
PROBE_SECONDS = 1.0
"""A probe is late after this; our manifests give readiness two seconds and liveness five."""
HONEST_SECONDS = 2.0
"""timeoutSeconds of /mutate in our manifests: a later answer leaves the pod unreviewed."""
HONEST_PAUSE_SECONDS = 0.2
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@dataclass(slots=True)
class Figures:
    """The measurements so far: times of answers in seconds, memory samples in MiB."""

    rss_mib: list[int] = field(default_factory=list)
    livez: list[float] = field(default_factory=list)
    livez_failures: Counter[str] = field(default_factory=Counter)
    honest: list[float] = field(default_factory=list)
    honest_failures: Counter[str] = field(default_factory=Counter)
    cpu_percent: float = 0.0
    died: bool = False


def percentile(values: list[float], share: float) -> float:
    """Return a percentile, or 0.0 of no values."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else 0.0


class Observer:
    """Threads that measure a replica until `stop`."""

    def __init__(self, pid: int, tls: int, ops: int, ca: Path) -> None:
        self.figures = Figures()
        self._pid, self._tls, self._ops, self._ca = pid, tls, ops, ca
        self._over = threading.Event()
        self._began, self._cpu = time.monotonic(), self._cpu_seconds()
        self._threads = [
            threading.Thread(target=self._repeat, args=(act, pause))
            for act, pause in (
                (self._sample, SAMPLE_SECONDS),
                (self._probe, SAMPLE_SECONDS),
                (self._ask, HONEST_PAUSE_SECONDS),
            )
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> Figures:
        """End the threads, and return what they measured."""
        spent, seconds = self._cpu_seconds() - self._cpu, time.monotonic() - self._began
        self._over.set()
        for thread in self._threads:
            thread.join(2 * HONEST_SECONDS)
        self.figures.cpu_percent = 100 * max(spent, 0.0) / seconds
        return self.figures

    def _repeat(self, act: Callable[[], None], pause: float) -> None:
        while not self._over.wait(pause) and not self.figures.died:
            act()

    def _cpu_seconds(self) -> float:
        """Read the CPU time of the main thread, which runs the event loop."""
        try:
            text = Path(f"/proc/{self._pid}/task/{self._pid}/stat").read_text("ascii")
        except OSError:
            return 0.0
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _sample(self) -> None:
        try:
            lines = Path(f"/proc/{self._pid}/status").read_text("ascii").splitlines()
            self.figures.rss_mib.append(int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) >> 10)
        except (OSError, StopIteration):  # ended, or a zombie, which has no memory any more
            self.figures.died = True

    def _probe(self) -> None:
        began, stage = time.monotonic(), "connecting"
        try:
            with socket.create_connection(("127.0.0.1", self._ops), PROBE_SECONDS) as sock:
                stage = "asking"
                sock.sendall(LIVEZ)
                outcome = str(answer(sock)[0])
        except OSError as error:
            outcome = f"{type(error).__name__} {stage}"
        took = time.monotonic() - began
        self.figures.livez.append(took)
        if outcome != "200" or took > PROBE_SECONDS:
            self.figures.livez_failures[outcome] += 1

    def _ask(self) -> None:
        began = time.monotonic()
        try:
            with connect(self._tls, self._ca) as sock:
                sock.settimeout(HONEST_SECONDS)
                sock.sendall(post())
                outcome = str(answer(sock)[0])
        except OSError as error:
            outcome = type(error).__name__
        took = time.monotonic() - began
        self.figures.honest.append(took)
        if took > HONEST_SECONDS:
            outcome = "late"
        if outcome != "200":
            self.figures.honest_failures[outcome] += 1
