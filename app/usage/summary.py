# SPDX-License-Identifier: Apache-2.0
"""The summary of a history: what pages, metrics and policies keep of it between two polls."""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.usage.history import IDLE_BELOW, KNOWN_SHARE, Hold, Pace, UseHistory, held_now
from app.usage.table import By, UsageRow, idle_by_hold, key_of, usage_rows

MOST_WORKLOADS = 500
"""Workloads kept, those with idle GPUs first: some 400 bytes each, and more rows than anybody reads (a guess)."""
MOST_NODES = 3
"""Nodes named for a workload, so that a row stays a line."""
POINTS_OF_A_POLL = 100_000
"""Windows of all holds together of one poll. Reading them takes some 1.2 kB each, and the service has 512 MiB
(deploy/base/deployment.yaml), most of it for the cluster."""
WINDOWS_OF_A_POLL = (900, 1800, 3600, 7200, 14_400, 28_800, 86_400)
"""Lengths in seconds from which that of a poll is chosen, each a divisor of a day."""


@dataclass(frozen=True, slots=True)
class HeldUnit:
    """A GPU, a MIG slice or a share that a pod holds at the end of the history.

    `profile` is empty for a whole GPU. `activity` is the mean over the last window, as a share of one; None is unknown.
    Of a shared GPU it is that of all its pods together. `idle_seconds` is for how long it has been idle for certain.
    """

    namespace: str
    pod: str
    device: tuple[str, str]
    profile: str
    shared: bool
    activity: float | None
    idle_seconds: float


@dataclass(frozen=True, slots=True)
class WorkloadUse:
    """The use of one workload; `nodes` are some on which it holds units now, those with idle ones first."""

    row: UsageRow
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UseSummary:
    """The use of GPUs from `start` to `end`, in seconds since the epoch.

    `workloads` are those that hold something now, the idle ones first; `more_workloads` counts those left out. `units`
    are by node. `idle_seconds` holds, by the activity up to which a unit counts as idle and by namespace, for how long
    each unit has been idle.
    """

    start: float
    end: float
    window_seconds: int
    namespaces: tuple[UsageRow, ...]
    workloads: tuple[WorkloadUse, ...]
    more_workloads: int
    units: Mapping[str, tuple[HeldUnit, ...]]
    idle_seconds: Mapping[float, Mapping[str, tuple[float, ...]]]
    problems: tuple[str, ...]

    def idle_count(self, namespace: str, seconds: float, below: float) -> int:
        """Count the units of a namespace that have been idle for certain for so long; 0 where nothing is known."""
        return sum(idle >= seconds for idle in self.idle_seconds.get(below, {}).get(namespace, ()))


def poll_window(units: int, seconds: float) -> int:
    """Choose the length of the windows of a poll of some seconds, for a fleet in which pods hold so many units."""
    fitting = (length for length in WINDOWS_OF_A_POLL if max(1, units) * seconds / length <= POINTS_OF_A_POLL)
    return next(fitting, WINDOWS_OF_A_POLL[-1])


def summary_of(history: UseHistory, belows: Iterable[float] = (), pace: Pace = iter) -> UseSummary:
    """Summarize a history, whose shared GPUs are marked (`with_sharing`).

    `belows` are the activities, besides IDLE_BELOW, up to which policies count a unit as idle.
    """
    idle = idle_by_hold(history, IDLE_BELOW, pace)
    workloads = [row for row in usage_rows(history, key_of(By.Owner, {}), idle, pace=pace) if row.held_now]
    kept = heapq.nsmallest(MOST_WORKLOADS, workloads, key=_idle_first)
    others = {below: idle_by_hold(history, below, pace) for below in belows if below != IDLE_BELOW}
    return UseSummary(
        start=history.start,
        end=history.end,
        window_seconds=history.window_seconds,
        namespaces=usage_rows(history, key_of(By.Namespace, {}), idle, pace=pace),
        workloads=_with_nodes(kept, history, idle),
        more_workloads=len(workloads) - len(kept),
        units=_units_by_node(history, idle),
        idle_seconds={below: _by_namespace(history, some) for below, some in (others | {IDLE_BELOW: idle}).items()},
        problems=history.problems,
    )


def _idle_first(row: UsageRow) -> tuple[float, float, str, str]:
    return -row.idle_now * (row.idle_hours or 0.0), -row.held_hours, row.of, row.unit


def _with_nodes(rows: list[UsageRow], history: UseHistory, idle: Mapping[int, float]) -> tuple[WorkloadUse, ...]:
    owner = key_of(By.Owner, {})
    nodes: dict[str, dict[str, float]] = {row.of: {} for row in rows}
    for position, seconds in idle.items():
        hold = history.holds[position]
        if (by_node := nodes.get(owner(hold))) is not None and hold.node:
            by_node[hold.node] = max(seconds, by_node.get(hold.node, 0.0))
    return tuple(WorkloadUse(row, _first_nodes(nodes[row.of])) for row in rows)


def _first_nodes(idle_by_node: Mapping[str, float]) -> tuple[str, ...]:
    return tuple(heapq.nsmallest(MOST_NODES, idle_by_node, key=lambda node: (-idle_by_node[node], node)))


def _units_by_node(history: UseHistory, idle: Mapping[int, float]) -> Mapping[str, tuple[HeldUnit, ...]]:
    units: dict[str, list[HeldUnit]] = {}
    for position, seconds in idle.items():
        hold = history.holds[position]
        unit = HeldUnit(
            namespace=hold.namespace,
            pod=hold.pod,
            device=hold.device,
            profile=hold.profile,
            shared=hold.shared,
            activity=last_activity(hold, history),
            idle_seconds=seconds,
        )
        units.setdefault(hold.node, []).append(unit)
    return {node: tuple(some) for node, some in units.items()}


def last_activity(hold: Hold, history: UseHistory) -> float | None:
    """Give the mean activity in the last window; None where it was known for too small a part of the time."""
    if not held_now(hold, history):
        return None
    window = hold.windows[-1]
    known = window.known > 0 and window.known >= KNOWN_SHARE * window.held
    return window.active / window.known if known else None


def _by_namespace(history: UseHistory, idle: Mapping[int, float]) -> Mapping[str, tuple[float, ...]]:
    seconds: dict[str, list[float]] = {}
    for position, idle_for in idle.items():
        if idle_for > 0:
            seconds.setdefault(history.holds[position].namespace, []).append(idle_for)
    return {namespace: tuple(some) for namespace, some in seconds.items()}
