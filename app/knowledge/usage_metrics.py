# SPDX-License-Identifier: Apache-2.0
"""The metrics of the DCGM exporter that tell how GPUs are used, and the labels that name the pod which holds one."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""The name of a metric or label in Prometheus' data model; names become part of a PromQL query unescaped."""


class Measure(Enum):
    """What a metric measures of a GPU or of a MIG instance."""

    Activity = "activity"
    """The share of time in which it computes."""
    Extent = "extent"
    """The share of its multiprocessors that are in use."""
    Memory = "memory"
    """Its used memory in MiB."""


@dataclass(frozen=True, slots=True)
class UsageMetric:
    """One row of usage_metrics.yaml: metrics of one meaning, by the names that releases of the exporter have.

    `full` is the value of a GPU that is fully used; None for memory. `of_slices` tells whether the value of a MIG
    instance is its own.
    """

    name: str
    metrics: tuple[str, ...]
    measure: Measure
    full: float | None
    of_slices: bool


@dataclass(frozen=True, slots=True)
class UsageMetrics:
    """The content of usage_metrics.yaml.

    Of each list of labels the first that a series has counts. A series with one of `shared_labels` has values of a GPU
    that its pod may share. Pods whose name `exporter_pods` matches are exporters, which hold no GPU.
    """

    rows: tuple[UsageMetric, ...]
    namespace_labels: tuple[str, ...]
    pod_labels: tuple[str, ...]
    model_labels: tuple[str, ...]
    instance_labels: tuple[str, ...]
    profile_labels: tuple[str, ...]
    shared_labels: tuple[str, ...]
    exporter_pods: re.Pattern[str]

    @property
    def metrics(self) -> tuple[str, ...]:
        """All metrics that are read, by name."""
        return tuple(metric for row in self.rows for metric in row.metrics)

    def rows_of(self, measure: Measure) -> Iterator[UsageMetric]:
        """Yield the rows of a measure, the preferred one first."""
        return (row for row in self.rows if row.measure is measure)


def load_usage_metrics(document: Mapping[str, Any]) -> UsageMetrics:
    """Read usage_metrics.yaml.

    Raises ValueError for a malformed name, an unknown measure, and a share without its full value.
    """
    return UsageMetrics(
        rows=tuple(_row(row) for row in document["metrics"]),
        namespace_labels=_names(document["namespace_labels"]),
        pod_labels=_names(document["pod_labels"]),
        model_labels=_names(document["model_labels"]),
        instance_labels=_names(document["instance_labels"]),
        profile_labels=_names(document["profile_labels"]),
        shared_labels=_names(document["shared_labels"]),
        exporter_pods=re.compile(document["exporter_pods"]),
    )


def _row(row: Mapping[str, Any]) -> UsageMetric:
    measure, full = Measure(row["measures"]), row["full"]
    if (measure is Measure.Memory) is not (full is None):
        raise ValueError(f"{row['name']}: got full {full!r}, wants a number for a share, and null for memory")
    return UsageMetric(row["name"], _names(row["metrics"]), measure, full, row["of_slices"])


def _names(texts: Iterable[str]) -> tuple[str, ...]:
    names = tuple(texts)
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"got {name[:60]!r}, wants the name of a metric or label")
    return names
