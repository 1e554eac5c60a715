# SPDX-License-Identifier: Apache-2.0
"""The table of runs: mean and standard deviation over the seeds, by workload and policy."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean, stdev

from app.simulate.run import MARKS, SimulationRun


@dataclass(frozen=True, slots=True)
class ResultRow:
    """The figures of one policy on one workload.

    `seeds` is the number of runs. `allocated` has for each mark the mean percentage of all GPUs that pods hold, and its
    standard deviation, which is None for a single run. `fragmented` is the mean of F in percent of all GPUs at the mark
    100, None if no run reached it. `failed` is the mean number of pods that found no node.
    """

    workload: str
    policy: str
    seeds: int
    allocated: dict[str, tuple[float, float | None]]
    fragmented: float | None
    failed: float


def rows(runs: Iterable[SimulationRun]) -> list[ResultRow]:
    """Return the rows of runs, in the order in which workloads and policies first appear."""
    groups: dict[tuple[str, str], list[SimulationRun]] = {}
    for simulation_run in runs:
        groups.setdefault((simulation_run.workload, simulation_run.policy), []).append(simulation_run)
    return [_row(*key, group) for key, group in groups.items()]


def _row(workload: str, policy: str, runs: list[SimulationRun]) -> ResultRow:
    allocated = {}
    for mark in map(str, MARKS):
        values = [
            simulation_run.allocated_percent[mark]
            for simulation_run in runs
            if mark in simulation_run.allocated_percent
        ]
        if values:
            allocated[mark] = (mean(values), stdev(values) if len(values) > 1 else None)
    fragmented = [
        simulation_run.fragmented_percent["100"]
        for simulation_run in runs
        if "100" in simulation_run.fragmented_percent
    ]
    failed = mean(sum(simulation_run.failed.values()) for simulation_run in runs)
    return ResultRow(workload, policy, len(runs), allocated, mean(fragmented) if fragmented else None, failed)
