# SPDX-License-Identifier: Apache-2.0
"""Traces: the machines of a cluster and the tasks that arrive, read from CSV files like those of the openb traces."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO

from app.nodes.model import WHOLE_MILLI
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


def read_arrivals(text: str, where: str, tasks: int) -> tuple[int, ...]:
    """Read an order of arrival: on each line the index of a pod, from 0, among the pods sorted by name.

    Raises BadInput with file and line.
    """
    indexes = []
    for line, index in enumerate(text.split(), 1):
        if not index.isascii() or not index.isdecimal() or len(index) > 9 or int(index) >= tasks:
            raise BadInput(f"{where}:{line}: got {index[:20]!r}, wants the row of a pod, 0 to {tasks - 1}")
        indexes.append(int(index))
    if not indexes:
        raise BadInput(f"{where}: no pod arrives")
    return tuple(indexes)


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
