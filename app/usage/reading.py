# SPDX-License-Identifier: Apache-2.0
"""What the labels and figures of a GPU's series say of it, and how a history is built from the answers of Prometheus.

What several exporters say of one GPU is one GPU: the highest figure counts, so that none that works seems idle.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.knowledge.dcgm import DCGM, Measure, UsageMetric, UsageMetrics
from app.usage.history import KNOWN_SHARE, History, Hold, Pace, Window
from app.usage.queries import Figure, RangeQuery, first_label

Points = Iterable[tuple[int, float]]
"""The points of a series: the index of the window, and the value, which may be any float."""
HoldKey = tuple[str, str, str, str]
"""Namespace, pod, GPU and MIG instance."""
FigureOf = Callable[[Figure, str], float | None]
"""Gives a figure of one window by the name of the metric's row; None where it is unknown."""
_NONE: Mapping[int, float] = {}


def hold_key(labels: Mapping[str, str], dcgm: DCGM, usage: UsageMetrics) -> HoldKey | None:
    """Read from labels who holds which GPU; None for a series without a pod, or of an exporter's own."""
    pod = first_label(labels, usage.pod_labels)
    if not pod or usage.exporter_pods.search(pod):
        return None
    gpu = first_label(labels, dcgm.gpu_labels)
    if not gpu.startswith("GPU-"):
        gpu = f"{first_label(labels, dcgm.node_labels)}/{gpu}"
    return first_label(labels, usage.namespace_labels), pod, gpu, first_label(labels, usage.instance_labels)


def is_shared(labels: Mapping[str, str], usage: UsageMetrics) -> bool:
    """Tell whether the labels of a series say that its values may be of several pods together."""
    return bool(first_label(labels, usage.shared_labels))


class UnitLabels(NamedTuple):
    """What the labels of a series say of the GPU or instance itself; empty is unknown."""

    node: str
    profile: str
    model: str


def unit_of_labels(labels: Mapping[str, str], dcgm: DCGM, usage: UsageMetrics) -> UnitLabels:
    """Read the unit that a series is about."""
    names = dcgm.node_labels, usage.profile_labels, usage.model_labels
    return UnitLabels(*(first_label(labels, some) for some in names))


def hold_of(key: HoldKey, unit: UnitLabels, shared: bool, windows: Iterable[Window]) -> Hold:
    """Make the hold of a key, with the windows in which it was held."""
    namespace, pod, gpu, instance = key
    held = tuple(window for window in windows if window.held)
    return Hold(namespace, pod, unit.node, gpu, instance, unit.profile, unit.model, shared, held)


def sorted_holds(holds: Iterable[Hold]) -> tuple[Hold, ...]:
    """Sort the holds that were seen in any window."""
    seen = (hold for hold in holds if hold.windows)
    return tuple(sorted(seen, key=lambda hold: (hold.namespace, hold.pod, hold.device)))


@dataclass(slots=True)
class _Cells:
    """The figures of a hold by figure, metric and window, as they come in. `labels` are those of its first series."""

    labels: Mapping[str, str]
    shared: bool
    figures: dict[tuple[Figure, str], dict[int, float]] = field(default_factory=dict)

    def figures_at(self, index: int) -> FigureOf:
        """Return what gives the figures of one window."""
        return lambda figure, name: self.figures.get((figure, name), _NONE).get(index)


class HistoryBuilder:
    """Takes in the series of each query, those of `Figure.Held` first: only what they name is a hold."""

    def __init__(self, dcgm: DCGM, usage: UsageMetrics) -> None:
        self._dcgm = dcgm
        self._usage = usage
        self._cells: dict[HoldKey, _Cells] = {}

    def add(self, query: RangeQuery, metric: Mapping[str, str], points: Points) -> None:
        """Take in one series of an answer; one without a pod, or of an exporter's own pod, is passed over."""
        key = hold_key(metric, self._dcgm, self._usage)
        if key is None:
            return
        shared = is_shared(metric, self._usage)
        if query.figure is Figure.Held:
            cells = self._cells.setdefault(key, _Cells(metric, shared))
            cells.shared |= shared
        elif key not in self._cells:
            return
        name = query.metric.name if query.metric else ""
        figures = self._cells[key].figures.setdefault((query.figure, name), {})
        for index, value in points:
            if value >= 0:  # not NaN, not negative
                figures[index] = max(value, figures.get(index, 0.0))

    def history(
        self, start: float, end: float, window_seconds: int, problems: tuple[str, ...], pace: Pace = iter
    ) -> History:
        """Give the history of what was taken in."""
        bare = History(start, end, window_seconds, (), problems)
        holds = sorted_holds(self._hold(key, cells, bare.minutes) for key, cells in pace(self._cells.items()))
        return History(start, end, window_seconds, holds, problems)

    def _hold(self, key: HoldKey, cells: _Cells, minutes: int) -> Hold:
        held, sliced = cells.figures[Figure.Held, ""], bool(key[-1])
        windows = (
            window_of(index, min(held[index], minutes), cells.figures_at(index), self._usage, sliced)
            for index in sorted(held)
        )
        return hold_of(key, unit_of_labels(cells.labels, self._dcgm, self._usage), cells.shared, windows)


def window_of(number: int, held: float, figure: FigureOf, usage: UsageMetrics, sliced: bool) -> Window:
    """Make a window of the figures in it; `sliced` tells that they are of a MIG instance."""
    row = activity_row(held, figure, usage, sliced)
    known = min(figure(Figure.Known, row.name) or 0.0, held) if row else 0.0
    total = figure(Figure.Sum, row.name) or 0.0 if row else 0.0
    return Window(
        number=number,
        held=held,
        known=known,
        active=min(total / (row.full or 1), known) if row else 0.0,
        peak=max(_peaks(figure, usage, Measure.Activity, sliced), default=None),
        extent=max(_peaks(figure, usage, Measure.Extent, sliced), default=None),
        memory_mib=max(_peaks(figure, usage, Measure.Memory, sliced), default=None),
    )


def activity_row(held: float, figure: FigureOf, usage: UsageMetrics, sliced: bool) -> UsageMetric | None:
    """Choose the metric that measures the activity in a window: the preferred one; None where none is known.

    Another metric counts where the preferred one is known for a smaller part of the time in which the GPU was held.
    """
    best, most = None, 0.0
    for row in _rows(usage, Measure.Activity, sliced):
        known = min(figure(Figure.Known, row.name) or 0.0, held)
        if known > most:
            best, most = row, known
        if most >= KNOWN_SHARE * held:
            break
    return best


def _peaks(figure: FigureOf, usage: UsageMetrics, measure: Measure, sliced: bool) -> Iterator[float]:
    """Yield the highest values of the metrics of a measure, as a share of one, or in MiB.

    A share above one is one: DCGM has shown such values of MIG instances (NVIDIA/DCGM issue 152).
    """
    for row in _rows(usage, measure, sliced):
        peak = figure(Figure.Peak, row.name)
        if peak is not None and row.full:
            yield min(peak / row.full, 1.0)
        elif peak is not None and math.isfinite(peak):
            yield peak


def _rows(usage: UsageMetrics, measure: Measure, sliced: bool) -> Iterator[UsageMetric]:
    return (row for row in usage.rows_of(measure) if row.of_slices or not sliced)
