# SPDX-License-Identifier: Apache-2.0
"""The published experiment on the real trace, if it is there: others' measurements, with our scores on the wire,
and the shipped defaults, which allocate more GPUs than the best published algorithm.
"""

import os
from pathlib import Path
from statistics import mean

import pytest

from tests.bench.simulate.batch import SimulationJob, run_batch, run_job
from tests.bench.simulate.run import Options, SimulationRun

TRACE = os.environ.get("GPU_USHER_TRACE")
SEEDS = (42, 43, 44)
ANCHORS = {"bestfit": (92.86, 93.08), "fgd": (95.23, 95.39), "kubernetes": (92.90, 94.13)}
"""Percent of the GPUs allocated at 100 and at 130 % of demand (the artifact's results, mean of 10 seeds; for kubernetes
an independent simulator's). They had another order of arrivals, and scores that were not rounded to 0..10."""
TOLERANCE = 0.35
"""Percentage points: two standard deviations of the published seeds, and the loss by rounding scores on the wire."""

pytestmark = pytest.mark.skipif(
    not TRACE, reason="The openb traces are not in this repository. Set GPU_USHER_TRACE to a directory that has them."
)


@pytest.mark.long
@pytest.mark.parametrize("policy", ANCHORS)
def test_published_figures_come_out_through_the_wire(policy: str) -> None:
    """F52, F61: BestFit and FGD with our scores on the wire, and kube-scheduler alone; equals are chosen at random."""
    jobs = [SimulationJob(Path(TRACE or ""), 0, "default", policy, seed, Options(all_pods=True)) for seed in SEEDS]

    runs = [run for run in run_batch(jobs, 1, None, lambda _: None) if isinstance(run, SimulationRun)]

    means = [mean(run.allocated_percent[mark] for run in runs) for mark in ("100", "130")]
    assert means == pytest.approx(ANCHORS[policy], abs=TOLERANCE)


@pytest.mark.parametrize(("workload", "bar"), [("default", 95.8), ("gpuspec33", 94.8)])
def test_shipped_defaults_beat_the_published_best(workload: str, bar: float) -> None:
    """F51, F52, P47: the bar is below what every seed gives (tests/results/placement.md), and above the published
    best."""
    result = run_job(SimulationJob(Path(TRACE or ""), 0, workload, "shipped", 42, Options(all_pods=True)))

    assert isinstance(result, SimulationRun)
    assert result.allocated_percent["100"] > bar
