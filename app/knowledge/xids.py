# SPDX-License-Identifier: Apache-2.0
"""XID errors: the codes by which NVIDIA's driver reports faults of a GPU, and their severity."""

from collections.abc import Iterable, Mapping
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
