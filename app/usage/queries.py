# SPDX-License-Identifier: Apache-2.0
"""The PromQL by which a history is read, and the length of its windows.

Each query is evaluated once a window and answers what was in it, so that no sample is lost between two evaluations. The
evaluations lie half a minute off the full minutes, at which the inner looks of a subquery lie: whether a range includes
its start, which Prometheus 3.0 changed, makes no difference then.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from app.knowledge.dcgm import DCGM, Measure, UsageMetric, UsageMetrics
from app.usage.history import MINUTE
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
