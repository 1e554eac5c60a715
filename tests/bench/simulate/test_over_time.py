# SPDX-License-Identifier: Apache-2.0
"""Runs over time against a slow twin, their figures by hand, and the pods that are drawn."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import floor, inf
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.values.errors import BadInput
from tests.bench.simulate.batch import SimulationJob, run_batch
from tests.bench.simulate.over_time import WARM_UP, expected_of, run_over_time
from tests.bench.simulate.over_time_figures import (
    OverTime,
    OverTimeRun,
    PlayedPod,
    TimeAverages,
    draw_pods,
    over_time_rows,
    percentile,
)
from tests.bench.simulate.policies import POLICIES, BenchmarkPolicy, popular, read_policy
from tests.bench.simulate.run import History, Learning, Options, Simulation
from tests.bench.simulate.scheduler import backoff_seconds
from tests.bench.simulate.simulated_cluster import Binding, SimulatedCluster
from tests.bench.simulate.trace import Machine, Task, Trace, synthetic
from tests.builders import knowledge, shipped
from tests.placement.expected_demand import unusable_milli

RULES = (shipped(), knowledge())
T4 = "Tesla-T4"
WHOLE, TWO = Task(1000, 1024, 1, 1000), Task(2000, 1024, 2, 1000)
SHARE, CPU = Task(1000, 1024, 1, 400), Task(9, 9, 0, 0)


@cache
def small() -> Trace:
    return synthetic("gpuspec33", 12)


def play(policy: str, load: float, pods: int = 60, seed: int = 1, trace: Trace | None = None) -> OverTimeRun:
    options = Options(History.Online, over_time=OverTime(load, pods))
    return run_over_time(trace or small(), read_policy(policy), seed, options, RULES)


class Twin:
    """A run over time without any cleverness: every moment each waiting pod asks every node, and all is counted anew.

    It shares only the choice of a node (Simulation.place) with the run.
    """

    def __init__(self, trace: Trace, policy: BenchmarkPolicy, seed: int, options: Options) -> None:
        self.trace = trace
        self.simulation = Simulation(trace, policy, seed, options, RULES)
        self.measure = popular(expected_of(trace, self.simulation))
        self.bound: dict[int, tuple[float, Binding, PlayedPod]] = {}
        self.waiting: dict[int, tuple[PlayedPod, int, float, int]] = {}
        """A pod that waits, its failures, the time of its last attempt, and the attempts of all pods before it."""
        self.attempts = 0
        self.started: dict[int, float] = {}

    def learn(self, more: list[PlayedPod]) -> None:
        learning = Learning(self.simulation.fleet)
        running = [pod for _, _, pod in self.bound.values()]
        for pod in [*running, *(waiting[0] for waiting in self.waiting.values()), *more]:
            learning.count(self.simulation.demands.class_of(pod.task), 1)
        self.simulation.demands.expect(learning.expected_demand())

    def attempt(self, pod: PlayedPod, now: float) -> None:
        binding = self.simulation.place(pod.task)
        self.attempts += 1
        failures = self.waiting.pop(pod.number, (pod, 0))[1]
        if binding is None:
            self.waiting[pod.number] = (pod, failures + 1, now, self.attempts)
        else:
            self.bound[pod.number] = (now + pod.seconds, binding, pod)
            self.started[pod.number] = now

    def leave(self, number: int) -> None:
        end, binding, pod = self.bound.pop(number)
        self.simulation.fleet.release(binding, pod.task)
        self.learn([])

        def key(waiting: tuple[PlayedPod, int, float, int]) -> tuple[float, int]:
            until = floor(waiting[2] + backoff_seconds(waiting[1]))
            return (until if until >= floor(end) else -1, waiting[3])

        for waiting in sorted(self.waiting.values(), key=key):
            self.attempt(waiting[0], end)

    def figures(self) -> tuple[float, float, int, int]:
        nodes = self.simulation.fleet.nodes.values()
        lost = sum(
            unusable_milli(self.measure, node.node_class.product, node.free_cpu_milli, node.free.gpus or ())
            for node in nodes
        )
        held = self.trace.capacity_milli - sum(sum(node.free.gpus or ()) for node in nodes)
        tasks = [waiting[0].task for waiting in self.waiting.values()]
        return held, lost, sum(task.gpus > 0 for task in tasks), sum(task.milli for task in tasks)


def twin_play(policy: str, load: float, pods: int, seed: int, trace: Trace) -> dict[str, Any]:
    """Play a run step by step; return the figures of it that can be computed from what happened."""
    running, arriving = draw_pods(trace, OverTime(load, pods), seed)
    twin = Twin(trace, read_policy(policy), seed, Options(History.Online))
    begin, end = arriving[len(arriving) // WARM_UP].arrives, arriving[-1].arrives
    for number, pod in enumerate(running):
        twin.learn(running[number:])
        twin.attempt(pod, 0.0)
    history: list[tuple[float, tuple[float, float, int, int]]] = [(0.0, twin.figures())]
    for pod in arriving:
        while (
            twin.bound and (first := min((end, number) for number, (end, *_) in twin.bound.items()))[0] <= pod.arrives
        ):
            twin.leave(first[1])
            history.append((first[0], twin.figures()))
        twin.learn([pod])
        twin.attempt(pod, pod.arrives)
        history.append((pod.arrives, twin.figures()))

    def average(column: int, percent: bool) -> float:
        area = 0.0
        for (now, figures), (after, _) in pairwise([*history, (inf, (0.0, 0.0, 0, 0))]):
            area += figures[column] * max(0.0, min(after, end) - max(now, begin))
        return area / (end - begin) * (100 / trace.capacity_milli if percent else 1)

    measured = [pod for pod in arriving if pod.arrives >= begin and pod.task.gpus]
    waits = sorted(twin.started.get(pod.number, end) - pod.arrives for pod in measured)
    return {
        "held": average(0, True),
        "fragmented": average(1, True),
        "waiting": average(2, False),
        "mean": mean(waits),
        "p95": percentile(waits, 95),
        "still": twin.figures()[2],
        "gpus": average(3, False) / 1000,
        "pods": len(waits),
    }


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(["shortlist", "fgd", "bestfit", "spread"]), st.sampled_from([0.8, 1.1]), st.integers(1, 99))
def test_run_is_that_of_the_slow_twin(policy: str, load: float, seed: int) -> None:
    """F52: places, queue, waiting times and averages over time."""
    expected = twin_play(policy, load, 40, seed, small())

    result = play(policy, load, 40, seed)

    figures = {
        "held": mean(result.held_percent),
        "fragmented": mean(result.fragmented_percent),
        "waiting": mean(result.waiting_pods),
        "mean": result.wait_seconds["mean"],
        "p95": result.wait_seconds["p95"],
        "still": result.still_waiting,
        "gpus": mean(result.waiting_gpus),
        "pods": result.pods,
    }
    assert figures == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_run_repeats_itself(policy: BenchmarkPolicy) -> None:
    """F52: a run is decided by its seed."""
    assert play(policy.name, 1.0) == play(policy.name, 1.0) != play(policy.name, 1.0, seed=2)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60))
def test_what_leaves_gives_back_the_very_gpus_that_it_held(events: list[tuple[int, bool]]) -> None:
    """F52: no GPU holds more than a GPU, and a cluster that is empty again is as it was."""
    fleet = SimulatedCluster((Machine("a", 8000, 8192, 4, T4),), knowledge())
    held: list[tuple[Binding, Task]] = []
    for kind, comes in [*events, *[(0, False)] * len(events)]:
        task = (WHOLE, TWO, SHARE, replace(SHARE, gpu_milli=700))[kind]
        free = fleet.nodes["a"].free.gpus or ()
        if comes and sum(milli >= task.gpu_milli for milli in free) >= task.gpus:
            held.append((fleet.bind(0, task), task))
        elif not comes and held:
            fleet.release(*held.pop(kind % len(held)))
        by_gpu = Counter(dict.fromkeys(range(4), 0))
        for binding, of in held:
            by_gpu.update(dict.fromkeys(binding.gpus, of.gpu_milli))
        assert fleet.nodes["a"].free.gpus == tuple(sorted((1000 - used for used in by_gpu.values()), reverse=True))
        assert max(by_gpu.values()) <= 1000

    assert (fleet.cpu, fleet.memory, held) == ([8000], [8192], [])


def by_hand(*seconds: int, tasks: tuple[Task, ...]) -> Trace:
    return Trace("hand", (Machine("a", 8000, 8192, 2, T4),), tasks, "hand", seconds)


def test_pod_waits_until_one_before_it_has_left() -> None:
    """F52: on one node of two GPUs, pods for both of them run one after another, each for 100 s."""
    _, arriving = draw_pods(by_hand(100, tasks=(TWO,)), OverTime(1.0, 30), 1)
    running, _ = draw_pods(by_hand(100, tasks=(TWO,)), OverTime(1.0, 30), 1)
    free = running[0].seconds
    waits = []
    for pod in arriving:
        waits.append(max(0.0, free - pod.arrives))
        free = max(free, pod.arrives) + 100

    result = play("spread", 1.0, 30, trace=by_hand(100, tasks=(TWO,)))

    ends = arriving[-1].arrives
    measured = [min(wait, ends - pod.arrives) for wait, pod in zip(waits, arriving, strict=True)][30 // WARM_UP :]
    assert result.wait_seconds["mean"] == pytest.approx(mean(measured), abs=0.3 * mean(measured))
    assert result.still_waiting == sum(pod.arrives + wait > ends for wait, pod in zip(waits, arriving, strict=True))


def test_gpus_are_asked_for_as_the_load_says() -> None:
    """F52: GPU time that arrives per second, and the GPUs of the pods that run at the start."""
    trace = by_hand(100, 50, 10, 400, tasks=(WHOLE, TWO, CPU, SHARE))

    running, arriving = draw_pods(trace, OverTime(0.8, 20_000), 1)

    assert sum(pod.task.milli for pod in running) == pytest.approx(0.8 * trace.capacity_milli, abs=2000)
    asked = sum(pod.task.milli * pod.seconds for pod in arriving) / arriving[-1].arrives
    assert asked == pytest.approx(0.8 * trace.capacity_milli, rel=0.03)


def test_pods_that_run_at_the_start_are_mostly_long_ones() -> None:
    """F52: a pod is found running as often as it runs long, on average half-way."""
    trace = by_hand(10, 990, tasks=(WHOLE, SHARE))

    running, _ = draw_pods(replace(trace, machines=trace.machines * 500), OverTime(1.0, 1), 1)

    shares = [pod for pod in running if pod.task is SHARE]
    assert len(shares) / len(running) == pytest.approx(0.99, abs=0.01)
    assert mean(pod.seconds for pod in shares) == pytest.approx(495, rel=0.05)


@pytest.mark.parametrize("seconds", [(0, 0), ()], ids=["unknown", "not in the file"])
def test_trace_without_durations_is_refused(seconds: tuple[int, ...]) -> None:
    """F52."""
    trace = by_hand(*(seconds or (0, 0)), tasks=(WHOLE, CPU))

    with pytest.raises(BadInput, match="does not say how long"):
        draw_pods(trace, OverTime(1.0, 1), 1)


def test_averages_are_over_equal_parts_of_the_time() -> None:
    """F52: 4 from second 0, 8 from second 15 on, and half of a part in which it is 6."""
    averages = TimeAverages(10.0, 20.0, 1)
    for moment, change in ((0.0, 4.0), (15.0, 4.0), (19.5, -2.0)):
        averages.advance(moment)
        averages.add(change)
    averages.advance(30.0)

    assert averages.averages(0) == pytest.approx([4.0] * 5 + [8.0] * 4 + [7.0])


@pytest.mark.parametrize(("percent", "value"), [(50, 2.0), (51, 3.0), (95, 4.0), (99, 4.0)])
def test_percentiles_are_values_that_occurred(percent: int, value: float) -> None:
    """F52: nearest rank."""
    assert percentile([1.0, 2.0, 3.0, 4.0], percent) == value
    assert percentile([], percent) == 0.0


def test_runs_over_time_are_kept_and_resumed(tmp_path: Path) -> None:
    """F52: beside runs in which no pod leaves."""
    options = Options(over_time=OverTime(0.9, 30))
    jobs = [SimulationJob(None, 12, "default", "spread", seed, options) for seed in (1, 2)]
    jobs.append(replace(jobs[0], options=Options()))
    report: Callable[[float], None] = lambda _: None  # noqa: E731

    first = list(run_batch(jobs, 1, tmp_path / "runs", report))
    again = list(run_batch(jobs, 1, tmp_path / "runs", report))

    assert first == again
    assert len((tmp_path / "runs").read_text("utf-8").splitlines()) == 3


def test_table_has_mean_and_deviation_over_the_seeds() -> None:
    """F52."""
    runs = [play("spread", load, 30, seed) for load in (0.9, 1.1) for seed in (1, 2)]

    rows = over_time_rows(runs)

    assert [(row.load_percent, row.policy, row.seeds) for row in rows] == [(90.0, "spread", 2), (110.0, "spread", 2)]
    assert rows[0].still_waiting[0] == mean(run.still_waiting for run in runs[:2])
    assert rows[0].wait_seconds["p50"][1] is not None
