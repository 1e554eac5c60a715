# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.simulate`: plays a trace against our engine, and shows how many GPUs it allocates.

The table of runs: mean and standard deviation over the seeds, by workload and policy.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from app.cli.options import Output
from app.cli.output import show
from app.values.errors import BadInput
from app.world.demand_learning import LEAST_PODS
from app.world.pod_index import MOST_PODS
from tests.bench.simulate.batch import AnyRun, SimulationJob, job_key, load, run_batch, run_key
from tests.bench.simulate.over_time_figures import PODS, QUEUE_MODEL, OverTimeRun, read_loads, show_over_time
from tests.bench.simulate.policies import read_policy
from tests.bench.simulate.run import MARKS, History, Options, SimulationRun
from tests.bench.simulate.trace import NODES


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


GPU_VIEW = "per GPU, as DRA shows them; a share goes to the fullest GPU that has room"
"""The field `gpus` of a result: what the engine knows of the GPUs of a node, and which of them a share gets."""
SCHEDULER_MODEL = (
    "kube-scheduler's node sample and in-tree scores, weight 10, random choice among equals; prioritize asked for "
)
"""The field `wire` of a result, up to the value of PRIORITIZED_PODS: how kube-scheduler calls us, and what it adds to
our scores (simulate/scheduler.py)."""
PRIORITIZED_PODS = {"all": "every pod", "gpu": "pods that ask for a GPU, as managedResources has it"}
"""The values of --asked, and in words the pods for which each has kube-scheduler call prioritize."""
SEEDS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
"""A seed, or a range of seeds with both ends."""
MOST_SEEDS = 1_000
"""Seeds of one range. A guess: a run takes minutes, and the published figures are of ten seeds."""

