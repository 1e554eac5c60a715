# SPDX-License-Identifier: Apache-2.0
"""The figures of a run over time: how long pods wait, how many GPUs are held, and how fragmented the rest is.

The pods of a simulation over time: those that run when it starts, and those that arrive.

The table of runs over time: mean and standard deviation over the seeds, by workload, load and policy.

What `python -m tests.bench.simulate --load` reads and shows: pods that come and go, and how long they wait.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil
from random import Random
from statistics import mean, stdev

from rich.console import Console
from rich.table import Table

from app.knowledge.products import WHOLE_MILLI
from app.values.errors import BadInput
from tests.bench.simulate.trace import Task, Trace

PERCENTILES = (50, 95, 99)
PARTS = 10
"""Parts of the time that is measured, so that one sees whether a queue grows."""
DIGITS = 3
"""Digits of seconds, hours and percentages in a result."""


@dataclass(frozen=True, slots=True)
class OverTimeRun:
    """The result of a run over time, from the end of the warm-up on.

    `load_percent` is the GPU time asked for, in percent of what the GPUs have. `pods` is the number of GPU pods that
    arrived, `waited_percent` the percentage of them that did not start at once. `wait_seconds` has the percentiles p50,
    p95 and p99 and the mean of how long they waited; one that still waits at the end counts with its wait until then.
    `mean_wait_by_kind` is the mean by what they ask for: a share, or a number of GPUs. `held_percent`,
    `fragmented_percent`, `waiting_pods` and `waiting_gpus` are averages over each tenth of the time: of the GPUs that
    pods hold and F in percent of all GPUs, of the GPU pods that wait, those of the start among them, and of the GPUs
    that these ask for. `gpu_hours` were given out, in `hours`. `still_waiting` are GPU pods at the end, and
    `still_waiting_gpus` the GPUs that they ask for. `moves` are pods that a repacking policy has restarted, which has
    cost `lost_gpu_hours` of the work that they had done.
    """

    workload: str
    policy: str
    seed: int
    load_percent: float
    pods: int
    waited_percent: float
    wait_seconds: dict[str, float]
    mean_wait_by_kind: dict[str, float]
    held_percent: tuple[float, ...]
    fragmented_percent: tuple[float, ...]
    waiting_pods: tuple[float, ...]
    waiting_gpus: tuple[float, ...]
    hours: float
    gpu_hours: float
    still_waiting: int
    still_waiting_gpus: float
    moves: int = 0
    lost_gpu_hours: float = 0.0


class TimeAverages:
    """Averages of several quantities over each of equal parts of a time.

    Quantities change with `add`; `advance` says that time has passed. Times are seconds from the start of the run.
    """

    def __init__(self, begin: float, end: float, quantities: int) -> None:
        self._edges = [begin + (end - begin) * part / PARTS for part in range(PARTS + 1)]
        self._values = [0.0] * quantities
        self._sums = [[0.0] * PARTS for _ in range(quantities)]
        self._now = 0.0
        self._part = 0

    def add(self, *changes: float) -> None:
        """Change the quantities from now on."""
        for index, change in enumerate(changes):
            self._values[index] += change

    def advance(self, now: float) -> None:
        """Let time pass up to `now`."""
        edges = self._edges
        while self._part < PARTS and now > edges[self._part]:
            begin, end = max(self._now, edges[self._part]), min(now, edges[self._part + 1])
            for value, sums in zip(self._values, self._sums, strict=True):
                sums[self._part] += value * (end - begin)
            if now < edges[self._part + 1]:
                break
            self._part += 1
        self._now = now

    def averages(self, quantity: int) -> list[float]:
        """Return the average of a quantity over each part."""
        length = (self._edges[-1] - self._edges[0]) / PARTS
        return [total / length for total in self._sums[quantity]]


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return a percentile of ascending values by the nearest rank; 0.0 of none."""
    return ordered[ceil(len(ordered) * percent / 100) - 1] if ordered else 0.0


def wait_figures(waits: Sequence[float]) -> dict[str, float]:
    """Return the percentiles and the mean of waiting times in seconds."""
    ordered = sorted(waits)
    figures = {f"p{percent}": round(percentile(ordered, percent), DIGITS) for percent in PERCENTILES}
    return {**figures, "mean": round(sum(ordered) / max(1, len(ordered)), DIGITS)}


