# SPDX-License-Identifier: Apache-2.0
"""The service of a large fleet, measured from inside, as a process of its own: `tests.bench.largest_fleet` starts it.

It is built and run as `gpu-usher serve` does, with all listeners and background tasks, on an API server that is played.
"""

import argparse
import asyncio
import gc
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvloop

from app.server.composition import build
from app.server.listeners import Listeners
from app.server.process import return_large_blocks
from app.server.service import Service
from app.settings import Settings
from app.telemetry.logs import LOGGER
from tests.bench.cloud_fleet import CloudFleet, sample
from tests.bench.cloud_server import lives
from tests.bench.fleet import filter_arguments
from tests.bench.measure import Figure, cpu, reference
from tests.builders import gpus, pod
from tests.finished import filter_nodes, prioritize

T = TypeVar("T")
PROBE_SECONDS = 0.002
"""Interval of the probe of the event loop, and so the most by which it finds a step too long."""
SAMPLE = 3_250
"""Nodes that kube-scheduler scores of 65,000: the least share, 5 % (percentageOfNodesToScore)."""
DEMANDS = 5
EVENTS_A_SECOND, EVENTS = 500, 10_000
PENDING = pod(gpus(16))
"""A pod that fits nowhere, so that changes are searched for that would help."""


class LoopProbe:
    """The longest time for which the event loop ran without a turn for others, as CPU ms of its thread.

    A step that is measured holds at most PROBE_SECONDS of others.
    """

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            before = time.thread_time_ns()
            await asyncio.sleep(PROBE_SECONDS)
            self.longest = max(self.longest, (time.thread_time_ns() - before) / 1e6)

    async def during(self, work: Awaitable[T]) -> tuple[T, float, float]:
        """Await some work; return its result, the CPU ms of the loop's thread meanwhile, and the longest step in ms."""
        await asyncio.sleep(2 * PROBE_SECONDS)
        self.longest, before = 0.0, time.thread_time_ns()
        result = await work
        await asyncio.sleep(2 * PROBE_SECONDS)
        return result, (time.thread_time_ns() - before) / 1e6, self.longest