Directory = Annotated[
    Path | None,
    typer.Option("--trace", envvar="GPU_USHER_TRACE", help="A directory of openb CSV files; else a synthetic one."),
]


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The results of runs.

    `trace` is the source of the trace. `history` is what the engine knew of the workload: the whole trace, the past
    arrivals (online), or those of a workload that shifts. `wire` says in words how prioritize was called, and `gpus`
    what was known of the GPUs. Runs with --load are in `over_time`, the others in `runs`; `queue` says in words how
    pods wait, and is empty where none waits.
    """

    trace: str
    history: str
    wire: str
    gpus: str
    runs: tuple[SimulationRun, ...]
    queue: str = ""
    over_time: tuple[OverTimeRun, ...] = ()


def simulate(
    trace: Directory = None,
    workload: Annotated[str, typer.Option(help="Names of workloads: openb_pods_NAME.csv.")] = "default",
    policies: Annotated[
        str,
        typer.Option(help="shipped, packing, spread, fgd, bestfit, kubernetes, random, or Packing=5+Fragmentation=1."),
    ] = "shipped,bestfit,fgd,spread,random",
    seeds: Annotated[str, typer.Option(help="Seeds, such as 42-51 or 42,45.")] = "42",
    history: Annotated[History, typer.Option(help="What is known of the workload.")] = History.Trace,
    asked: Annotated[str, typer.Option(help="all pods, or gpu: those that managedResources sends us.")] = "all",
    sampled: Annotated[int, typer.Option(min=0, max=100, help="percentageOfNodesToScore; 0 is the default.")] = 0,
    nodes: Annotated[int, typer.Option(help="Size of a synthetic cluster.")] = NODES,
    processes: Annotated[int, typer.Option(min=0, help="Runs at a time; 0 is one for each core.")] = 1,
    keep: Annotated[Path | None, typer.Option(help="Keep finished runs in this file and do not repeat them.")] = None,
    load_range: Annotated[
        str,
        typer.Option("--load", help="Play over time: GPU time asked for, as a share of the GPUs, such as 0.8-1.1."),
    ] = "",
    pods: Annotated[int, typer.Option(min=LEAST_PODS, max=MOST_PODS, help="Pods that arrive, with --load.")] = PODS,
    output: Output = "text",
) -> None:
    """Play a trace against our engine, and show how many of its GPUs it allocates.

    Pods arrive in a random order (Python's random.Random(seed)) until 130 % of the GPUs are requested; none leaves, and
    one without a place is dropped. Filters, scorers and the scores 0..10 are those of the service; a model of
    kube-scheduler picks the nodes that it asks about, adds its own scores, and chooses.

    With --load pods come and go: they run for as long as in the trace, wait in a queue as kube-scheduler's, and the
    answer is how long, how many GPUs are held, and how fragmented the others are.
    """
    if asked not in PRIORITIZED_PODS:
        raise BadInput(f"--asked {asked[:20]!r}: wants all or gpu")
    if load_range and history is History.Shift:
        raise BadInput("--load: wants no --history shift")
    options = Options(history, all_pods=asked == "all", percent=sampled)
    jobs = [
        SimulationJob(trace, nodes, name, policy.name, seed, replace(options, over_time=over_time))
        for name in _words(workload, "--workload")
        for over_time in read_loads(load_range, pods)
        for policy in map(read_policy, _words(policies, "--policies"))
        for seed in read_seeds(seeds)
    ]
    origin = {load(job).origin for job in jobs}.pop()
    result = _result(_run_jobs(jobs, processes, keep), origin, options)
    show(result, output, lambda console: _show(console, result))


def _result(runs: Sequence[AnyRun], origin: str, options: Options) -> SimulationResult:
    over_time = tuple(run for run in runs if isinstance(run, OverTimeRun))
    return SimulationResult(
        trace=origin,
        history=options.history.value,
        wire=SCHEDULER_MODEL + PRIORITIZED_PODS["all" if options.all_pods else "gpu"],
        gpus=GPU_VIEW,
        runs=tuple(run for run in runs if isinstance(run, SimulationRun)),
        queue=QUEUE_MODEL if over_time else "",
        over_time=over_time,
    )


def read_seeds(text: str) -> list[int]:
    """Read `42-51` or `42,45`.

    Raises BadInput.
    """
    seeds: list[int] = []
    for word in text.split(","):
        match = SEEDS.fullmatch(word.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 0 <= last - first < MOST_SEEDS:
            raise BadInput(f"--seeds: got {word[:20]!r}, wants numbers as 42-51 or 42,45")
        seeds.extend(range(first, last + 1))
    return list(dict.fromkeys(seeds))


def _words(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(re.fullmatch(r"[A-Za-z0-9_.=+-]{1,200}", name) for name in names):
        raise BadInput(f"{option}: got {text[:40]!r}, wants names, with commas between them")
    return list(dict.fromkeys(names))


def _run_jobs(jobs: list[SimulationJob], processes: int, keep: Path | None) -> list[AnyRun]:
    """Make the runs, with a progress bar on a terminal's stderr; return them in the order of the jobs."""
    runs: list[AnyRun] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("simulating", total=len(jobs))
        for run in run_batch(
            jobs, processes or os.cpu_count() or 1, keep, lambda part: progress.update(bar, completed=len(runs) + part)
        ):
            runs.append(run)
            progress.update(bar, completed=len(runs))
    job_number = {job_key(job): number for number, job in enumerate(jobs)}
    return sorted(runs, key=lambda run: job_number[run_key(run)])


def _show(console: Console, result: SimulationResult) -> None:
    if result.over_time:
        show_over_time(console, result.over_time, result.trace)
    else:
        _show_marks(console, result)
    console.print(f"[dim]histogram of the workload: {result.history}; GPUs: {result.gpus}[/]")
    console.print(f"[dim]{result.wire}[/]")
    if result.queue:
        console.print(f"[dim]queue: {result.queue}[/]")


def _show_marks(console: Console, result: SimulationResult) -> None:
    title = f"GPUs given out when so many had been asked for, in percent ({result.trace})"
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in ("workload", "policy"):
        table.add_column(name, no_wrap=True)
    for name in ("seeds", *(f"{mark} %" for mark in MARKS), "fragmented", "failed"):
        table.add_column(name, justify="right")
    for row in rows(result.runs):
        cells = [_cell(row.allocated.get(str(mark))) for mark in MARKS]
        fragmented = "" if row.fragmented is None else f"{row.fragmented:.2f}"
        table.add_row(row.workload, row.policy, str(row.seeds), *cells, fragmented, f"{row.failed:.0f}")
    console.print(table)
    console.print("[dim]fragmented: percent of the GPUs, free and of no use to pods to come, at 100 %; failed: pods[/]")


def _cell(figure: tuple[float, float | None] | None) -> str:
    if figure is None:
        return ""
    value, deviation = figure
    return f"{value:.2f}" if deviation is None else f"{value:.2f} ± {deviation:.2f}"
