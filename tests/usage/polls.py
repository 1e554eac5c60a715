# SPDX-License-Identifier: Apache-2.0
"""A source of histories for tests, and pollers that read it."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from app.cluster.reflector import Clock
from app.cluster.usage_polling import UsagePoller
from app.demo.usage import DemoUsage
from app.policy.compiled import PolicySet
from app.server.service import Service
from app.telemetry.metrics import UseMetrics
from app.usage.history import Hold, UseHistory, Window
from app.usage.reading import DAY
from app.values.errors import SourceError
from app.world.state import State
from tests.builders import knowledge, policies, policy

WINDOW = 900
"""Seconds of the windows of a small fleet."""
LAST = round(DAY) // WINDOW - 1
"""The number of the last window of a day."""
WALL = 1e9
"""The seconds since the epoch at which all polls are made."""
RULE = policies(policy("p", "admission: {idle: {after: 4h, gpus: 2}}"))


class Source:
    """A source with the history of a test; it fails where `holds` is None. `problems` are those of its histories."""

    origin = "http://prometheus"

    def __init__(self, *holds: Hold, problems: tuple[str, ...] = ()) -> None:
        self.problems = problems
        self.holds: tuple[Hold, ...] | None = holds
        self.asked: list[tuple[float, int | None]] = []

    async def read(self, end: float, seconds: float, window: int | None = None) -> UseHistory:
        self.asked.append((seconds, window))
        if self.holds is None:
            raise SourceError("no answer in time")
        return UseHistory(end - seconds, end, window or WINDOW, self.holds, self.problems)

    async def close(self) -> None:
        pass


def idle(windows: int, peak: float | None = 0.0, activity: float = 0.0) -> tuple[Window, ...]:
    """Make the last windows of a day, each known all the time."""
    return tuple(
        Window(LAST - back, 15.0, 15.0, 15.0 * activity, peak, None, 1024.0) for back in reversed(range(windows))
    )


def hold(pod_name: str, *windows: Window, gpu: str = "", **more: Any) -> Hold:
    """Make a hold on a whole GPU of node n by a pod of team-a, unless `more` says otherwise."""
    fields = {"namespace": "team-a", "node": "n", "instance": "", "profile": "", "model": "A100", "shared": False}
    return Hold(pod=pod_name, gpu=gpu or f"GPU-{pod_name}", windows=windows, **{**fields, **more})


def poller_of(
    source: Source,
    policy_set: PolicySet = RULE,
    nodes: Sequence[dict[str, Any]] = (),
    metrics: UseMetrics | None = None,
    now: Callable[[], float] = lambda: 0.0,
) -> UsagePoller:
    """Make a poller that has not polled yet."""
    state = State(knowledge())
    for document in nodes:
        state.put_node(document)
    return UsagePoller(source, lambda: policy_set, state, metrics, Clock(now=now), lambda: WALL)


def polled(source: Source, policy_set: PolicySet = RULE, nodes: Sequence[dict[str, Any]] = ()) -> UsagePoller:
    """Make a poller that has polled once."""
    poller = poller_of(source, policy_set, nodes)
    asyncio.run(poller.poll())
    return poller


def with_demo_usage(service: Service) -> Service:
    """Give a service the made-up history of its fleet, always of the same day, and poll it once."""
    state = service.state
    source = DemoUsage(lambda: state.nodes, state.allocations.bound)
    service.usage = UsagePoller(source, lambda: service.policies, state, service.metrics.use, wall=lambda: WALL)
    with ThreadPoolExecutor(1) as thread:  # a browser has an event loop running in this one
        thread.submit(asyncio.run, service.usage.poll()).result()
    return service
