# SPDX-License-Identifier: Apache-2.0
"""The pending pods as rows of a table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.explain.pending_cause import PendingCause
from app.kube.pending_pods import PendingPod


@dataclass(frozen=True, slots=True)
class PendingPodRow:
    """One pending pod. `cause` is None until it is computed."""

    namespace: str
    name: str
    asks: str
    created: str
    cause: PendingCause | None


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
