# SPDX-License-Identifier: Apache-2.0
"""A source of use for tests, and pollers that read it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from app.cluster.reflector import Clock
from app.cluster.usage_polling import UsagePoller
from app.demo.usage import DemoUsage
from app.policy.compiled import PolicySet
from app.server.service import Service
from app.telemetry.metrics import UseMetrics
from app.usage.table import GPUUse, Hold
from app.values.errors import SourceError
from app.world.state import State
from tests.builders import knowledge, policies, policy

HOUR = 3600.0
WALL = 1e9
"""The seconds since the epoch at which all polls are made."""
RULE = policies(policy("p", "admission: {idle: {after: 4h, gpus: 2}}"))


class Source:
    """A source with the holds of a test; it fails where they are None. `problems` are those of its answers."""

    origin = "http://prometheus"

    def __init__(self, *holds: Hold, problems: tuple[str, ...] = ()) -> None:
        self.problems = problems
        self.holds: tuple[Hold, ...] | None = holds
        self.asked: list[tuple[float, tuple[float, ...]]] = []

    async def read(self, end: float, seconds: float, belows: tuple[float, ...]) -> GPUUse:
        self.asked.append((seconds, belows))
        if self.holds is None:
            raise SourceError("no answer in time")
        return GPUUse(end - seconds, end, 60, self.holds, self.problems)

    async def close(self) -> None:
        pass


def hold(
    pod_name: str, hours: float = 2, idle: float | Mapping[float, float] = 0, active: float | None = 0.0, **more: Any
) -> Hold:
    """Make a hold of some hours on a whole GPU of node n by a pod of team-a, unless `more` says otherwise.

    `active` is the share of time in which it works, None if that is unknown; `idle` are hours, by the activity up to
    which it counts as idle.
    """
    by_below = idle if isinstance(idle, Mapping) else {0.01: idle}
    held, known = hours * 60, 0.0 if active is None else hours * 60
    fields: dict[str, Any] = {
        "namespace": "team-a", "node": "n", "device": (f"GPU-{pod_name}", ""), "profile": "", "model": "A100",
        "shared": False, "held": held, "known": known, "active": known * (active or 0.0), "memory_mib": 1024.0,
        "memory_known": held, "part": active, "held_now": True,
        "idle": {below: HOUR * one for below, one in by_below.items()},
    }  # fmt: skip
    return Hold(pod=pod_name, **{**fields, **more})


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
    """Give a service the made-up use of its fleet, always of the same day, and poll it once."""
    state = service.state
    source = DemoUsage(lambda: state.nodes, state.allocations.bound)
    service.usage = UsagePoller(source, lambda: service.policies, state, service.metrics.use, wall=lambda: WALL)
    with ThreadPoolExecutor(1) as thread:  # a browser has an event loop running in this one
        thread.submit(asyncio.run, service.usage.poll()).result()
    return service
