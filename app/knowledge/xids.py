# SPDX-License-Identifier: Apache-2.0
"""XID error codes: what the driver reports of a sick GPU, and how serious it is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Severity(Enum):
    """What to do about an XID, mildest first."""

    Application = "application"
    Watch = "watch"
    ResetWhenIdle = "reset_when_idle"
    DrainNow = "drain_now"


@dataclass(frozen=True, slots=True)
class XID:
    """One code, and what it means in words."""

    code: int
    severity: Severity
    meaning: str


def load_xids(rows: Iterable[Mapping[str, Any]]) -> Mapping[int, XID]:
    """Index the `xids` of xids.yaml by code."""
    return {row["xid"]: XID(row["xid"], Severity(row["class"]), row["meaning"]) for row in rows}
