# SPDX-License-Identifier: Apache-2.0
"""What would have changed with pods that come and go: filter's shortlist, repacking, and right-sizing.

`python -m tests.bench.over_time_variants [SEEDS]` prints the section of tests/results/churn.md, of which
`make bench-churn` writes the whole. It plays every fourth node of the trace of GPU_USHER_TRACE, and a fourth of the
pods; finished runs are kept as those of tests/bench/over_time.py.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

from tests.bench.simulate.batch import SimulationJob, job_key, run_batch, run_key
from tests.bench.simulate.over_time_figures import OverTime, OverTimeRun
from tests.bench.simulate.run import History, Options
from tests.bench.simulate.trace import NODES

KEPT = Path("build/churn.jsonl")
EVERY, PODS = 4, 1_500
"""Every fourth node, and a fourth of the arrivals of tests/bench/over_time.py: an eighth of the time to compute."""
LOADS = {"default": (0.95, 1.0), "gpuspec33": (0.95, 1.0)}
VARIANTS = {
    "shortlist": "**as it ships**",
    "shipped": "no shortlist: filter names all that fit, prioritize is asked",
    "repack": "`plan repack` each hour, of at most 8 moves",
    "right-sized": "half of the pods with one GPU ask for half (an assumption)",
}
"""The words of the table, by policy."""
FIRST_SEED, SEEDS = 42, 1
HEAD = (
    "| workload | load | what | held % | fragmented % | GPUs waited for | mean wait, s | moves | GPU hours lost |\n"
    "|---|---|---|---:|---:|---:|---:|---:|---:|"
)


def jobs(seeds: int, pods: int = PODS) -> list[SimulationJob]:
    """Return the jobs in the order of the table."""
    trace = os.environ.get("GPU_USHER_TRACE")
    return [
        SimulationJob(Path(trace) if trace else None, NODES, workload, policy, FIRST_SEED + number, Options(
            History.Online, all_pods=True, over_time=OverTime(share, pods, EVERY)))
        for workload, shares in LOADS.items()
        for share in shares
        for policy in VARIANTS
        for number in range(seeds)
    ]  # fmt: skip


def report(runs: Sequence[OverTimeRun]) -> Iterator[str]:
    """Yield the lines of the section; runs of one row follow each other."""
    seeds = len({run.seed for run in runs})
    yield "\n## What would have changed\n"
    yield f"Every {EVERY}th node of the trace and {PODS:,} arrivals, {seeds} seed{'s' * (seeds > 1)}; else as above."
    yield "A pod that is moved starts again, and the GPU hours of what it has done are lost (in percent of those that"
    yield "were given out); the pods for which it makes room get it. No trace says how much of its GPUs a pod uses, so"
    yield "that right-sizing is an assumption.\n"
    yield HEAD
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


def played(seeds: int = SEEDS) -> list[OverTimeRun]:
    """Make the runs that are missing, and return all in the order of the table."""
    wanted = jobs(seeds)
    runs: dict[object, OverTimeRun] = {}
    for run in run_batch(wanted, 1, KEPT, lambda _: None):
        assert isinstance(run, OverTimeRun)
        runs[run_key(run)] = run
        print(f"{len(runs)} of {len(wanted)}: {run_key(run)}", file=sys.stderr, flush=True)
    return [runs[job_key(job)] for job in wanted]


if __name__ == "__main__":
    print("\n".join(report(played(*map(int, sys.argv[1:2])))))
