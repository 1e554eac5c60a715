# SPDX-License-Identifier: Apache-2.0
"""The pending pods as rows of a table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.explain.explanation import Explanation
from app.kube.pending_pods import PendingPod


@dataclass(frozen=True, slots=True)
class PendingCause:
    """Why a pod is pending. `reason` is a code, empty if the pod fits; `fix` is the smallest change that helps."""

    reason: str
    message: str
    nodes: int
    fits: int
    fix: str


@dataclass(frozen=True, slots=True)
class PendingPodRow:
    """One pending pod. `cause` is None until it is computed."""

    namespace: str
    name: str
    asks: str
    created: str
    cause: PendingCause | None


def cause_of(explanation: Explanation) -> PendingCause:
    """Return the primary cause of an explanation."""
    primary = explanation.primary
    fix = "; ".join(edit.text for edit in explanation.fixes[0].edits) if explanation.fixes else ""
    if primary is None:
        words = f"fits on {explanation.fits} nodes now" if explanation.fits else "there are no nodes"
        return PendingCause("", words, 0, explanation.fits, "")
    return PendingCause(primary.reason, primary.message, primary.nodes, explanation.fits, fix)


def rows(pending: Iterable[PendingPod], causes: Mapping[PendingPod, PendingCause]) -> tuple[PendingPodRow, ...]:
    """Return the rows, the longest pending first; pods of unknown age by name."""
    pods = sorted(pending, key=lambda pod: (pod.created or "~", pod.key))
    return tuple(
        PendingPodRow(
            pod.namespace,
            pod.name,
            pod.asks,
            pod.created,
            causes.get(pod),
        )
        for pod in pods
    )
