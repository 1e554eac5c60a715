# SPDX-License-Identifier: Apache-2.0
"""The table of runs: mean and standard deviation over the seeds, by workload and policy."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean, stdev

from app.simulate.run import MARKS, SimulationRun


@dataclass(frozen=True, slots=True)
class ResultRow:
    """Figures of one policy on one workload. `allocated`: by mark, (mean, standard deviation; None of one run)."""

    workload: str
    policy: str
    seeds: int
    allocated: dict[str, tuple[float, float | None]]
    fragmented: float | None
    failed: float


def rows(runs: Iterable[SimulationRun]) -> list[ResultRow]:
    """Sum up runs, in the order in which workloads and policies first come."""
    groups: dict[tuple[str, str], list[SimulationRun]] = {}
    for each in runs:
        groups.setdefault((each.workload, each.policy), []).append(each)
    return [_row(*key, group) for key, group in groups.items()]


def _row(workload: str, policy: str, runs: list[SimulationRun]) -> ResultRow:
    allocated = {}
    for mark in map(str, MARKS):
        values = [each.allocated_percent[mark] for each in runs if mark in each.allocated_percent]
        if values:
            allocated[mark] = (mean(values), stdev(values) if len(values) > 1 else None)
    fragmented = [each.fragmented_percent["100"] for each in runs if "100" in each.fragmented_percent]
    failed = mean(sum(each.failed.values()) for each in runs)
    return ResultRow(workload, policy, len(runs), allocated, mean(fragmented) if fragmented else None, failed)
