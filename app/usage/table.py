# SPDX-License-Identifier: Apache-2.0
"""The table of use: GPU-hours held, active share, memory peak and idleness, by namespace, workload, product or node.

A summary is what pages, metrics and policies keep of it between two polls. The threshold of idleness (`IDLE_BELOW`) is
in admission/validators.py, since the rule `idle` applies it too.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from app.policy.schema_admission import IDLE_BELOW
from app.usage.history import KNOWN_SHARE, Hold, Pace, UseHistory, held_now, idle_seconds
from app.usage.workloads import owner_by_name


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
    `unseen_hours` are hours between two sightings of a pod on its GPU in which neither was seen.
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
    unseen_hours: float


@dataclass(frozen=True, slots=True)
class UsageReport:
    """The table of use. `start` and `end` are seconds since the epoch; `problems` say what could not be read."""

    start: float
    end: float
    window_seconds: int
    by: str
    rows: tuple[UsageRow, ...]
    problems: tuple[str, ...]


def usage_report(
    history: UseHistory,
    by: By,
    owners: Mapping[str, str] | None = None,
    below: float = IDLE_BELOW,
) -> UsageReport:
    """Make the table of a history, whose shared GPUs are marked (`with_sharing`); the rows with most hours come first.

    `owners` are the workloads of pods by namespace/name; for others their names say it. `below` is the activity up to
    which a unit counts as idle.
    """
    return UsageReport(
        start=history.start,
        end=history.end,
        window_seconds=history.window_seconds,
        by=by.value,
        rows=usage_rows(history, key_of(by, owners or {}), idle_by_hold(history, below)),
        problems=history.problems,
    )


def usage_rows(
    history: UseHistory,
    key: Callable[[Hold], str],
    idle: Mapping[int, float],
    pace: Pace = iter,
) -> tuple[UsageRow, ...]:
    """Make the rows of a table, those with most hours first.

    `key` tells the row of a hold, and `idle` is what `idle_by_hold` gives.
    """
    groups: dict[tuple[UseUnit, str], list[int]] = {}
    for position, hold in enumerate(history.holds):
        groups.setdefault((unit_of(hold), key(hold)), []).append(position)
    rows = (_row(of, unit, positions, history, idle) for (unit, of), positions in pace(groups.items()))
    return tuple(sorted(rows, key=lambda row: (-row.held_hours, row.of, row.unit)))


def unit_of(hold: Hold) -> UseUnit:
    """Give what was held."""
    if hold.shared:
        return UseUnit.Share
    return UseUnit.Slice if hold.instance or hold.profile else UseUnit.GPU


def key_of(by: By, owners: Mapping[str, str]) -> Callable[[Hold], str]:
    """Return what gives the row of a hold. `owners` are the workloads of pods by namespace/name."""

    def owner(hold: Hold) -> str:
        pod = f"{hold.namespace}/{hold.pod}"
        return owners.get(pod) or f"{hold.namespace}/{owner_by_name(hold.pod)}"

    keys: Mapping[By, Callable[[Hold], str]] = {
        By.Namespace: lambda hold: hold.namespace,
        By.Owner: owner,
        By.Product: lambda hold: " ".join(filter(None, (hold.model or "unknown product", hold.profile))),
        By.Node: lambda hold: hold.node or "unknown node",
        By.Pod: lambda hold: f"{hold.namespace}/{hold.pod}",
    }
    return keys[by]


def idle_by_hold(history: UseHistory, below: float = IDLE_BELOW, pace: Pace = iter) -> Mapping[int, float]:
    """Give for each hold, by its position, how many seconds its unit has been idle for certain until the end.

    A shared GPU without activity is idle for all pods that share it; one with activity is so for none, since the
    metrics cannot say whose it is.
    """
    sharers: dict[tuple[str, str], list[Hold]] = {}
    for hold in history.holds:
        if hold.shared:
            sharers.setdefault(hold.device, []).append(hold)
    idle = {}
    for position, hold in enumerate(pace(history.holds)):
        if held_now(hold, history):
            own = idle_seconds([hold], history, below)
            idle[position] = min(own, *(idle_of(other, history, below) for other in sharers.get(hold.device, [hold])))
    return idle


def idle_of(hold: Hold, history: UseHistory, below: float) -> float:
    """Give for how long a sharer does not contradict idleness: infinity if it has released the GPU."""
    return idle_seconds([hold], history, below) if held_now(hold, history) else float("inf")


def _row(of: str, unit: UseUnit, positions: Sequence[int], history: UseHistory, idle: Mapping[int, float]) -> UsageRow:
    holds = [history.holds[position] for position in positions]
    held = _sum(window.held for hold in holds for window in hold.windows)
    known = _sum(min(window.known, window.held) for hold in holds for window in hold.windows)
    active = _sum(window.active for hold in holds for window in hold.windows)
    measured = _sum(window.known for hold in holds for window in hold.windows)
    shared = unit is UseUnit.Share
    idle_now = [seconds for position in positions if (seconds := idle.get(position, 0.0)) > 0]
    share = None if shared or not measured else active / measured
    peaks = [window.memory_mib for hold in holds for window in hold.windows if window.memory_mib is not None]
    return UsageRow(
        of=of,
        unit=unit.value,
        pods=len({(hold.namespace, hold.pod) for hold in holds}),
        held_hours=held / 60,
        known_share=known / held if held else 0.0,
        active_share=share,
        memory_peak_mib=None if shared or not peaks else round(max(peaks)),
        held_now=sum(held_now(hold, history) for hold in holds),
        idle_now=len(idle_now),
        idle_hours=max(idle_now) / 3600 if idle_now else None,
        unseen_hours=_sum(_unseen(hold, history) for hold in holds) / 60,
    )


def _unseen(hold: Hold, history: UseHistory) -> float:
    """Count the minutes between the first and the last sighting in windows in which the hold was not seen at all."""
    if not hold.windows:
        return 0.0
    between = hold.windows[-1].number - hold.windows[0].number + 1
    return float((between - len(hold.windows)) * history.minutes)


def _sum(values: Iterable[float]) -> float:
    return float(sum(values))


def idle_pods(history: UseHistory, below: float = IDLE_BELOW) -> Mapping[str, float]:
    """Give for each pod, as namespace/name, how many seconds all its GPUs have been idle for certain until the end.

    Pods with a GPU that works, or of which that is not known, are left out.
    """
    seconds: dict[str, float] = {}
    for position, idle in idle_by_hold(history, below).items():
        hold = history.holds[position]
        pod = f"{hold.namespace}/{hold.pod}"
        seconds[pod] = min(idle, seconds.get(pod, idle))
    return {pod: idle for pod, idle in seconds.items() if idle > 0}


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
