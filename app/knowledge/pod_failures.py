# SPDX-License-Identifier: Apache-2.0
"""Why a pod is Failed: the meaning of a kubelet's reason and message."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PodFailure:
    """One row of pod_failures.yaml, whose comment explains the fields."""

    reason: str
    message: str
    refused: bool
    chosen: bool
    why: str
    causes: str
    remedy: str
    one_unit: bool = False

    def explains(self, reason: str, message: str) -> bool:
        """Tell whether this row is about a pod with this reason and message."""
        same = reason.startswith(self.reason) if self.reason else not reason
        return same and self.message in message


def load_pod_failures(rows: Iterable[Mapping[str, Any]]) -> tuple[PodFailure, ...]:
    """Read the `pod_failures` of pod_failures.yaml, of which the first that explains a pod counts."""
    return tuple(
        PodFailure(
            reason=row["reason"],
            message=row.get("message", ""),
            refused=row["refused"],
            chosen=row.get("chosen", False),
            why=row["why"],
            causes=row.get("causes", ""),
            remedy=row["remedy"],
            one_unit=row.get("one_unit", False),
        )
        for row in rows
    )
