# SPDX-License-Identifier: Apache-2.0
"""The metrics of the DCGM exporter that are read, their meaning for a GPU, and the labels that identify the GPU."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from app.knowledge.xids import Severity

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
