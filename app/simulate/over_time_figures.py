# SPDX-License-Identifier: Apache-2.0
"""The figures of a run over time: how long pods wait, how many GPUs are held, and how fragmented the rest is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

PERCENTILES = (50, 95, 99)
PARTS = 10
"""Parts of the time that is measured, so that one sees whether a queue grows."""
DIGITS = 3
"""Digits of seconds, hours and percentages in a result."""


@dataclass(frozen=True, slots=True)
class OverTimeRun:
    """The result of a run over time, from the end of the warm-up on.

    `load_percent` is the GPU time asked for, in percent of what the GPUs have. `pods` is the number of GPU pods that
    arrived, `waited_percent` the percentage of them that did not start at once. `wait_seconds` has the percentiles p50,
    p95 and p99 and the mean of how long they waited; one that still waits at the end counts with its wait until then.
    `mean_wait_by_kind` is the mean by what they ask for: a share, or a number of GPUs. `held_percent`,
    `fragmented_percent`, `waiting_pods` and `waiting_gpus` are averages over each tenth of the time: of the GPUs that
    pods hold and F in percent of all GPUs, of the GPU pods that wait, those of the start among them, and of the GPUs
    that these ask for. `gpu_hours` were given out, in `hours`. `still_waiting` are GPU pods at the end, and
    `still_waiting_gpus` the GPUs that they ask for. `moves` are pods that a repacking policy has restarted, which has
    cost `lost_gpu_hours` of the work that they had done.
    """

    workload: str
    policy: str
    seed: int
    load_percent: float
    pods: int
    waited_percent: float
    wait_seconds: dict[str, float]
    mean_wait_by_kind: dict[str, float]
    held_percent: tuple[float, ...]
    fragmented_percent: tuple[float, ...]
    waiting_pods: tuple[float, ...]
    waiting_gpus: tuple[float, ...]
    hours: float
    gpu_hours: float
    still_waiting: int
    still_waiting_gpus: float
    moves: int = 0
    lost_gpu_hours: float = 0.0


class TimeAverages:
    """Averages of several quantities over each of equal parts of a time.

    Quantities change with `add`; `advance` says that time has passed. Times are seconds from the start of the run.
    """

    def __init__(self, begin: float, end: float, quantities: int) -> None:
        self._edges = [begin + (end - begin) * part / PARTS for part in range(PARTS + 1)]
        self._values = [0.0] * quantities
        self._sums = [[0.0] * PARTS for _ in range(quantities)]
        self._now = 0.0
        self._part = 0

    def add(self, *changes: float) -> None:
        """Change the quantities from now on."""
        for index, change in enumerate(changes):
            self._values[index] += change

    def advance(self, now: float) -> None:
        """Let time pass up to `now`."""
        edges = self._edges
        while self._part < PARTS and now > edges[self._part]:
            begin, end = max(self._now, edges[self._part]), min(now, edges[self._part + 1])
            for value, sums in zip(self._values, self._sums, strict=True):
                sums[self._part] += value * (end - begin)
            if now < edges[self._part + 1]:
                break
            self._part += 1
        self._now = now

    def averages(self, quantity: int) -> list[float]:
        """Return the average of a quantity over each part."""
        length = (self._edges[-1] - self._edges[0]) / PARTS
        return [total / length for total in self._sums[quantity]]


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return a percentile of ascending values by the nearest rank; 0.0 of none."""
    return ordered[ceil(len(ordered) * percent / 100) - 1] if ordered else 0.0


def wait_figures(waits: Sequence[float]) -> dict[str, float]:
    """Return the percentiles and the mean of waiting times in seconds."""
    ordered = sorted(waits)
    figures = {f"p{percent}": round(percentile(ordered, percent), DIGITS) for percent in PERCENTILES}
    return {**figures, "mean": round(sum(ordered) / max(1, len(ordered)), DIGITS)}


def mean_by_kind(waits: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean waiting time in seconds by what pods ask for."""
    return {kind: round(sum(values) / len(values), DIGITS) for kind, values in sorted(waits.items())}
