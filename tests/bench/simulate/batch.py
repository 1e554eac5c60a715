# SPDX-License-Identifier: Apache-2.0
"""Runs a batch of simulations in several processes; each run is stored in a file, so that a batch can be resumed."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import msgspec

from app.cluster.files import PACKAGE, read_knowledge, read_policies, shipped_policies
from app.knowledge.tables import Knowledge
from app.policy.compiled import PolicySet
from app.values.errors import BadInput
from tests.bench.simulate.over_time import run_over_time
from tests.bench.simulate.over_time_figures import DIGITS, OverTimeRun
from tests.bench.simulate.policies import read_policy
from tests.bench.simulate.run import Options, SimulationRun, run
from tests.bench.simulate.trace import Trace, read_durations, read_machines, read_tasks, synthetic

NODES_FILE, PODS_FILE = "openb_nodes_gpu.csv", "openb_pods_{}.csv"
DECIDING = ("cluster", "placement", "simulate", "policy", "knowledge")
"""Packages whose code and tables decide the result of a run; a stored run of other versions is not used."""

AnyRun = SimulationRun | OverTimeRun


@dataclass(frozen=True, slots=True)
class SimulationJob:
    """One run to make. `trace` is a directory; None stands for a synthetic trace of `nodes` nodes."""

    trace: Path | None
    nodes: int
    workload: str
    policy: str
    seed: int
    options: Options


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A line of the file: a run as JSON, and in `of` a digest of everything that decides its result."""

    of: str
    run: msgspec.Raw


def run_batch(
    jobs: Sequence[SimulationJob], processes: int, file: Path | None, report: Callable[[float], None]
) -> Iterator[AnyRun]:
    """Yield the runs of jobs as they end, stored ones first. `report` is called with parts of a run that are done.

    Raises BadInput.
    """
    stored = {line.of: line.run for line in _read(file)} if file is not None else {}
    missing = []
    for job in jobs:
        if (kept := stored.get(digest(job))) is not None:
            yield _decode(kept, job)
        else:
            missing.append(job)
    for job, made in _run_jobs(missing, processes, report):
        if file is not None:
            _append(file, StoredRun(digest(job), msgspec.Raw(msgspec.json.encode(made))))
        yield made


def _decode(kept: msgspec.Raw, job: SimulationJob) -> AnyRun:
    if job.options.over_time:
        return msgspec.json.decode(kept, type=OverTimeRun)
    return msgspec.json.decode(kept, type=SimulationRun)


def _run_jobs(
    jobs: Sequence[SimulationJob], processes: int, report: Callable[[float], None]
) -> Iterator[tuple[SimulationJob, AnyRun]]:
    if processes == 1 or len(jobs) < 2:
        yield from ((job, run_job(job, report)) for job in jobs)
        return
    spawning = multiprocessing.get_context("spawn")  # a fork would copy the thread of the progress bar
    with ProcessPoolExecutor(min(processes, len(jobs)), mp_context=spawning) as pool:
        job_by_future = {pool.submit(run_job, job): job for job in jobs}
        for future in as_completed(job_by_future):
            yield job_by_future[future], future.result()


def run_job(job: SimulationJob, report: Callable[[float], None] = lambda _: None) -> AnyRun:
    """Make one run.

    Raises BadInput.
    """
    arguments = (load(job), read_policy(job.policy), job.seed, job.options, _shipped_rules(), report)
    return run_over_time(*arguments) if job.options.over_time else run(*arguments)


def job_key(job: SimulationJob) -> tuple[str, float, str, int]:
    """Return what tells the jobs of a batch apart: workload, load in percent, policy and seed."""
    percent = round(100 * job.options.over_time.load, DIGITS) if job.options.over_time else 0.0
    return job.workload, percent, job.policy, job.seed


def run_key(run: AnyRun) -> tuple[str, float, str, int]:
    """Return the key of the job that a run is of."""
    return run.workload, run.load_percent if isinstance(run, OverTimeRun) else 0.0, run.policy, run.seed


@lru_cache(8)
def _load(trace: Path | None, nodes: int, workload: str) -> Trace:
    if trace is None:
        return synthetic(workload, nodes)
    pods = trace / PODS_FILE.format(workload)
    machines = read_machines(_text(trace / NODES_FILE), str(trace / NODES_FILE))
    text = _text(pods)
    return Trace(workload, machines, read_tasks(text, str(pods)), str(trace), read_durations(text, str(pods)))


def load(job: SimulationJob) -> Trace:
    """Read the trace of a job, or make one.

    Raises BadInput.
    """
    return _load(job.trace, job.nodes, job.workload)


@lru_cache(1)
def _shipped_rules() -> tuple[PolicySet, Knowledge]:
    knowledge = read_knowledge()
    return read_policies(shipped_policies(), knowledge), knowledge


def digest(job: SimulationJob) -> str:
    """Return a digest of what decides a run: the trace, the options, and the program."""
    text = repr((load(job), job.policy, job.seed, job.options, _program()))
    return sha256(text.encode()).hexdigest()[:16]


@lru_cache(1)
def _program() -> str:
    files = sorted(path for name in DECIDING for path in (PACKAGE / name).rglob("*") if path.suffix in (".py", ".yaml"))
    files += sorted(shipped_policies().glob("*.yaml"))
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {error}: wants a file of the openb traces") from error


def _read(file: Path) -> list[StoredRun]:
    """Read the runs of a file; an incomplete last line is ignored."""
    if not file.exists():
        return []
    runs = []
    for number, line in enumerate(_text(file).splitlines(keepends=True), 1):
        try:
            runs.append(msgspec.json.decode(line, type=StoredRun))
        except msgspec.DecodeError as error:
            if line.endswith("\n"):
                raise BadInput(f"{file}:{number}: no run: {error}") from error
    return runs


def _append(file: Path, line: StoredRun) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lines, newline, _broken_off = (_text(file) if file.exists() else "").rpartition("\n")
        file.write_text(f"{lines}{newline}{msgspec.json.encode(line).decode()}\n", "utf-8")
    except OSError as error:
        raise BadInput(f"{file}: {error}: wants a file that can be written") from error