def mean_by_kind(waits: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean waiting time in seconds by what pods ask for."""
    return {kind: round(sum(values) / len(values), DIGITS) for kind, values in sorted(waits.items())}


RIGHT_SIZED_SHARE = 0.5
"""The share of the pods with one whole GPU that `right_sized` gives half of one. An assumption."""


@dataclass(frozen=True, slots=True)
class OverTime:
    """What is played over time.

    `load` is the GPU time that arriving pods ask for per second, as a share of the GPUs of the cluster. `pods` is how
    many of them arrive. Of the machines of the trace every `every`th is played.
    """

    load: float
    pods: int
    every: int = 1


@dataclass(frozen=True, slots=True)
class PlayedPod:
    """A pod: its number, its task, for how many seconds it runs, and when it arrives, in seconds from the start.

    `ran` is for how many seconds it had run before the simulation, beside `seconds`.
    """

    number: int
    task: Task
    seconds: float
    arrives: float
    ran: float = 0.0


def draw_pods(trace: Trace, played: OverTime, seed: int) -> tuple[list[PlayedPod], list[PlayedPod]]:
    """Draw the pods that run at the start, and those that arrive, from the tasks of a trace whose duration is known.

    Arrivals are a Poisson process, tasks are drawn with replacement. What runs at the start is drawn as it would be
    found after a long time without a queue (M/G/∞: a task by its duration, of which what is left is uniform), because
    the longest pods of the published trace run for five months, and half of the GPU time is theirs.

    Raises BadInput where the trace says of no task how long it runs.
    """
    known = [(task, float(seconds)) for task, seconds in zip(trace.tasks, trace.seconds, strict=True) if seconds]
    asked_per_pod = sum(task.milli * seconds for task, seconds in known) / max(1, len(known))
    if not asked_per_pod:
        raise BadInput(f"--load: workload {trace.workload[:40]!r} does not say how long pods with GPUs run")
    rng = Random(f"{seed} over time")
    running = _draw_running(known, played.load * trace.capacity_milli, rng)
    rate = played.load * trace.capacity_milli / asked_per_pod
    now, arriving = 0.0, []
    for number in range(len(running), len(running) + played.pods):
        now += rng.expovariate(rate)
        arriving.append(PlayedPod(number, *rng.choice(known), now))
    return running, arriving


def right_sized(pods: list[PlayedPod], seed: int) -> list[PlayedPod]:
    """Return the pods where half of those that ask for one whole GPU ask for half of one, and run as long.

    No trace says how much of its GPUs a pod uses: that half of them would do with half a GPU is an assumption.
    """
    rng = Random(f"{seed} right-sized")
    return [
        replace(pod, task=replace(pod.task, gpu_milli=WHOLE_MILLI // 2))
        if pod.task.milli == WHOLE_MILLI and rng.random() < RIGHT_SIZED_SHARE
        else pod
        for pod in pods
    ]


def _draw_running(known: list[tuple[Task, float]], milli: float, rng: Random) -> list[PlayedPod]:
    """Draw pods that run at the start until they ask for so many thousandths of a GPU."""
    weights = list(accumulate(seconds for _, seconds in known))
    running: list[PlayedPod] = []
    while milli > 0:
        ((task, seconds),) = rng.choices(known, cum_weights=weights)
        left = rng.uniform(0, seconds)
        running.append(PlayedPod(len(running), task, left, 0.0, seconds - left))
        milli -= task.milli
    return running


Figure = tuple[float, float | None]
"""A mean, and the standard deviation, which is None for a single run."""


@dataclass(frozen=True, slots=True)
class OverTimeRow:
    """The figures of one policy on one workload at one load, each over the seeds (simulate/over_time_figures.py)."""

    workload: str
    load_percent: float
    policy: str
    seeds: int
    held_percent: Figure
    fragmented_percent: Figure
    wait_seconds: dict[str, Figure]
    waited_percent: Figure
    waiting_gpus: Figure
    still_waiting: Figure
    still_waiting_gpus: Figure


def over_time_rows(runs: Iterable[OverTimeRun]) -> list[OverTimeRow]:
    """Return the rows of runs, in the order in which workloads, loads and policies first appear."""
    groups: dict[tuple[str, float, str], list[OverTimeRun]] = {}
    for run in runs:
        groups.setdefault((run.workload, run.load_percent, run.policy), []).append(run)
    return [_row(*key, group) for key, group in groups.items()]


def figure(values: Sequence[float]) -> Figure:
    """Return the mean of values and their standard deviation."""
    return mean(values), stdev(values) if len(values) > 1 else None


def _row(workload: str, load_percent: float, policy: str, runs: list[OverTimeRun]) -> OverTimeRow:
    return OverTimeRow(
        workload,
        load_percent,
        policy,
        len(runs),
        figure([mean(run.held_percent) for run in runs]),
        figure([mean(run.fragmented_percent) for run in runs]),
        {name: figure([run.wait_seconds[name] for run in runs]) for name in runs[0].wait_seconds},
        figure([run.waited_percent for run in runs]),
        figure([mean(run.waiting_gpus) for run in runs]),
        figure([run.still_waiting for run in runs]),
        figure([run.still_waiting_gpus for run in runs]),
    )


PODS, LEAST_PODS, MOST_PODS = 20_000, 10, 1_000_000
"""Pods that arrive. In the published trace 20,000 pods at a load of 1 arrive within a day."""
QUEUE_MODEL = (
    "kube-scheduler's, one priority: each pod that leaves has all waiting ones tried again, by their last attempt and "
    "backoff; an attempt takes no time"
)
"""The field `queue` of a result: how pods without a node are tried again (simulate/scheduling_queue.py)."""
LOADS = re.compile(r"(\d\.\d{1,2}|\d)(?:-(\d\.\d{1,2}|\d))?", re.ASCII)
"""A load, or a range of loads with both ends."""
STEP_PERCENT, MOST_PERCENT = 10, 200
"""The loads of a range are a tenth of the GPUs apart. More than twice what fits only makes the queue longer."""


def read_loads(text: str, pods: int) -> list[OverTime | None]:
    """Read `0.8-1.1` or `0.9,1`; an empty text is one job that is not played over time.

    Raises BadInput.
    """
    if not text:
        return [None]
    percents: list[int] = []
    for word in text.split(","):
        match = LOADS.fullmatch(word.strip())
        first, last = (round(100 * float(end)) for end in (match[1], match[2] or match[1])) if match else (1, 0)
        if not 0 < first <= last <= MOST_PERCENT:
            raise BadInput(f"--load: got {word[:20]!r}, wants numbers as 0.8-1.1 or 0.9,1, up to {MOST_PERCENT // 100}")
        percents.extend(range(first, last + 1, STEP_PERCENT))
    return [OverTime(percent / 100, pods) for percent in dict.fromkeys(percents)]


def show_over_time(console: Console, runs: Iterable[OverTimeRun], trace: str) -> None:
    """Print the table of runs on the trace that is named, and what its columns mean."""
    title = f"Pods that come and go ({trace})"
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in ("workload", "load %", "policy"):
        table.add_column(name, no_wrap=True)
    for name in ("seeds", "held %", "fragmented %", "wait p50", "p95", "p99", "mean", "waiting"):
        table.add_column(name, justify="right")
    for row in over_time_rows(runs):
        waits = (_cell(figure, 0) for figure in row.wait_seconds.values())
        table.add_row(
            row.workload,
            f"{row.load_percent:g}",
            row.policy,
            str(row.seeds),
            _cell(row.held_percent, 2),
            _cell(row.fragmented_percent, 2),
            *waits,
            _cell(row.still_waiting, 0),
        )
    console.print(table)
    console.print(
        "[dim]held, fragmented: percent of the GPUs, over time; wait: of GPU pods, in seconds; waiting: at the end[/]"
    )


def _cell(figure: Figure, digits: int) -> str:
    value, deviation = figure
    return f"{value:.{digits}f}" if deviation is None else f"{value:.{digits}f} ± {deviation:.{digits}f}"
