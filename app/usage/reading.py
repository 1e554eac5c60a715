# SPDX-License-Identifier: Apache-2.0
"""The history of use as a Prometheus has it: the queries, and a history built from their answers.

Each query is evaluated once a window and answers what was in it, so that no sample is lost between two evaluations. The
evaluations lie half a minute off the full minutes, at which the inner looks of a subquery lie: whether a range includes
its start, which Prometheus 3.0 changed, makes no difference then.

What several exporters say of one GPU is one GPU: the highest figure counts, so that none that works seems idle.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from app.knowledge.dcgm import DCGM, Measure, UsageMetric, UsageMetrics
from app.usage.history import KNOWN_SHARE, MINUTE, Hold, Pace, UseHistory, Window
from app.values.errors import SourceError

HALF_MINUTE = MINUTE // 2
HOUR, DAY = 3600, 86_400
WINDOWS = (900, 1800, HOUR, 2 * HOUR, 4 * HOUR, 6 * HOUR, 12 * HOUR, DAY)
"""Lengths of windows in seconds. Prometheus looks back five minutes for a series that was not marked as ended, so that
a shorter window could show two pods at once on a GPU which they had one after the other."""
MOST_SERIES = 50_000
"""Pods' GPUs of one history: 6,000 nodes with eight GPUs. More are refused, with the remedy to ask for less time."""
MOST_POINTS = 1_000_000
"""Points of one query over the whole history, series times windows; it decides the length of the windows."""
POINTS_AT_ONCE = 200_000
"""Points of one answer, of some 25 bytes each."""
LOOK = f"{MINUTE}s"
POD = "pod"
"""The label that both an exporter and the target of a scrape may have."""


class Figure(Enum):
    """What a query answers of each window."""

    Held = "held"
    """The minutes in which a series with the pod existed."""
    Known = "known"
    """The minutes in which the metric had a value."""
    Sum = "sum"
    """The sum of the metric over those minutes."""
    Peak = "peak"
    """The highest value of the metric."""


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """A query, what it answers, and the metric that it is about; None for all metrics together."""

    figure: Figure
    metric: UsageMetric | None
    text: str


def window_seconds(seconds: float, series: int, most_points: int | None = None) -> int:
    """Choose the length of the windows for a history of some seconds and so many series.

    `most_points` are series times windows, MOST_POINTS by default. Raises SourceError for more series than are read.
    """
    if series > MOST_SERIES:
        raise SourceError(f"{series} series of pods' GPUs, wants at most {MOST_SERIES}: ask for less time (--since)")
    most = most_points or MOST_POINTS
    fitting = (length for length in WINDOWS if max(1, series) * seconds / length <= most)
    return next(fitting, WINDOWS[-1])


def spans(start: float, end: float, window: int, series: int) -> Iterator[tuple[float, float]]:
    """Yield the first and the last evaluation of each query of a range, so that no answer has too many points."""
    at_once = max(1, POINTS_AT_ONCE // max(1, series))
    first = start + window
    while first <= end:
        last = min(end, first + (at_once - 1) * window)
        yield first, last
        first = last + window


def labels(dcgm: DCGM, usage: UsageMetrics) -> tuple[str, ...]:
    """List the labels that are read; others are aggregated away, with what several exporters say twice."""
    usage_labels = (usage.namespace_labels, usage.pod_labels, usage.model_labels, usage.instance_labels,
                    usage.profile_labels, usage.shared_labels)  # fmt: skip
    named = (*dcgm.node_labels, *dcgm.gpu_labels, *(label for names in usage_labels for label in names))
    return tuple(dict.fromkeys(named))


def count_query(dcgm: DCGM, usage: UsageMetrics, seconds: int) -> str:
    """Write the query for the number of series of a history."""
    series = _any_of(usage.metrics, "")
    return f"count(max by ({', '.join(labels(dcgm, usage))}) (last_over_time({series}[{seconds}s])))"


def range_queries(dcgm: DCGM, usage: UsageMetrics, window: int) -> Iterator[RangeQuery]:
    """Yield the queries of a history. NaN and values below zero are left out: they say nothing of the GPU."""
    by, over = ", ".join(labels(dcgm, usage)), f"[{window}s:{LOOK}]"
    yield RangeQuery(Figure.Held, None, f"count_over_time((max by ({by}) ({_held(usage)})){over})")
    for row in usage.rows:
        series = _any_of(row.metrics, "")
        peak = f"max_over_time({_any_of(row.metrics, '')}[{window}s])"
        yield RangeQuery(Figure.Peak, row, f"max by ({by}) ({peak})")
        if row.measure is Measure.Activity:
            known = f"(max by ({by}) ({series} >= 0)){over}"
            clipped = f"(clamp_max(max by ({by}) ({series} >= 0), {row.full:g})){over}"
            yield RangeQuery(Figure.Known, row, f"count_over_time({known})")
            yield RangeQuery(Figure.Sum, row, f"sum_over_time({clipped})")


def _held(usage: UsageMetrics) -> str:
    """Write the series with a pod that is not the exporter's own.

    The label `pod` of a GPU that no pod holds is the target's, which is that of `up`; the label that the exporter wrote
    is not. Where both have one of that name, the exporter's is renamed, or wins (honor_labels of Prometheus).
    """
    renamed = [_any_of(usage.metrics, f'{label}!=""') for label in usage.pod_labels if label != POD]
    plain = _any_of(usage.metrics, f'{POD}!=""')
    return " or ".join((*renamed, f"({plain} unless on (job, instance, namespace, {POD}) up)"))


def _any_of(metrics: tuple[str, ...], more: str) -> str:
    matchers = f'__name__=~"{"|".join(metrics)}"'
    return "{" + ", ".join(filter(None, (matchers, more))) + "}"


def first_label(metric: Mapping[str, str], names: tuple[str, ...]) -> str:
    """Read the first of some labels that a series has; empty where it has none."""
    for name in names:
        if value := metric.get(name):
            return value
    return ""


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
        shared = bool(first_label(metric, self._usage.shared_labels))
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
    ) -> UseHistory:
        """Give the history of what was taken in."""
        bare = UseHistory(start, end, window_seconds, (), problems)
        holds = (self._hold(key, cells, bare.minutes) for key, cells in pace(self._cells.items()))
        seen = sorted(
            (hold for hold in holds if hold.windows), key=lambda hold: (hold.namespace, hold.pod, hold.device)
        )
        return UseHistory(start, end, window_seconds, tuple(seen), problems)

    def _hold(self, key: HoldKey, cells: _Cells, minutes: int) -> Hold:
        held, sliced = cells.figures[Figure.Held, ""], bool(key[-1])
        windows = (
            window_of(index, min(held[index], minutes), cells.figures_at(index), self._usage, sliced)
            for index in sorted(held)
        )
        namespace, pod, gpu, instance = key
        names = self._dcgm.node_labels, self._usage.profile_labels, self._usage.model_labels
        node, profile, model = (first_label(cells.labels, some) for some in names)
        held_windows = tuple(window for window in windows if window.held)
        return Hold(namespace, pod, node, gpu, instance, profile, model, cells.shared, held_windows)


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
