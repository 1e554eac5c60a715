# SPDX-License-Identifier: Apache-2.0
"""The metrics of the DCGM exporter: those of a GPU's health, those of its use, and the labels that identify a GPU.

XID errors are the codes by which NVIDIA's driver reports faults; their severity is in xids.yaml. The metrics of use
name the pod that holds a GPU by labels of their own.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Severity(Enum):
    """The severity of an XID by what to do about it, mildest first."""

    Application = "application"
    Watch = "watch"
    ResetWhenIdle = "reset_when_idle"
    DrainNow = "drain_now"


@dataclass(frozen=True, slots=True)
class XID:
    """One XID code with its severity, and its meaning in words."""

    code: int
    severity: Severity
    meaning: str


def load_xids(rows: Iterable[Mapping[str, Any]]) -> Mapping[int, XID]:
    """Index the `xids` of xids.yaml by code."""
    return {row["xid"]: XID(row["xid"], Severity(row["class"]), row["meaning"]) for row in rows}


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""The name of a metric or label in Prometheus' data model, without the colons of recording rules. Names become part of
a PromQL query unescaped."""


class MetricRule(Enum):
    """The rule by which a value of a metric counts as a fault."""

    XID = "xid"
    """The value is the number of the last XID error, whose severity decides (xids.yaml)."""
    AboveZero = "above_zero"
    """The value counts as a fault if it is more than zero."""
    Rising = "rising"
    """The value counts as a fault if it has risen lately (RISING_SECONDS of nodes/gpu_health.py)."""


class GPUCondition(Enum):
    """The state of a GPU with a fault: an unhealthy one (`ill`) is to be drained now, a degraded one (`ailing`) is
    avoided while others are free."""

    Ill = "ill"
    Ailing = "ailing"


@dataclass(frozen=True, slots=True, eq=False)
class MetricMeaning:
    """One row of dcgm.yaml: metrics of the same meaning, and the condition of a GPU for which they count as a fault.

    `name` is our name of the row, and `metrics` are the names that releases of DCGM exporter have for the metric.
    `meaning` says in words what a fault by it is, for people. `condition` is None for XIDs, whose severity decides.
    Rows are compared by identity, because they are part of keys that are looked up for each sample.
    """

    name: str
    metrics: tuple[str, ...]
    rule: MetricRule
    condition: GPUCondition | None
    meaning: str


@dataclass(frozen=True, slots=True, eq=False)
class DCGM:
    """The content of dcgm.yaml: the rows by metric, the condition by severity of an XID, and the labels to read.

    Of `node_labels`, which name the node of a sample, and of `gpu_labels`, which identify the GPU on its node, the
    first label that a sample has counts. Of `part_labels` all count together: they identify the part of the GPU that
    the sample is about, which is an NVLink or a MIG instance.
    """

    readings: Mapping[str, MetricMeaning]
    conditions: Mapping[Severity, GPUCondition]
    node_labels: tuple[str, ...]
    gpu_labels: tuple[str, ...]
    part_labels: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels that are read."""
        return (*self.node_labels, *self.gpu_labels, *self.part_labels)


def load_dcgm(document: Mapping[str, Any]) -> DCGM:
    """Read dcgm.yaml.

    Raises ValueError for a row that lacks a condition, and for a malformed name of a metric or label.
    """
    rows = [_reading(row) for row in document["readings"]]
    severities = document["xid_severities"].items()
    return DCGM(
        readings={metric: row for row in rows for metric in row.metrics},
        conditions={Severity(name): GPUCondition(value) for name, value in severities if value is not None},
        node_labels=_names(document["node_labels"]),
        gpu_labels=_names(document["gpu_labels"]),
        part_labels=_names(document["part_labels"]),
    )


def _reading(row: Mapping[str, Any]) -> MetricMeaning:
    rule = MetricRule(row["judge"])
    condition = None if rule is MetricRule.XID else GPUCondition(row.get("severity"))
    return MetricMeaning(row["name"], _names(row["metrics"]), rule, condition, row["meaning"])


def _names(texts: Iterable[str]) -> tuple[str, ...]:
    names = tuple(texts)
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"got {name[:60]!r}, wants the name of a metric or label")
    return names


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
    that its pod may share. Pods whose name `exporter_pods` matches, as Prometheus reads it too, hold no GPU: exporters.
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