class Measurement:
    """What is measured of one service; `figures` is by the keys of the rows of tests.bench.largest_fleet."""

    def __init__(self, service: Service, listeners: Listeners, fleet: CloudFleet, api: str) -> None:
        self.figures: dict[str, float] = {}
        self.paces: dict[str, float] = {}
        self._service, self._fleet, self._api = service, fleet, api
        web = listeners.addresses.web
        assert web is not None
        self._page = f"http://127.0.0.1:{web[1]}"
        self._probe = LoopProbe()

    async def run(self, started: float) -> None:
        """Measure everything; `started` is the process's CPU seconds before the service was built."""
        probing = asyncio.create_task(self._probe.run())
        await self._part(self._ready(started))
        await self._part(self._memory(""))
        for part in (self._first_sight, self._extender, self._events, self._requests, self._comparison, self._relist):
            await self._part(part())
        await self._part(self._memory("_end"))
        probing.cancel()

    async def _part(self, part: Awaitable[None]) -> None:
        """Measure a part, and the pace of the machine before and after it."""
        known, before = set(self.figures), reference()
        await part
        pace = (before + reference()) / 2
        self.paces |= dict.fromkeys(self.figures.keys() - known, pace)
        print(f"{self.measured()}", file=sys.stderr, flush=True)

    def measured(self) -> dict[str, tuple[float, float]]:
        """Return each figure with the ms of the reference loop at its time."""
        return {key: (value, self.paces[key]) for key, value in self.figures.items()}

    async def _ready(self, started: float) -> None:
        began = time.monotonic()
        assert self._service.cluster is not None
        while not self._service.cluster.synced:
            await asyncio.sleep(PROBE_SECONDS)
        await asyncio.sleep(0.2)  # the objects are then frozen for the garbage collector
        self.figures |= {
            "ready_cpu": time.process_time() - started,
            "ready_wall": time.monotonic() - began,
            "ready_step": self._probe.longest,
        }

    async def _memory(self, suffix: str) -> None:
        await asyncio.sleep(1.0)
        gc.collect()
        lines = (line.split() for line in Path("/proc/self/status").read_text("ascii").splitlines())
        kib = {words[0]: int(words[1]) for words in lines if words[0] in ("VmHWM:", "VmRSS:")}
        self.figures[f"resident{suffix}"] = kib["VmRSS:"] / 1024
        self.figures[f"peak{suffix}"] = kib["VmHWM:"] / 1024

    async def _first_sight(self) -> None:
        """Ask filter about demands that nobody has asked about yet."""
        names = self._sample()
        bodies = [demanding(names, number) for number in range(1, DEMANDS + 1)]
        assert filter_nodes(demanding(names, 0), self._service).error is None
        self.figures["first_sight"] = max(_once(lambda body=body: filter_nodes(body, self._service)) for body in bodies)  # type: ignore[misc]

    def _sample(self) -> list[str]:
        return sample(self._fleet.names, min(SAMPLE, self._fleet.nodes))

    async def _extender(self) -> None:
        sampled, everyone = demanding(self._sample(), 1), demanding(self._fleet.names, 1)
        service = self._service
        self._pair("filter_sample", cpu(lambda: filter_nodes(sampled, service), 500))
        self._pair("prioritize_sample", cpu(lambda: prioritize(sampled, service), 300))
        self._pair("filter_all", cpu(lambda: filter_nodes(everyone, service), 100))
        self._pair("prioritize_all", cpu(lambda: prioritize(everyone, service), 100))

    def _pair(self, key: str, figure: Figure) -> None:
        self.figures |= {f"{key}_p50": figure.p50 / 1000, f"{key}_p99": figure.p99 / 1000}

    async def _events(self) -> None:
        """Apply events of pods one by one, and then follow as many a second for a while."""
        assert self._service.cluster is not None
        pods = self._service.cluster.reflectors[1]
        lines = [line.encode() for line in lives(self._fleet, EVENTS // 4)]
        started = time.thread_time_ns()
        for line in lines:
            pods.apply_event(line)
        self.figures["event"] = (time.thread_time_ns() - started) / 1000 / len(lines)
        generation = self._service.state.changes.generation
        await self._ask_api(f"/bench/pods?rate={EVENTS_A_SECOND}&seconds={EVENTS / EVENTS_A_SECOND}")
        seconds = EVENTS / EVENTS_A_SECOND
        _, used, step = await self._probe.during(asyncio.sleep(seconds))
        assert self._service.state.changes.generation > generation
        self.figures |= {"stream_cpu": used / seconds, "stream_step": step}

    async def _ask_api(self, query: str) -> None:
        async with httpx.AsyncClient(verify=False, trust_env=False) as client:  # a stand-in on loopback
            await client.get(self._api + query)

    async def _requests(self) -> None:
        for key, method, path, body in (
            ("page_first", "GET", "/", None),
            ("page", "GET", "/", None),
            ("table", "GET", "/?as=table", None),
            ("explain", "POST", "/explain", PENDING),
            ("explain_nodes", "POST", "/explain?nodes=true", PENDING),
        ):
            fetched = asyncio.to_thread(_fetch, method, self._page + path, body)
            size, used, step = await self._probe.during(fetched)
            self.figures |= {f"{key}_cpu": used, f"{key}_step": step, f"{key}_mb": size / 1e6}

    async def _comparison(self) -> None:
        """Compare the pods with the API server's list, as happens every ten minutes."""
        assert self._service.cluster is not None
        pods = self._service.cluster.reflectors[1]
        drift, used, step = await self._probe.during(pods.compare())
        assert not drift
        self.figures |= {"compare_cpu": used, "compare_step": step}

    async def _relist(self) -> None:
        """List pods again after 410 Gone, as happens after an API server lost its watch cache."""
        relists = self._service.metrics.relists.labels("pods")._value

        async def again() -> None:
            before = relists.get()
            await self._ask_api("/bench/gone")
            while relists.get() == before:
                await asyncio.sleep(PROBE_SECONDS)

        _, used, step = await self._probe.during(again())
        self.figures |= {"relist_cpu": used, "relist_step": step}


def demanding(names: list[str], demand: int) -> bytes:
    """Write the arguments of a filter call; pods of different `demand` are judged apart."""
    return filter_arguments(names, memory=f"{4096 + demand}Mi")


def _once(call: Callable[[], object]) -> float:
    """Return the CPU ms of a call."""
    started = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - started) / 1e6


def _fetch(method: str, url: str, body: Any) -> int:
    """Read an answer without keeping it, and ask again while the service is too busy; return its bytes."""
    with httpx.Client(trust_env=False, timeout=120) as client:
        while True:
            with client.stream(method, url, json=body) as answer:
                size = sum(map(len, answer.iter_bytes()))
                if answer.status_code == 200:
                    return size
                assert answer.status_code in (429, 503), answer.status_code


def _write_kubeconfig(folder: Path, url: str) -> Path:
    entry = {"server": url, "certificate-authority": str(folder / "ca.crt")}
    file = folder / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "large", "cluster": entry}],
        "users": [{"name": "us", "user": {}}],
        "contexts": [{"name": "large", "context": {"cluster": "large", "user": "us"}}],
        "current-context": "large",
    }
    file.write_text(json.dumps(content), "utf-8")
    return file


async def _measure(service: Service, fleet: CloudFleet, words: argparse.Namespace, started: float) -> Any:
    listeners = Listeners(service)
    measurement = Measurement(service, listeners, fleet, words.api)
    serving = asyncio.create_task(listeners.run())
    await measurement.run(started)
    listeners.stop()
    await serving
    return measurement.measured()


def main() -> None:
    """Measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--api", required=True)
    parser.add_argument("--certs", type=Path, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--pods", type=int, required=True)
    parser.add_argument("--gpu-share", type=float, required=True)
    words = parser.parse_args()
    LOGGER.setLevel(logging.CRITICAL)
    return_large_blocks()
    fleet = CloudFleet(words.nodes, words.pods, words.gpu_share)
    settings = Settings(
        kubeconfig=_write_kubeconfig(words.certs, words.api), certs=words.certs, listen="127.0.0.1", port=0, ops_port=0,
        ui_address="127.0.0.1:0", drain_seconds=0.0,
    )  # fmt: skip
    started = time.process_time()
    figures = uvloop.run(_measure(build(settings), fleet, words, started))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
