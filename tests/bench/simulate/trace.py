# SPDX-License-Identifier: Apache-2.0
"""Traces: the machines of a cluster and the tasks that arrive, read from CSV files like those of the openb traces.

The order in which the pods of a workload arrive, as in the published experiment.

A synthetic workload like the openb traces, for use without them.

The shares of kinds, sizes and constraints are round numbers near those of the traces (Weng et al., USENIX ATC '23,
tables of the artifact's README); products are some that our tables know. Its figures serve only to compare policies.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from math import log
from random import Random
from typing import TypeVar

from app.knowledge.products import WHOLE_MILLI
from app.values.errors import BadInput

LABELS = {
    "A10": "NVIDIA-A10",
    "P100": "Tesla-P100-PCIE-16GB",
    "T4": "Tesla-T4",
    "V100M16": "Tesla-V100-SXM2-16GB",
    "V100M32": "Tesla-V100-SXM2-32GB",
}
"""The labels of GPU Feature Discovery for the trace's models. Other models (G1 to G3 are undisclosed) are used as they
are, as products that our tables do not know."""
MOST_GPUS = 64
"""GPUs of a machine; a larger number means that columns were mixed up."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A node of the trace. `gpus` is the number of its GPUs, and `product` its gpu.product label."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    product: str


@dataclass(frozen=True, slots=True)
class Task:
    """A pod of the trace.

    `gpus` is the number of GPUs that it requests. `gpu_milli` is the share of each of them in thousandths: 1000, or
    less for a pod that requests a share of one GPU, or 0 without GPUs. Empty `products` allow any product.
    """

    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    products: tuple[str, ...] = ()

    @property
    def milli(self) -> int:
        """The GPU milli that it requests in all."""
        return self.gpus * self.gpu_milli


@dataclass(frozen=True, slots=True)
class Trace:
    """A cluster and its workload, both in a fixed order.

    `workload` is the name of the pods file, such as `default`. `origin` names the source of the trace in the table.
    `seconds` is for how long each task runs, 0 where the trace does not say; empty where it says so of none.
    """

    workload: str
    machines: tuple[Machine, ...]
    tasks: tuple[Task, ...]
    origin: str
    seconds: tuple[int, ...] = ()

    @property
    def capacity_milli(self) -> int:
        """The GPU milli of all machines."""
        return WHOLE_MILLI * sum(machine.gpus for machine in self.machines)


def read_machines(text: str, where: str) -> tuple[Machine, ...]:
    """Read the nodes, with columns node, cpu_milli, memory_mib, gpu and model.

    Raises BadInput with file and line.
    """
    machines = []
    for line, row in _rows(text, where, ("node", "cpu_milli", "memory_mib", "gpu", "model")):
        name = f"node-{row['node']}"
        cpu, memory = (_number(row, key, line, 1, 10**12) for key in ("cpu_milli", "memory_mib"))
        gpus = _number(row, "gpu", line, 0, MOST_GPUS)
        machines.append(Machine(name, cpu, memory, gpus, LABELS.get(row["model"], row["model"])))
    if len({machine.name for machine in machines}) < len(machines):
        raise BadInput(f"{where}: two nodes of one name")
    if not any(machine.gpus for machine in machines):
        raise BadInput(f"{where}: no node has a GPU")
    return tuple(machines)


