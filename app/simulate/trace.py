# SPDX-License-Identifier: Apache-2.0
"""Traces: the machines of a cluster and the tasks that arrive, read from CSV as the openb traces have them."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO

from app.values.errors import BadInput

LABELS = {
    "A10": "NVIDIA-A10",
    "P100": "Tesla-P100-PCIE-16GB",
    "T4": "Tesla-T4",
    "V100M16": "Tesla-V100-SXM2-16GB",
    "V100M32": "Tesla-V100-SXM2-32GB",
}
"""What GPU feature discovery writes for the trace's models; one that is not here (G1 to G3 are undisclosed) stands for
itself, a product that our tables do not know."""
MOST_GPUS = 64
"""Of a machine: beyond it a column was mixed up."""
WHOLE_MILLI = 1000


@dataclass(frozen=True, slots=True)
class Machine:
    """A node of the trace. `product`: its gpu.product label."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    product: str


@dataclass(frozen=True, slots=True)
class Task:
    """A pod of the trace. `gpu_milli`: of each GPU; below 1000 only of one. `products`: any of them; none is all."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    products: tuple[str, ...] = ()

    @property
    def milli(self) -> int:
        """GPU milli that it asks in all."""
        return self.gpus * self.gpu_milli


@dataclass(frozen=True, slots=True)
class Trace:
    """A cluster and its workload, both in a fixed order. `origin`: where it is from, for the reader of the table."""

    workload: str
    machines: tuple[Machine, ...]
    tasks: tuple[Task, ...]
    origin: str

    @property
    def capacity_milli(self) -> int:
        """GPU milli of all machines."""
        return WHOLE_MILLI * sum(each.gpus for each in self.machines)


def read_machines(text: str, where: str) -> tuple[Machine, ...]:
    """Read the nodes: node, cpu_milli, memory_mib, gpu, model.

    Raises BadInput, with file and line.
    """
    found = []
    for line, row in _rows(text, where, ("node", "cpu_milli", "memory_mib", "gpu", "model")):
        name = f"node-{row['node']}"
        cpu, memory = (_number(row, key, line, 1, 10**12) for key in ("cpu_milli", "memory_mib"))
        gpus = _number(row, "gpu", line, 0, MOST_GPUS)
        found.append(Machine(name, cpu, memory, gpus, LABELS.get(row["model"], row["model"])))
    if len({each.name for each in found}) < len(found):
        raise BadInput(f"{where}: two nodes of one name")
    if not any(each.gpus for each in found):
        raise BadInput(f"{where}: no node has a GPU")
    return tuple(found)


def read_tasks(text: str, where: str) -> tuple[Task, ...]:
    """Read the pods, sorted by name: pod, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec; more columns are let be.

    Raises BadInput, with file and line.
    """
    found: list[tuple[str, Task]] = []
    for line, row in _rows(text, where, ("pod", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec")):
        cpu, memory = (_number(row, key, line, 0, 10**12) for key in ("cpu_milli", "memory_mib"))
        gpus = _number(row, "num_gpu", line, 0, MOST_GPUS)
        milli = _number(row, "gpu_milli", line, 1 if gpus else 0, WHOLE_MILLI)
        if gpus > 1 and milli != WHOLE_MILLI:
            raise BadInput(f"{line}: gpu_milli: got {milli} of each of {gpus} GPUs, wants {WHOLE_MILLI}")
        models = dict.fromkeys(model for model in row["gpu_spec"].split("|") if model)
        products = tuple(LABELS.get(model, model) for model in models)
        found.append((row["pod"], Task(cpu, memory, gpus, milli if gpus else 0, products)))
    if not any(task.gpus for _, task in found):
        raise BadInput(f"{where}: no pod asks for a GPU")
    return tuple(task for _, task in sorted(found, key=lambda each: each[0]))


def read_arrivals(text: str, where: str, tasks: int) -> tuple[int, ...]:
    """Read an order of arrival: one index of a pod a line, from 0, in the order of the pods' names.

    Raises BadInput, with file and line.
    """
    found = []
    for line, word in enumerate(text.split(), 1):
        if not word.isascii() or not word.isdecimal() or len(word) > 9 or int(word) >= tasks:
            raise BadInput(f"{where}:{line}: got {word[:20]!r}, wants the row of a pod, 0 to {tasks - 1}")
        found.append(int(word))
    if not found:
        raise BadInput(f"{where}: nobody arrives")
    return tuple(found)


def _rows(text: str, where: str, columns: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, str]]]:
    reader = csv.DictReader(StringIO(text, newline=""), strict=True)
    try:
        missing = [each for each in columns if each not in (reader.fieldnames or ())]
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
