# SPDX-License-Identifier: Apache-2.0
"""Builds a history from the answers of Prometheus, point by point.

What several exporters say of one GPU is one GPU: the highest figure counts, so that none that works seems idle.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from app.knowledge.dcgm import DCGM
from app.knowledge.usage_metrics import Measure, UsageMetric, UsageMetrics
from app.usage.history import KNOWN_SHARE, History, Hold, Pace, Window
from app.usage.queries import Figure, RangeQuery, first_label

Points = Iterable[tuple[int, float]]
"""The points of a series: the index of the window, and the value, which may be any float."""
HoldKey = tuple[str, str, str, str]
"""Namespace, pod, GPU and MIG instance."""


@dataclass(slots=True)
class _Cells:
    """The figures of a hold by figure, metric and window, as they come in. `labels` are those of its first series."""

    labels: Mapping[str, str]
    shared: bool
    figures: dict[tuple[Figure, str], dict[int, float]] = field(default_factory=dict)


class HistoryBuilder:
    """Takes in the series of each query, those of `Figure.Held` first: only what they name is a hold."""

    def __init__(self, dcgm: DCGM, usage: UsageMetrics) -> None:
        self._dcgm = dcgm
        self._usage = usage
        self._cells: dict[HoldKey, _Cells] = {}

    def add(self, query: RangeQuery, metric: Mapping[str, str], points: Points) -> None:
        """Take in one series of an answer; one without a pod, or of an exporter's own pod, is passed over."""
        key = self._key(metric)
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

    def _key(self, metric: Mapping[str, str]) -> HoldKey | None:
        pod = first_label(metric, self._usage.pod_labels)
        if not pod or self._usage.exporter_pods.search(pod):
            return None
        gpu = first_label(metric, self._dcgm.gpu_labels)
        if not gpu.startswith("GPU-"):
            gpu = f"{first_label(metric, self._dcgm.node_labels)}/{gpu}"
        instance = first_label(metric, self._usage.instance_labels)
        return first_label(metric, self._usage.namespace_labels), pod, gpu, instance

    def history(
        self, start: float, end: float, window_seconds: int, problems: tuple[str, ...], pace: Pace = iter
    ) -> History:
        """Give the history of what was taken in."""
        bare = History(start, end, window_seconds, (), problems)
        holds = (self._hold(key, cells, bare.minutes) for key, cells in self._cells.items())
        kept = sorted(
            (hold for hold in pace(holds) if hold.windows), key=lambda hold: (hold.namespace, hold.pod, hold.device)
        )
        return History(start, end, window_seconds, tuple(kept), problems)

    def _hold(self, key: HoldKey, cells: _Cells, minutes: int) -> Hold:
        namespace, pod, gpu, instance = key
        usage, labels = self._usage, cells.labels
        held = cells.figures[Figure.Held, ""]
        windows = (_window(index, min(held[index], minutes), cells, usage, bool(instance)) for index in sorted(held))
        return Hold(
            namespace=namespace,
            pod=pod,
            node=first_label(labels, self._dcgm.node_labels),
            gpu=gpu,
            instance=instance,
            profile=first_label(labels, usage.profile_labels),
            model=first_label(labels, usage.model_labels),
            shared=cells.shared,
            windows=tuple(window for window in windows if window.held),
        )


def _window(index: int, held: float, cells: _Cells, usage: UsageMetrics, sliced: bool) -> Window:
    known, active = _activity(index, held, cells, usage, sliced)
    return Window(
        number=index,
        held=held,
        known=known,
        active=active,
        peak=max(_peaks(index, cells, usage, Measure.Activity, sliced), default=None),
        extent=max(_peaks(index, cells, usage, Measure.Extent, sliced), default=None),
        memory_mib=max(_peaks(index, cells, usage, Measure.Memory, sliced), default=None),
    )


def _activity(index: int, held: float, cells: _Cells, usage: UsageMetrics, sliced: bool) -> tuple[float, float]:
    """Give the minutes in which activity is known, and its sum, by the preferred metric.

    Another metric counts where the preferred one is known for a smaller part of the time in which the GPU was held.
    """
    best = (0.0, 0.0)
    for row in _rows(usage, Measure.Activity, sliced):
        known = min(cells.figures.get((Figure.Known, row.name), {}).get(index, 0.0), held)
        total = cells.figures.get((Figure.Sum, row.name), {}).get(index, 0.0)
        if known > best[0]:
            best = known, min(total / (row.full or 1), known)
        if best[0] >= KNOWN_SHARE * held:
            break
    return best


def _peaks(index: int, cells: _Cells, usage: UsageMetrics, measure: Measure, sliced: bool) -> Iterator[float]:
    """Yield the highest values of the metrics of a measure, as a share of one, or in MiB.

    A share above one is one: DCGM has shown such values of MIG instances (NVIDIA/DCGM issue 152).
    """
    for row in _rows(usage, measure, sliced):
        peak = cells.figures.get((Figure.Peak, row.name), {}).get(index)
        if peak is not None and row.full:
            yield min(peak / row.full, 1.0)
        elif peak is not None and math.isfinite(peak):
            yield peak


def _rows(usage: UsageMetrics, measure: Measure, sliced: bool) -> Iterator[UsageMetric]:
    return (row for row in usage.rows_of(measure) if row.of_slices or not sliced)
