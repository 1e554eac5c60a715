# SPDX-License-Identifier: Apache-2.0
"""What containers use while something happens: sampled from the kernel's accounts of their cgroups."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.controlplane.kubectl import Object
from tests.realnodes.containers import MEBIBYTE, Container, containers_of
from tests.realnodes.sandbox import CGROUPS

SAMPLE_SECONDS = 1.0
"""Between two samples. The peak of memory is the kernel's own, the peak of CPU the most of one such interval."""
NANOSECONDS = 10**9


@dataclass
class ContainerUsage:
    """The use of all containers of one name.

    `peak` is the kernel's own highest memory of one, in bytes, and `anonymous` the highest that was sampled without the
    page cache. `cores` is the most CPU that one used in a sampling interval, `seconds` what all used together.
    `throttled` counts the periods in which one was held to a CPU limit, `failures` the times at a memory limit.
    """

    peak: int = 0
    anonymous: int = 0
    cores: float = 0.0
    seconds: float = 0.0
    throttled: int = 0
    failures: int = 0


@dataclass
class UsageRecorder:
    """Samples the containers of some pods until it is stopped."""

    pods: Callable[[], list[Object]]
    by_name: dict[str, ContainerUsage] = field(default_factory=dict)
    _before: dict[Path, tuple[float, int]] = field(default_factory=dict)

    def sample(self) -> None:
        """Read all containers that run now; one that starts or ends meanwhile is left out."""
        for pod in self.pods():
            with suppress(KeyError, ValueError, OSError):
                for container in containers_of(pod):
                    self._take(container)

    def _take(self, container: Container) -> None:
        usage = self.by_name.setdefault(container.name, ContainerUsage())
        usage.peak = max(usage.peak, container.memory("memory.max_usage_in_bytes"))
        usage.failures = max(usage.failures, container.memory("memory.failcnt"))
        usage.anonymous = max(usage.anonymous, _field(container.cgroup / "memory.stat", "total_rss"))
        inside = container.cgroup.relative_to(CGROUPS / "memory")
        usage.throttled = max(usage.throttled, _field(CGROUPS / "cpu" / inside / "cpu.stat", "nr_throttled"))
        now, spent = time.monotonic(), int((CGROUPS / "cpuacct" / inside / "cpuacct.usage").read_text("ascii"))
        before, spent_before = self._before.get(container.cgroup, (now, 0))
        self._before[container.cgroup] = (now, spent)
        usage.seconds += (spent - spent_before) / NANOSECONDS
        if now > before:
            usage.cores = max(usage.cores, (spent - spent_before) / NANOSECONDS / (now - before))

    def rows(self) -> list[str]:
        """Write a row for each container: its requests and limits, and what it used."""
        resources = {
            container["name"]: container["resources"]
            for pod in self.pods()
            for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
        }
        return [_row(name, usage, resources.get(name, {})) for name, usage in sorted(self.by_name.items())]


def _row(name: str, usage: ContainerUsage, resources: Object) -> str:
    memory, cpu = (
        " / ".join(resources.get(kind, {}).get(resource, "none") for kind in ("requests", "limits"))
        for resource in ("memory", "cpu")
    )
    used = f"{usage.peak / MEBIBYTE:.0f} Mi | {usage.anonymous / MEBIBYTE:.0f} Mi"
    return f"| {name} | {memory} | {used} | {cpu} | {usage.cores:.2f} | {usage.seconds:.0f} s | {usage.throttled} |"


def _field(file: Path, name: str) -> int:
    """Read a number of a file of names and numbers, such as memory.stat."""
    rows = (line.split() for line in file.read_text("ascii").splitlines())
    return next(int(row[1]) for row in rows if row[0] == name)


@contextmanager
def recorded_usage(pods: Callable[[], list[Object]]) -> Iterator[UsageRecorder]:
    """Sample the containers of some pods for as long as the block lasts."""
    recorder, stop = UsageRecorder(pods), threading.Event()

    def go() -> None:
        while not stop.wait(SAMPLE_SECONDS):
            recorder.sample()

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield recorder
    finally:
        stop.set()
        thread.join(30)
        recorder.sample()
        print(*recorder.rows(), sep="\n")
