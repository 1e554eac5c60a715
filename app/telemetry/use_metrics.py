# SPDX-License-Identifier: Apache-2.0
"""The metrics of use: what namespaces hold, and what of it is idle. Without a source of use they stay empty.

They are the only ones with names that users choose: the reader asks which namespace an idle GPU belongs to, and alerts
are routed by it. The number of names is bounded.
"""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Gauge

from app.usage.summary import UseSummary
from app.usage.table import UsageRow, UseUnit

MOST_NAMESPACES = 50
"""Namespaces with series of their own, those that hold most; with the others, three units and three metrics, 459 series
at most. A guess at what one reads in a chart."""
OTHERS = "_others"
"""The value of the label `namespace` for all further ones together. No namespace has an underscore in its name
(RFC 1123, which Kubernetes asks of it)."""
UNITS: Mapping[str, str] = {UseUnit.GPU.value: "gpu", UseUnit.Slice.value: "slice", UseUnit.Share.value: "share"}
"""The values of the label `unit`: GPUs, MIG slices, and GPUs that several pods share."""


class UseMetrics:
    """The gauges, in the registry of the service's other metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Make the gauges."""
        labels = ("namespace", "unit")
        self._held = Gauge(
            "gpu_usher_gpus_held", "GPUs that pods hold, by the DCGM exporter", labels, registry=registry
        )
        self._idle = Gauge(
            "gpu_usher_gpus_idle", "GPUs that pods hold and that are idle for certain", labels, registry=registry
        )
        self._active = Gauge(
            "gpu_usher_gpus_active_ratio",
            "Mean activity of the GPUs that pods held in the last day, while it was known",
            labels,
            registry=registry,
        )
        self.waiting_pods = Gauge(
            "gpu_usher_waiting_pods", "GPU pods that waited for a node when use was read last", registry=registry
        )
        self.age = Gauge(
            "gpu_usher_use_age_seconds",
            "Time since the use of GPUs was read; +Inf: never, NaN: no source is set",
            registry=registry,
        )
        self.age.set(float("nan"))
        self._shown: UseSummary | None = None

    def use_read(self, summary: UseSummary | None, age_seconds: float | None) -> None:
        """Set the age of what is known of use, and the gauges if it is another summary; None is nothing."""
        self.age.set(float("inf") if age_seconds is None else age_seconds)
        if summary is self._shown:
            return
        self._shown = summary
        for gauge in (self._held, self._idle, self._active):
            gauge.clear()
        for (namespace, unit), rows in _rows_by_labels(summary.namespaces if summary else ()).items():
            self._set(namespace, unit, rows)

    def _set(self, namespace: str, unit: str, rows: list[UsageRow]) -> None:
        self._held.labels(namespace, unit).set(sum(row.held_now for row in rows))
        self._idle.labels(namespace, unit).set(sum(row.idle_now for row in rows))
        known = [(row.active_share, row.held_hours * row.known_share) for row in rows if row.active_share is not None]
        if hours := sum(hours for _, hours in known):
            self._active.labels(namespace, unit).set(sum(share * hours for share, hours in known) / hours)


def _rows_by_labels(rows: Iterable[UsageRow]) -> Mapping[tuple[str, str], list[UsageRow]]:
    """Group rows by the values of their labels, with OTHERS for namespaces beyond MOST_NAMESPACES."""
    held: dict[str, int] = {}
    by_labels: dict[tuple[str, str], list[UsageRow]] = {}
    for row in (rows := tuple(rows)):
        held[row.of] = held.get(row.of, 0) + row.held_now
    named = set(sorted(held, key=lambda namespace: (-held[namespace], namespace))[:MOST_NAMESPACES])
    for row in rows:
        by_labels.setdefault((row.of if row.of in named else OTHERS, UNITS[row.unit]), []).append(row)
    return by_labels