def read_tasks(text: str, where: str) -> tuple[Task, ...]:
    """Read the pods, sorted by name, with columns pod, cpu_milli, memory_mib, num_gpu, gpu_milli and gpu_spec.

    Raises BadInput with file and line.
    """
    named_tasks: list[tuple[str, Task]] = []
    for line, row in _rows(text, where, ("pod", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec")):
        cpu, memory = (_number(row, key, line, 0, 10**12) for key in ("cpu_milli", "memory_mib"))
        gpus = _number(row, "num_gpu", line, 0, MOST_GPUS)
        milli = _number(row, "gpu_milli", line, 1 if gpus else 0, WHOLE_MILLI)
        if gpus > 1 and milli != WHOLE_MILLI:
            raise BadInput(f"{line}: gpu_milli: got {milli} of each of {gpus} GPUs, wants {WHOLE_MILLI}")
        models = dict.fromkeys(model for model in row["gpu_spec"].split("|") if model)
        products = tuple(LABELS.get(model, model) for model in models)
        named_tasks.append((row["pod"], Task(cpu, memory, gpus, milli if gpus else 0, products)))
    if not any(task.gpus for _, task in named_tasks):
        raise BadInput(f"{where}: no pod asks for a GPU")
    return tuple(task for _, task in sorted(named_tasks, key=lambda named_task: named_task[0]))


def read_durations(text: str, where: str) -> tuple[int, ...]:
    """Read for how many seconds each pod ran, sorted by name, from columns scheduled_time and deletion_time.

    A pod that was never scheduled has 0, and so has each pod of a file without these columns.

    Raises BadInput with file and line.
    """
    header = text.partition("\n")[0].strip().split(",")
    if not {"scheduled_time", "deletion_time"} <= set(header):
        return (0,) * sum(1 for _ in _rows(text, where, ("pod",)))
    named_durations = []
    for line, row in _rows(text, where, ("pod", "scheduled_time", "deletion_time")):
        times = [_number(row, key, line, 0, 10**11) for key in ("scheduled_time", "deletion_time") if row[key]]
        named_durations.append((row["pod"], max(0, times[1] - times[0]) if len(times) == 2 else 0))
    return tuple(seconds for _, seconds in sorted(named_durations, key=lambda named_duration: named_duration[0]))


def _rows(text: str, where: str, columns: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, str]]]:
    reader = csv.DictReader(StringIO(text, newline=""), strict=True)
    try:
        missing = [column for column in columns if column not in (reader.fieldnames or ())]
        if missing:
            raise BadInput(f"{where}:1: no column {', '.join(missing)}")
        for row in reader:
            line = f"{where}:{reader.line_num}"
            if None in row or None in row.values():
                raise BadInput(f"{line}: wants {len(reader.fieldnames or ())} columns")
            yield line, row
    except csv.Error as error:
        raise BadInput(f"{where}:{reader.reader.line_num}: no CSV: {error}") from error


def _number(row: Mapping[str, str], column: str, line: str, least: int, most: int) -> int:
    text = row[column]
    if not text.isascii() or not text.isdecimal() or len(text) > 12 or not least <= int(text) <= most:
        raise BadInput(f"{line}: {column}: got {text[:20]!r}, wants a whole number from {least} to {most}")
    return int(text)


INFLATED_PERCENT = 130
"""Pods arrive until they have requested this share of all GPUs ("tune" of the published experiment)."""
EARLY_SHARE = 3, 4
"""In a workload that shifts half-way, three quarters of the pods that ask less than one GPU in all come in the first
half, and one quarter of the others."""


def draw_arrivals(tasks: Sequence[Task], capacity_milli: int, seed: int) -> tuple[int, ...]:
    """Return the indexes of tasks in their order of arrival: a shuffle, then more drawn with replacement.

    Drawing ends before the task whose milli *per GPU* would exceed the target, so that one with eight GPUs may
    overshoot by seven. A workload that requests more from the start loses random tasks. Random numbers are Python's
    `random.Random(seed)`; the published seeds are Go's and give other orders.
    """
    rng = Random(seed)
    order = list(range(len(tasks)))
    rng.shuffle(order)
    target = capacity_milli * INFLATED_PERCENT // 100
    requested = sum(task.milli for task in tasks)
    if requested > target:
        while requested > target:
            requested -= tasks[order.pop(rng.randrange(len(order)))].milli
        return tuple(order)
    while True:
        drawn = rng.randrange(len(tasks))
        if requested + tasks[drawn].gpu_milli > target:
            return tuple(order)
        requested += tasks[drawn].milli
        order.append(drawn)


def shift_arrivals(order: Sequence[int], tasks: Sequence[Task], seed: int) -> tuple[int, ...]:
    """Return the same arrivals as a workload that shifts half-way: shares of GPUs and CPU pods first, whole GPUs later.

    Each half is shuffled again.
    """
    rng = Random(f"{seed} shifted")
    mixed = list(order)
    rng.shuffle(mixed)
    small = [index for index in mixed if tasks[index].milli < 1000]
    large = [index for index in mixed if tasks[index].milli >= 1000]
    part, whole = EARLY_SHARE
    early_small, early_large = len(small) * part // whole, len(large) * (whole - part) // whole
    early = small[:early_small] + large[:early_large]
    late = small[early_small:] + large[early_large:]
    rng.shuffle(early)
    rng.shuffle(late)
    return (*early, *late)


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
