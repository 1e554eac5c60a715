# SPDX-License-Identifier: Apache-2.0
"""`make bench-mig`: the slices that a fleet of MIG GPUs accepts under churn, as tables in tests/results/mig-churn.md.

`python -m tests.bench.mig [SEEDS] [ARRIVALS]` prints them; the target writes the file.
"""

import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import sqrt

from tests.bench.churn import BY_NODE, GPUS, MIXES, POLICIES, Policy, arrivals, churn

SEEDS, ARRIVALS = 20, 6_000
"""6,000 arrivals are some 25 mean lives of a full fleet, of which the first third warms up."""
NODE_SEEDS = 10
"""For the policies that choose a node, which take ten times as long; as many at most."""
LOADS = (0.95, 1.20)
OURS, STRONGEST = "ours", "best-fit from above"
BASES = ("best-fit", STRONGEST)


@dataclass(frozen=True, slots=True)
class Cell:
    """One mix at one load; `accepted` maps a policy to the percentages of its seeds, in one order for all policies."""

    mix: str
    load: float
    accepted: Mapping[str, tuple[float, ...]]

    def gain(self, policy: str, over: str) -> tuple[float, float]:
        """Return the mean gain in percentage points over another policy, and its standard error, paired by seed."""
        pairs = zip(self.accepted[policy], self.accepted[over], strict=True)
        return _mean_and_error([ours - theirs for ours, theirs in pairs])


def measure(policies: Mapping[str, Policy], seeds: int, count: int) -> list[Cell]:
    """Play every mix, load and seed with each policy, on all cores."""
    keys = [(mix, load) for load in LOADS for mix in MIXES]
    jobs = [(tuple(policies), mix, load, seed, count) for mix, load in keys for seed in range(seeds)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        results = iter(pool.map(_play, jobs, chunksize=5))
        rows = [[next(results) for _ in range(seeds)] for _ in keys]
    columns = [dict(zip(policies, zip(*row, strict=True), strict=True)) for row in rows]
    return [Cell(mix, load, accepted) for (mix, load), accepted in zip(keys, columns, strict=True)]


def _play(job: tuple[tuple[str, ...], str, float, int, int]) -> tuple[float, ...]:
    names, mix, load, seed, count = job
    wishes = list(arrivals(mix, load, seed, count, GPUS))
    return tuple(churn({**POLICIES, **BY_NODE}[name], wishes).accepted_percent for name in names)


def mean_gain(cells: Sequence[Cell], policy: str, over: str) -> tuple[float, float]:
    """Return the mean gain over all cells, and its standard error: cells and seeds are independent draws."""
    gains = [cell.gain(policy, over) for cell in cells]
    return statistics.fmean(gain for gain, _ in gains), sqrt(sum(error**2 for _, error in gains)) / len(gains)


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) / sqrt(len(values))


def table(cells: Sequence[Cell], policy: str, bases: Sequence[str]) -> Iterator[str]:
    """Write the rows: mean and standard deviation of each policy, then the gains of one over others."""
    names = list(cells[0].accepted)
    yield "| mix, load | " + " | ".join([*names, *(f"{policy} − {base}" for base in bases)]) + " |"
    yield "|---|" + "---:|" * (len(names) + len(bases))
    for cell in cells:
        shares = [
            f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}" for values in cell.accepted.values()
        ]
        gains = ["{:+.2f} ± {:.2f}".format(*cell.gain(policy, base)) for base in bases]
        yield f"| {cell.mix} {cell.load:.2f} | " + " | ".join([*shares, *gains]) + " |"
    gains = ["**{:+.2f} ± {:.2f}**".format(*mean_gain(cells, policy, base)) for base in bases]
    yield "| mean | " + " | ".join([*("" for _ in names), *gains]) + " |"


INTRO = """# MIG slices under churn

`make bench-mig` wrote this. {gpus} H100-80GB, Poisson arrivals, exponential life, what finds no place is lost;
{count:,} arrivals, of which the first third warms up, the same for every policy.
Load: memory slices asked at a time, as a share of all. Figures: % of the memory slices asked that were accepted,
mean ± standard deviation over the seeds; gains: points, over the seeds in pairs, ± standard error.

## The policy chooses GPU and start: {seeds} seeds

First-fit: the first GPU with room, its lowest start. Best-fit: the GPU with the fewest free memory slices, its lowest
start; from above: its highest start, and of equally full GPUs the one that has the highest.
"""
BY_NODE_INTRO = """
## The policy chooses one of 12 nodes of 8 GPUs, kube-scheduler's allocator the slice: {seeds} seeds

This is what a scheduler extender can do: the allocator takes the first slice that is free in the order of the list.
Any node: the choice is left to chance.
"""


def report(seeds: int, count: int) -> Iterator[str]:
    """Write the whole text."""
    yield INTRO.format(gpus=GPUS, count=count, seeds=seeds)
    yield from table(measure(POLICIES, seeds, count), OURS, BASES)
    fewer = min(seeds, NODE_SEEDS)
    yield BY_NODE_INTRO.format(seeds=fewer)
    yield from table(measure(BY_NODE, fewer, count), "MIGLayout", ("any node", "fullest node"))


def main() -> None:
    """Print the tables."""
    seeds, count = (int(word) for word in [*sys.argv[1:], *map(str, (SEEDS, ARRIVALS)[len(sys.argv) - 1 :])][:2])
    for line in report(seeds, count):
        print(line, flush=True)


if __name__ == "__main__":
    main()
