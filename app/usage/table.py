# SPDX-License-Identifier: Apache-2.0
"""The use of GPUs: what pods held, and the table of it by namespace, workload, product or node.

What is not known stays so: no figure stands for it. A summary is what pages, metrics and policies keep between two
polls. The threshold of idleness (`IDLE_BELOW`) is in policy/schema_admission.py, since the rule `idle` applies it too.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from app.policy.schema_admission import IDLE_BELOW
from app.usage.workloads import owner_by_name

MINUTE = 60
"""Seconds of a minute, in which time is counted."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A GPU, or a MIG instance of it, that a pod held, and how it was used then.

    `device` is the UUID of the GPU, or its node and number, and the MIG instance. That and `profile` are empty for a
    whole GPU. `model` is the product as DCGM writes it. `shared` means that the figures are of all pods on the GPU
    together. `held` and `known` are the minutes in which the pod was seen on it and its activity was known, `active` is
    the sum of the activity over these, in minutes of full activity. `memory_mib` is the most memory in use, known for
    `memory_known` minutes. `part` is the largest share of its multiprocessors in use, or the highest activity where
    that is not known all the time. None is unknown. `idle` are the seconds for which it has been idle for certain, by
    the activity up to which it counts as idle.
    """

    namespace: str
    pod: str
    node: str
    device: tuple[str, str]
    profile: str
    model: str
    shared: bool
    held: float
    known: float
    active: float
    memory_mib: float | None
    memory_known: float
    part: float | None
    held_now: bool
    idle: Mapping[float, float]

    @property
    def key(self) -> str:
        """The pod as namespace/name."""
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True)
class GPUUse:
    """What is known of the GPUs that pods held, from `start` to `end` in seconds since the epoch.

    `step_seconds` is the time between two looks at a series. `problems` say what is not to be trusted.
    """

    start: float
    end: float
    step_seconds: int
    holds: tuple[Hold, ...]
    problems: tuple[str, ...] = ()


def with_sharing(use: GPUUse, shared_nodes: frozenset[str] = frozenset()) -> GPUUse:
    """Mark all whole GPUs of `shared_nodes` as shared; a shared GPU is as idle as the busiest of its sharers.

    Where the exporter does not know of time-slicing, it names one of the pods that share a GPU, and the metrics cannot
    tell which (NVIDIA/dcgm-exporter internal/pkg/transformation/kubernetes.go, toDeviceToPod): that is what
    `shared_nodes` is for.
    """
    holds = [
        replace(hold, shared=True) if hold.node in shared_nodes and not hold.device[1] else hold for hold in use.holds
    ]
    sharers: dict[tuple[str, str], list[Mapping[float, float]]] = {}
    for hold in holds:
        if hold.shared and hold.held_now:
            sharers.setdefault(hold.device, []).append(hold.idle)
    return replace(use, holds=tuple(
        replace(hold, idle={below: min(one.get(below, 0.0) for one in sharers[hold.device]) for below in hold.idle})
        if hold.shared and hold.held_now else hold
        for hold in holds
    ))  # fmt: skip


class UseUnit(Enum):
    """What was held. Hours of different units are never added up."""

    GPU = "GPU"
    Slice = "MIG slice"
    Share = "shared GPU"
    """A GPU, or a slice, that several pods use at once. Its activity and memory belong to all of them together."""


class By(Enum):
    """What the rows of the table are."""

    Namespace = "namespace"
    Owner = "owner"
    Product = "product"
    Node = "node"
    Pod = "pod"


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The use of one kind of unit by one namespace, workload, product, node or pod.

    `held_hours` are hours of units. `known_share` is the part of them in which activity was known, and `active_share`
    the mean activity in that part; it is None where nothing was known, and for shared GPUs, whose activity cannot be
    attributed to one pod. `memory_peak_mib` is the most memory that one unit had in use, None as above. `held_now` are
    the units held at the end, and `idle_now` those of them that are idle for certain, the longest for `idle_hours`.
    `nodes` are some on which units are held at the end, those with idle ones first.
    """

    of: str
    unit: str
    pods: int
    held_hours: float
    known_share: float
    active_share: float | None
    memory_peak_mib: int | None
    held_now: int
    idle_now: int
    idle_hours: float | None
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UsageReport:
    """The table of use. `start` and `end` are seconds since the epoch, and `step_seconds` is the time between two looks
    at a GPU. `problems` say what could not be read."""

    start: float
    end: float
    step_seconds: int
    by: str
    rows: tuple[UsageRow, ...]
    problems: tuple[str, ...]


def usage_report(use: GPUUse, by: By, owners: Mapping[str, str] | None = None) -> UsageReport:
    """Make the table of a use, whose shared GPUs are marked (`with_sharing`); the rows with most hours come first.

    `owners` are the workloads of pods by namespace/name; for others their names say it.
    """
    rows = usage_rows(use.holds, key_of(by, owners or {}))
    return UsageReport(use.start, use.end, use.step_seconds, by.value, rows, use.problems)


