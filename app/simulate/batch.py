# SPDX-License-Identifier: Apache-2.0
"""Many runs: spread over processes, each kept in a file as it ends, so that a broken-off batch goes on where it was."""

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
from app.simulate.policies import read_policy
from app.simulate.run import Options, SimulationRun, run
from app.simulate.synthetic import synthetic
from app.simulate.trace import Trace, read_machines, read_tasks
from app.values.errors import BadInput

NODES_FILE, PODS_FILE = "openb_nodes_gpu.csv", "openb_pods_{}.csv"
DECIDING = ("placement", "simulate", "policy", "knowledge")
"""Packages whose code and tables decide how a run ends: with others, a kept run is not of this program."""


@dataclass(frozen=True, slots=True)
class SimulationJob:
    """One run to be made. `trace`: its directory; None is a synthetic one, of so many nodes."""

    trace: Path | None
    nodes: int
    workload: str
    policy: str
    seed: int
    options: Options


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A line of the file: a run, and a digest of all that it rests on."""

    of: str
    run: SimulationRun


def make(
    jobs: Sequence[SimulationJob], processes: int, keep: Path | None, tell: Callable[[float], None]
) -> Iterator[SimulationRun]:
    """Give the runs of jobs as they end, those first that are kept already. `tell`: hears of a part of a run.

    Raises BadInput.
    """
    kept = {each.of: each.run for each in _read(keep)} if keep is not None else {}
    left = []
    for job in jobs:
        if (found := kept.get(digest(job))) is not None:
            yield found
        else:
            left.append(job)
    for job, made in _made(left, processes, tell):
        if keep is not None:
            _append(keep, StoredRun(digest(job), made))
        yield made


def _made(
    jobs: Sequence[SimulationJob], processes: int, tell: Callable[[float], None]
) -> Iterator[tuple[SimulationJob, SimulationRun]]:
    if processes == 1 or len(jobs) < 2:
        yield from ((job, play(job, tell)) for job in jobs)
        return
    spawning = multiprocessing.get_context("spawn")  # a fork would copy the thread that draws the progress bar
    with ProcessPoolExecutor(min(processes, len(jobs)), mp_context=spawning) as pool:
        asked = {pool.submit(play, job): job for job in jobs}
        for done in as_completed(asked):
            yield asked[done], done.result()


def play(job: SimulationJob, tell: Callable[[float], None] = lambda _: None) -> SimulationRun:
    """Make one run.

    Raises BadInput.
    """
    return run(load(job), read_policy(job.policy), job.seed, job.options, _rules(), tell)


@lru_cache(8)
def _load(trace: Path | None, nodes: int, workload: str) -> Trace:
    if trace is None:
        return synthetic(workload, nodes)
    pods = trace / PODS_FILE.format(workload)
    machines = read_machines(_text(trace / NODES_FILE), str(trace / NODES_FILE))
    return Trace(workload, machines, read_tasks(_text(pods), str(pods)), str(trace))


def load(job: SimulationJob) -> Trace:
    """Read the trace of a job, or make one.

    Raises BadInput.
    """
    return _load(job.trace, job.nodes, job.workload)


@lru_cache(1)
def _rules() -> tuple[PolicySet, Knowledge]:
    knowledge = read_knowledge()
    return read_policies(shipped_policies(), knowledge), knowledge


def digest(job: SimulationJob) -> str:
    """Sum up what a run rests on: the trace, the options, and the program."""
    said = repr((load(job), job.policy, job.seed, job.options, _program()))
    return sha256(said.encode()).hexdigest()[:16]


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


def _read(keep: Path) -> list[StoredRun]:
    """Read the runs of a file; a last line that was broken off is made again."""
    if not keep.exists():
        return []
    found = []
    for number, line in enumerate(_text(keep).splitlines(keepends=True), 1):
        try:
            found.append(msgspec.json.decode(line, type=StoredRun))
        except msgspec.DecodeError as error:
            if line.endswith("\n"):
                raise BadInput(f"{keep}:{number}: no run: {error}") from error
    return found


def _append(keep: Path, line: StoredRun) -> None:
    try:
        keep.parent.mkdir(parents=True, exist_ok=True)
        lines, newline, _broken_off = (_text(keep) if keep.exists() else "").rpartition("\n")
        keep.write_text(f"{lines}{newline}{msgspec.json.encode(line).decode()}\n", "utf-8")
    except OSError as error:
        raise BadInput(f"{keep}: {error}: wants a file that can be written") from error
