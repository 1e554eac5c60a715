# SPDX-License-Identifier: Apache-2.0
"""DCGM exporter's metrics: which are read, what they say about a GPU, and whose they are."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from app.knowledge.xids import Severity

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Of a metric or label (Prometheus' data model, without the colons of recording rules); they go into a query as are."""


class MetricRule(Enum):
    """How a value is judged."""

    XID = "xid"
    AboveZero = "above_zero"
    Rising = "rising"


class GPUCondition(Enum):
    """The state of a GPU with a fault: to be drained now, or to be passed over while there are others."""

    Ill = "ill"
    Ailing = "ailing"


@dataclass(frozen=True, slots=True, eq=False)
class MetricMeaning:
    """One row: metrics that say the same, and what they mean. `condition` is None for XIDs, which have their own.

    Compared by identity: it is part of keys that are looked up for every sample.
    """

    name: str
    metrics: tuple[str, ...]
    judge: MetricRule
    condition: GPUCondition | None
    meaning: str


@dataclass(frozen=True, slots=True, eq=False)
class DCGM:
    """All readings, by metric; what an XID's class means; and the labels to look at, first one first."""

    readings: Mapping[str, MetricMeaning]
    conditions: Mapping[Severity, GPUCondition]
    node_labels: tuple[str, ...]
    gpu_labels: tuple[str, ...]
    part_labels: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """List every label that is looked at."""
        return (*self.node_labels, *self.gpu_labels, *self.part_labels)


def load_dcgm(document: Mapping[str, Any]) -> DCGM:
    """Read dcgm.yaml.

    Raises ValueError for a row without a condition that needs one, or a name that is none.
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
    judge = MetricRule(row["judge"])
    condition = None if judge is MetricRule.XID else GPUCondition(row.get("severity"))
    return MetricMeaning(row["name"], _names(row["metrics"]), judge, condition, row["meaning"])


def _names(words: Iterable[str]) -> tuple[str, ...]:
    found = tuple(words)
    for word in found:
        if not _NAME.fullmatch(word):
            raise ValueError(f"got {word[:60]!r}, wants the name of a metric or label")
    return found
