# SPDX-License-Identifier: Apache-2.0
"""The table of runs over time: mean and standard deviation over the seeds, by workload, load and policy."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from app.simulate.over_time_figures import OverTimeRun

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
