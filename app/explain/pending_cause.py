# SPDX-License-Identifier: Apache-2.0
"""The one cause for which a pod is pending, and its sentence on the web page and in Events."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from app.explain.counterfactual import Fix, FixStep
from app.explain.explanation import Explanation
from app.explain.placed_by import silence_of
from app.values.reasons import counted

HOLDERS = ", held by "
"""What stands between a change of the fleet and the pods in its way (edits_gpu.py)."""


@dataclass(frozen=True, slots=True)
class PendingCause:
    """Why a pod is pending. `reason` is a code, empty if the pod fits; `fix` is the smallest change that helps.

    `nodes` is the number of nodes with that reason, `all_nodes` that of all nodes. `remedy` is what helps against the
    reason in general. `change` is the fix for readers of the pod's Events: pods of other namespaces are not named.
    `opens` says which nodes the fix opens. `sentence` is the message with what the nodes have, empty where nothing is
    to be added.
    """

    reason: str
    message: str
    nodes: int
    fits: int
    fix: str
    all_nodes: int = 0
    remedy: str = ""
    change: str = ""
    opens: str = ""
    sentence: str = ""

    @property
    def note(self) -> str:
        """The cause with its counts, and what helps, as sentences."""
        if not self.nodes:
            return f"{self.message}."
        first = f"0 of {self.all_nodes} nodes fit. {_count(self.nodes)}: {self.sentence or self.message}."
        if self.change:
            return f"{first} Smallest change that helps: {self.change} → {self.opens}."
        return f"{first} {self.remedy[:1].upper()}{self.remedy[1:]}." if self.remedy else first


def cause_of(explanation: Explanation) -> PendingCause:
    """Return the primary cause of an explanation."""
    primary = explanation.primary
    if primary is None:
        words = f"fits on {_count(explanation.fits)} now" if explanation.fits else "there are no nodes"
        return PendingCause("", words, 0, explanation.fits, "")
    smallest = next(iter(explanation.fixes), None)
    return PendingCause(
        primary.reason,
        primary.message,
        primary.nodes,
        explanation.fits,
        "; ".join(edit.text for edit in smallest.edits) if smallest else "",
        explanation.nodes,
        primary.remedy,
        _change(smallest.edits, explanation.pod.partition("/")[0]) if smallest else "",
        _opens(smallest) if smallest else "",
        primary.sentence,
    )


NOT_LOOKED_AT = "SchedulerSilent"
"""The reason of a pod that fits and that its scheduler has not looked at."""
UNSEEN_SECONDS = 120.0
"""Seconds after which a pod that no scheduler has tried is reported; a guess: kube-scheduler restarts in less."""


def told_of_scheduler(cause: PendingCause, unseen_by: str) -> PendingCause:
    """Return the cause of a pod that fits but waits for a scheduler, as PendingPod names it; else the cause itself."""
    if cause.reason or not cause.fits or not unseen_by:
        return cause
    return replace(cause, reason=NOT_LOOKED_AT, message=f"{silence_of(unseen_by)}. It {cause.message}")


def _change(edits: Iterable[FixStep], namespace: str) -> str:
    """Write the edits of a fix without the names of pods in other namespaces, which its reader may not list."""
    return "; ".join([text_for_namespace(edit, namespace) for edit in edits])


def text_for_namespace(edit: FixStep, namespace: str) -> str:
    """Write an edit for readers of one namespace: pods in its way are named only if all are of that namespace."""
    if all(evicted.pod.partition("/")[0] == namespace for evicted in edit.evicts):
        return edit.text
    return f"{edit.text.partition(HOLDERS)[0]}, held by pods of other namespaces"


def _opens(fix: Fix) -> str:
    return f"{_count(fix.opens)}, such as {fix.node}"


def _count(nodes: int) -> str:
    return counted(nodes, "node")
