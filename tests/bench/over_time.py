# SPDX-License-Identifier: Apache-2.0
"""Pods that come and go, at several loads, for each policy: `make bench-churn` prints tests/results/churn.md.

`python -m tests.bench.over_time [SEEDS [PODS [PROCESSES [WORKLOAD ...]]]]`; the trace is that of GPU_USHER_TRACE, or
else a synthetic one. Finished runs are kept in build/churn.jsonl, and are not made again. A second section says what
would have changed with filter's shortlist, repacking, and right-sizing.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

from tests.bench.simulate.batch import SimulationJob, job_key, load, run_batch, run_key
from tests.bench.simulate.over_time_figures import QUEUE_MODEL, Figure, OverTime, OverTimeRun, over_time_rows
from tests.bench.simulate.run import History, Options
from tests.bench.simulate.trace import NODES, Trace

KEPT = Path("build/churn.jsonl")
LOADS = {"default": (0.8, 0.9, 0.95, 1.0, 1.1), "gpuspec33": (0.9, 0.95)}
"""By workload; the others of the published trace do not say how long a pod runs."""
POLICIES = {
    "shortlist": (History.Online, "**as it ships**"),
    "fgd": (History.Trace, "FGD, workload known"),
    "bestfit": (History.Trace, "best fit"),
    "spread": (History.Trace, "spread"),
}
"""What is known of the workload, and the words of the table, by policy."""
FIRST_SEED, SEEDS, PODS = 42, 3, 6_000
HEAD = (
    "| load | policy | held % | fragmented % | GPUs waited for | wait p50 | p95 | p99 | mean | waiting at the end |\n"
    "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
)
KINDS = ("share", "1 GPU", "2 GPU", "4 GPU", "8 GPU")
EVERY, VARIANT_PODS, VARIANT_SEEDS = 4, 1_500, 1
"""For what would have changed: every fourth node, and a fourth of the arrivals, an eighth of the time to compute."""
VARIANT_LOADS = {"default": (0.95, 1.0), "gpuspec33": (0.95, 1.0)}
VARIANTS = {
    "shortlist": "**as it ships**",
    "shipped": "no shortlist: filter names all that fit, prioritize is asked",
    "repack": "`plan repack` each hour, of at most 8 moves",
    "right-sized": "half of the pods with one GPU ask for half (an assumption)",
}
"""The words of the table, by policy."""
VARIANTS_HEAD = (
    "| workload | load | what | held % | fragmented % | GPUs waited for | mean wait, s | moves | GPU hours lost |\n"
    "|---|---|---|---:|---:|---:|---:|---:|---:|"
)


def jobs(
    policies: Mapping[str, History], loads: Mapping[str, Sequence[float]], seeds: int, pods: int, every: int = 1
) -> list[SimulationJob]:
    """Return the jobs in the order of a table, on every so many nodes of the trace; `loads` is by workload."""
    trace = os.environ.get("GPU_USHER_TRACE")
    return [
        SimulationJob(Path(trace) if trace else None, NODES, workload, policy, FIRST_SEED + number, Options(
            history, all_pods=True, over_time=OverTime(share, pods, every)))
        for workload, shares in loads.items()
        for share in shares
        for policy, history in policies.items()
        for number in range(seeds)
    ]  # fmt: skip


def report(runs: Sequence[OverTimeRun], origin: str, pods: int) -> Iterator[str]:
    """Yield the lines of the table."""
    seeds = len({run.seed for run in runs})
    yield "# Pods that come and go\n"
    yield f"`make bench-churn` wrote this: {origin}; {pods:,} arrivals (Poisson), of which the first third warms up;"
    yield f"{seeds} seeds, the same pods for every policy. A pod runs for as long as in the trace; at the start GPUs"
    yield "are held as one finds them after a long time. Load: GPU time asked for, as a share of what there is. Queue:"
    yield f"{QUEUE_MODEL}."
    yield "Held, fragmented (F of FGD): % of the GPUs over time. GPUs waited for: those that waiting pods ask for, over"
    yield "time. Waits: seconds, of GPU pods that arrive; one that still waits counts with its wait until the end. The"
    yield "last column is GPU pods, with those of the start. Mean ± standard deviation over the seeds."
    for workload, group in groupby(runs, key=lambda run: run.workload):
        of_workload = list(group)
        yield f"\n## {workload}\n\n{HEAD}"
        yield from _rows(of_workload)
        yield "\nAs it ships, less the other, seed by seed, with the standard error:\n"
        yield "| load | other | held %, points | GPUs waited for | mean wait, s |\n|---|---|---:|---:|---:|"
        yield from _differences(of_workload)
        yield f"\nMean wait in seconds by what pods ask for:\n\n| load | policy | {' | '.join(KINDS)} |"
        yield f"|---|---|{'---:|' * len(KINDS)}"
        yield from _by_kind(of_workload)


def _rows(runs: Sequence[OverTimeRun]) -> Iterator[str]:
    for row in over_time_rows(runs):
        cells = [f"{row.load_percent / 100:.2f}", POLICIES[row.policy][1], _cell(row.held_percent, 2)]
        cells += [_cell(row.fragmented_percent, 2), _cell(row.waiting_gpus, 0)]
        cells += [*(_cell(figure, 0) for figure in row.wait_seconds.values()), _cell(row.still_waiting, 0)]
        yield f"| {' | '.join(cells)} |"


def _differences(runs: Sequence[OverTimeRun]) -> Iterator[str]:
    """Yield the differences to the other policies, seed by seed, with their standard error."""
    by_key = {(run.load_percent, run.policy, run.seed): run for run in runs}
    for load_percent in dict.fromkeys(run.load_percent for run in runs):
        for other in list(POLICIES)[1:]:
            pairs = [(run, by_key[load_percent, other, run.seed]) for run in runs
                     if run.policy == "shortlist" and run.load_percent == load_percent]  # fmt: skip
            columns = (
                [mean(one.held_percent) - mean(two.held_percent) for one, two in pairs],
                [mean(one.waiting_gpus) - mean(two.waiting_gpus) for one, two in pairs],
                [one.wait_seconds["mean"] - two.wait_seconds["mean"] for one, two in pairs],
            )
            cells = (f"{mean(values):+.{digits}f}{_error(values, digits)}"
                     for values, digits in zip(columns, (2, 0, 0), strict=True))  # fmt: skip
            yield f"| {load_percent / 100:.2f} | {POLICIES[other][1]} | {' | '.join(cells)} |"


def _by_kind(runs: Sequence[OverTimeRun]) -> Iterator[str]:
    for (load_percent, policy), group in groupby(runs, key=lambda run: (run.load_percent, run.policy)):
        of_policy = list(group)
        waits = ([run.mean_wait_by_kind[kind] for run in of_policy if kind in run.mean_wait_by_kind] for kind in KINDS)
        cells = (
            _cell((mean(values), stdev(values) if len(values) > 1 else None), 0) if values else "" for values in waits
        )
        yield f"| {load_percent / 100:.2f} | {POLICIES[policy][1]} | {' | '.join(cells)} |"


def _error(values: Sequence[float], digits: int) -> str:
    return f" ± {stdev(values) / sqrt(len(values)):.{digits}f}" if len(values) > 1 else ""


def _cell(figure: Figure, digits: int) -> str:
    value, deviation = figure
    return f"{value:.{digits}f}" if deviation is None else f"{value:.{digits}f} ± {deviation:.{digits}f}"


def origin_of(trace: Trace) -> str:
    """Say what was played, without the place where the trace lies."""
    gpus = sum(machine.gpus for machine in trace.machines)
    source = trace.origin if trace.origin.startswith("synthetic") else "the public openb trace"
    return f"{source}, {len(trace.machines):,} nodes, {gpus:,} GPUs"


def variants_report(runs: Sequence[OverTimeRun]) -> Iterator[str]:
    """Yield the lines of the section; runs of one row follow each other."""
    seeds = len({run.seed for run in runs})
    yield "\n## What would have changed\n"
    what = f"{VARIANT_PODS:,} arrivals, {seeds} seed{'s' * (seeds > 1)}"
    yield f"Every {EVERY}th node of the trace and {what}; else as above."
    yield "A pod that is moved starts again, and the GPU hours of what it has done are lost (in percent of those that"
    yield "were given out); the pods for which it makes room get it. No trace says how much of its GPUs a pod uses, so"
    yield "that right-sizing is an assumption.\n"
    yield VARIANTS_HEAD
    for start in range(0, len(runs), seeds):
        row = runs[start : start + seeds]
        lost, hours = mean(run.lost_gpu_hours for run in row), mean(run.gpu_hours for run in row)
        cells = [row[0].workload, f"{row[0].load_percent / 100:.2f}", VARIANTS[row[0].policy]]
        cells += [f"{mean(mean(run.held_percent) for run in row):.2f}"]
        cells += [f"{mean(mean(run.fragmented_percent) for run in row):.2f}"]
        cells += [f"{mean(mean(run.waiting_gpus) for run in row):.0f}"]
        cells += [f"{mean(run.wait_seconds['mean'] for run in row):.0f}"]
        cells += [f"{mean(run.moves for run in row):.0f}", f"{lost:,.0f} ({100 * lost / hours:.1f} %)"]
        yield f"| {' | '.join(cells)} |"


def play(wanted: Sequence[SimulationJob], processes: int = 1) -> list[OverTimeRun]:
    """Make the runs that are missing, and return all in the order of the jobs."""
    runs: dict[object, OverTimeRun] = {}
    for run in run_batch(wanted, processes, KEPT, lambda _: None):
        assert isinstance(run, OverTimeRun)
        runs[run_key(run)] = run
        print(f"{len(runs)} of {len(wanted)}: {run_key(run)}", file=sys.stderr, flush=True)
    return [runs[job_key(job)] for job in wanted]


def main() -> None:
    """Make the runs that are missing, and print the tables."""
    given = [int(word) for word in sys.argv[1:4]]
    seeds, pods, processes = [*given, *(SEEDS, PODS, 1)[len(given) :]]
    policies = {policy: history for policy, (history, _) in POLICIES.items()}
    wanted = jobs(policies, {name: LOADS[name] for name in sys.argv[4:] or LOADS}, seeds, pods)
    print("\n".join(report(play(wanted, processes), origin_of(load(wanted[0])), pods)))
    variants = dict.fromkeys(VARIANTS, History.Online)
    print("\n".join(variants_report(play(jobs(variants, VARIANT_LOADS, VARIANT_SEEDS, VARIANT_PODS, EVERY)))))


if __name__ == "__main__":
    main()
