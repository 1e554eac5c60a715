# SPDX-License-Identifier: Apache-2.0
"""The waiting pods as rows: what each asks, since when, and why it waits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.explain.explanation import Explanation
from app.kube.pending_pods import PendingPod


@dataclass(frozen=True, slots=True)
class PendingCause:
    """Why a pod waits. `reason`: a code, or empty where it fits. `fix`: the smallest change that helps, if one does."""

    reason: str
    message: str
    nodes: int
    fits: int
    fix: str


@dataclass(frozen=True, slots=True)
class PendingPodRow:
    """One waiting pod. `cause`: None while it is being worked out."""

    namespace: str
    name: str
    asks: str
    created: str
    cause: PendingCause | None


def cause_of(found: Explanation) -> PendingCause:
    """Take the primary cause out of an explanation."""
    primary = found.primary
    fix = "; ".join(edit.text for edit in found.fixes[0].edits) if found.fixes else ""
    if primary is None:
        words = f"fits on {found.fits} nodes now" if found.fits else "there are no nodes"
        return PendingCause("", words, 0, found.fits, "")
    return PendingCause(primary.reason, primary.message, primary.nodes, found.fits, fix)


def rows(waiting: Iterable[PendingPod], causes: Mapping[PendingPod, PendingCause]) -> tuple[PendingPodRow, ...]:
    """Make the rows, who waits longest first; without a known time by name."""
    found = sorted(waiting, key=lambda each: (each.created or "~", each.key))
    return tuple(
        PendingPodRow(
            each.namespace,
            each.name,
            ", ".join(f"{amount} × {resource}" for resource, amount in each.gpu_requests),
            each.created,
            causes.get(each),
        )
        for each in found
    )