def usage_rows(holds: Iterable[Hold], key: Callable[[Hold], str]) -> tuple[UsageRow, ...]:
    """Make the rows of a table, those with most hours first; `key` tells the row of a hold."""
    groups: dict[tuple[UseUnit, str], list[Hold]] = {}
    for hold in holds:
        groups.setdefault((unit_of(hold), key(hold)), []).append(hold)
    rows = (_row(of, unit, some) for (unit, of), some in groups.items())
    return tuple(sorted(rows, key=lambda row: (-row.held_hours, row.of, row.unit)))


def unit_of(hold: Hold) -> UseUnit:
    """Give what was held."""
    if hold.shared:
        return UseUnit.Share
    return UseUnit.Slice if hold.device[1] or hold.profile else UseUnit.GPU


def key_of(by: By, owners: Mapping[str, str]) -> Callable[[Hold], str]:
    """Return what gives the row of a hold. `owners` are the workloads of pods by namespace/name."""
    keys: Mapping[By, Callable[[Hold], str]] = {
        By.Namespace: lambda hold: hold.namespace,
        By.Owner: lambda hold: owners.get(hold.key) or f"{hold.namespace}/{owner_by_name(hold.pod)}",
        By.Product: lambda hold: " ".join(filter(None, (hold.model or "unknown product", hold.profile))),
        By.Node: lambda hold: hold.node or "unknown node",
        By.Pod: lambda hold: hold.key,
    }
    return keys[by]


MOST_NODES = 3
"""Nodes named for a row, so that it stays a line."""


def _row(of: str, unit: UseUnit, holds: list[Hold]) -> UsageRow:
    held, known = sum(hold.held for hold in holds), sum(hold.known for hold in holds)
    now = [hold for hold in holds if hold.held_now]
    idle = [seconds for hold in now if (seconds := hold.idle.get(IDLE_BELOW, 0.0)) > 0]
    peaks = [hold.memory_mib for hold in holds if hold.memory_mib is not None]
    by_node: dict[str, float] = {}
    for hold in now:
        by_node[hold.node] = max(hold.idle.get(IDLE_BELOW, 0.0), by_node.get(hold.node, 0.0))
    named = heapq.nsmallest(MOST_NODES, filter(None, by_node), key=lambda node: (-by_node[node], node))
    shared = unit is UseUnit.Share
    return UsageRow(
        of=of,
        unit=unit.value,
        pods=len({hold.key for hold in holds}),
        held_hours=held / MINUTE,
        known_share=known / held if held else 0.0,
        active_share=None if shared or not known else sum(hold.active for hold in holds) / known,
        memory_peak_mib=None if shared or not peaks else round(max(peaks)),
        held_now=len(now),
        idle_now=len(idle),
        idle_hours=max(idle) / (60 * MINUTE) if idle else None,
        nodes=tuple(named),
    )


def idle_pods(use: GPUUse) -> Mapping[str, float]:
    """Give for each pod, as namespace/name, how many seconds all its GPUs have been idle for certain until the end.

    Pods with a GPU that works, or of which that is not known, are left out.
    """
    seconds: dict[str, float] = {}
    for hold in use.holds:
        if hold.held_now:
            idle = hold.idle.get(IDLE_BELOW, 0.0)
            seconds[hold.key] = min(idle, seconds.get(hold.key, idle))
    return {pod: idle for pod, idle in seconds.items() if idle > 0}


MOST_WORKLOADS = 500
"""Workloads kept, those with idle GPUs first: some 400 bytes each, and more rows than anybody reads (a guess)."""


@dataclass(frozen=True, slots=True)
class UseSummary:
    """The use of GPUs from `start` to `end`, in seconds since the epoch.

    `workloads` are those that hold something now, the idle ones first; `more_workloads` counts those left out.
    `idle_seconds` holds, by the activity up to which a unit counts as idle and by namespace, for how long each unit has
    been idle.
    """

    start: float
    end: float
    step_seconds: int
    namespaces: tuple[UsageRow, ...]
    workloads: tuple[UsageRow, ...]
    more_workloads: int
    idle_seconds: Mapping[float, Mapping[str, tuple[float, ...]]]
    problems: tuple[str, ...]


def summary_of(use: GPUUse, belows: Iterable[float]) -> UseSummary:
    """Summarize a use, whose shared GPUs are marked (`with_sharing`), for policies that count as idle by `belows`."""
    workloads = [row for row in usage_rows(use.holds, key_of(By.Owner, {})) if row.held_now]
    kept = heapq.nsmallest(MOST_WORKLOADS, workloads, key=_idle_first)
    return UseSummary(
        start=use.start,
        end=use.end,
        step_seconds=use.step_seconds,
        namespaces=usage_rows(use.holds, key_of(By.Namespace, {})),
        workloads=tuple(kept),
        more_workloads=len(workloads) - len(kept),
        idle_seconds={below: _by_namespace(use, below) for below in belows},
        problems=use.problems,
    )


def _idle_first(row: UsageRow) -> tuple[float, float, str, str]:
    return -row.idle_now * (row.idle_hours or 0.0), -row.held_hours, row.of, row.unit


def _by_namespace(use: GPUUse, below: float) -> Mapping[str, tuple[float, ...]]:
    seconds: dict[str, list[float]] = {}
    for hold in use.holds:
        if (idle := hold.idle.get(below, 0.0)) > 0:
            seconds.setdefault(hold.namespace, []).append(idle)
    return {namespace: tuple(some) for namespace, some in seconds.items()}
