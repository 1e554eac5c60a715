# SPDX-License-Identifier: Apache-2.0
"""A synthetic workload like the openb traces, for use without them.

The shares of kinds, sizes and constraints are round numbers near those of the traces (Weng et al., USENIX ATC '23,
tables of the artifact's README); products are some that our tables know. Its figures serve only to compare policies.
"""

from dataclasses import dataclass
from math import log
from random import Random
from typing import TypeVar

from app.nodes.model import WHOLE_MILLI
from app.simulate.trace import Machine, Task, Trace
from app.values.errors import BadInput

NODES = 1_200
"""About the number of nodes of the published cluster."""
LEAST_NODES = 10
LOAD_PERCENT = 98
"""The GPUs that the tasks request in percent of all, before more are drawn."""

MEDIAN_SECONDS, SPREAD, LONGEST_SECONDS = 500, 2.0, 30 * 86_400
"""Durations are log-normal: half of the pods of the published trace run for less than 485 s, one in ten for more than
6,500 s, one in a hundred for more than a day."""

T = TypeVar("T")
_MACHINES = (
    ("NVIDIA-A100-SXM4-80GB", 8, 96, 384, 45),
    ("Tesla-T4", 2, 104, 512, 32),
    ("Tesla-P100-PCIE-16GB", 2, 16, 120, 9),
    ("NVIDIA-H100-80GB-HBM3", 8, 128, 768, 4),
    ("Tesla-V100-SXM2-16GB", 4, 32, 128, 4),
    ("Tesla-P100-PCIE-16GB", 2, 64, 256, 2),
    ("Tesla-V100-SXM2-32GB", 8, 96, 768, 2),
    ("Tesla-V100-SXM2-16GB", 1, 8, 32, 2),
)
"""(product, GPUs, cores, GiB, percent of the nodes)."""
_SHARES = ((810, 35), (470, 25), (320, 11), (650, 9), (230, 7), (590, 7), (160, 6))
"""(milli, percent of the tasks on a share)."""
_CORES = {0: ((8, 3), (12, 4), (16, 2), (32, 3)), 1: ((3, 3), (4, 2), (8, 3), (12, 6), (18, 1)), 2: ((16, 1), (32, 1))}
"""(cores, weight) by number of GPUs; from four GPUs on a task has eight to eleven cores per GPU."""
_GIB_PER_CORE = 3.5


@dataclass(frozen=True, slots=True)
class TaskMix:
    """Tasks per thousand: without GPU, on a share, on several GPUs, and restricted to products."""

    without: int = 133
    share: int = 378
    several: int = 9
    bound: int = 0


SHAPES = {
    "default": TaskMix(),
    "gpuspec33": TaskMix(bound=333),
    "gpushare100": TaskMix(share=867, several=0),
    "multigpu50": TaskMix(share=200, several=330),
    "cpu250": TaskMix(without=280, share=320, several=8),
}
"""Mixes like those of the traces of these names."""


def synthetic(workload: str, nodes: int = NODES) -> Trace:
    """Return a cluster and a workload, the same for the same arguments.

    Raises BadInput for an unknown name, or too few nodes.
    """
    if workload not in SHAPES:
        raise BadInput(f"workload {workload[:40]!r}: without --trace, wants one of {', '.join(SHAPES)}")
    if not LEAST_NODES <= nodes <= 10 * NODES:
        raise BadInput(f"--nodes {nodes}: wants {LEAST_NODES} to {10 * NODES}")
    rng = Random(f"synthetic {workload}")
    machines = _machines(nodes)
    target = WHOLE_MILLI * sum(machine.gpus for machine in machines) * LOAD_PERCENT // 100
    tasks: list[Task] = []
    requested = 0
    while requested < target:
        tasks.append(_task(SHAPES[workload], rng))
        requested += tasks[-1].milli
    return Trace(workload, machines, tuple(tasks), f"synthetic, {nodes} nodes", _durations(workload, len(tasks)))


def _durations(workload: str, tasks: int) -> tuple[int, ...]:
    rng = Random(f"synthetic {workload}, durations")
    return tuple(min(LONGEST_SECONDS, 1 + int(rng.lognormvariate(log(MEDIAN_SECONDS), SPREAD))) for _ in range(tasks))


def _machines(nodes: int) -> tuple[Machine, ...]:
    machines: list[Machine] = []
    part = 0
    for product, gpus, cores, gib, percent in _MACHINES:
        part += percent
        while len(machines) < nodes * part // 100:
            machines.append(Machine(f"node-{len(machines):04}", cores * 1000, gib * 1024, gpus, product))
    return tuple(machines)


def _task(shape: TaskMix, rng: Random) -> Task:
    kind = rng.randrange(1000)
    gpus, milli = 1, WHOLE_MILLI
    if kind < shape.without:
        gpus, milli = 0, 0
    elif kind < shape.without + shape.share:
        milli = _pick(_SHARES, rng)
    elif kind < shape.without + shape.share + shape.several:
        gpus = _pick(((2, 2), (4, 2), (8, 6)), rng)
    cores = _pick(_CORES[gpus], rng) if gpus in _CORES else rng.randint(8, 11) * gpus
    bound = gpus > 0 and rng.randrange(1000) < shape.bound
    products = _products(gpus, rng) if bound else ()
    return Task(cores * 1000, int(cores * _GIB_PER_CORE * 1024), gpus, milli, products)


def _products(gpus: int, rng: Random) -> tuple[str, ...]:
    able = [(product, percent) for product, size, _, _, percent in _MACHINES if size >= gpus]
    return tuple(sorted({_pick(tuple(able), rng) for _ in range(rng.choice((1, 1, 1, 2)))}))


def _pick(choices: tuple[tuple[T, int], ...], rng: Random) -> T:
    return rng.choices([choice for choice, _ in choices], [weight for _, weight in choices])[0]
