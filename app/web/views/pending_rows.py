# SPDX-License-Identifier: Apache-2.0
"""The pending pods, grouped by the cause for which they are pending, and filtered by namespace and cause."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from app.explain.pending_cause import PendingCause, told_of_scheduler
from app.kube.pending_pods import PendingPod

MOST_OF_GROUP = 10
"""Pods shown of one cause until one filters by it; the pods of one Job are alike (a guess)."""
MOST_ROWS = 250
"""Pods shown of one cause on a page that is filtered by it."""
FITS, UNKNOWN, NO_NODES = "fits now", "being worked out", "no nodes"
"""Causes that have no reason code."""
FITS_HELP = (
    "Nothing rules these nodes out now, so its scheduler places the pod at its next attempt. If it stays Pending, "
    "check that the scheduler in spec.schedulerName is running; its Events are in kubectl describe pod"
)


@dataclass(frozen=True, slots=True)
class PendingFilter:
    """The filter of the page; an empty member selects everything."""

    namespace: str = ""
    cause: str = ""


@dataclass(frozen=True, slots=True)
class PendingPodRow:
    """One pending pod. `created` is a timestamp of Kubernetes, or empty; `cause` is None until it is computed."""

    namespace: str
    name: str
    asks: str
    created: str
    cause: PendingCause | None

    @property
    def code(self) -> str:
        """The reason code of the cause, or the words in place of one."""
        if self.cause is None:
            return UNKNOWN
        return self.cause.reason or (FITS if self.cause.fits else NO_NODES)

    @property
    def help(self) -> str:
        """What would help: the smallest change that was verified, or what helps against the reason in general."""
        cause = self.cause
        if cause is None:
            return ""
        if cause.fix:
            return f"{cause.fix} → opens {cause.opens}" if cause.opens else cause.fix
        return cause.remedy or (FITS_HELP if cause.fits and not cause.reason else "")


@dataclass(frozen=True, slots=True)
class PendingGroup:
    """The pods of one cause: `count` of them, of which `rows` are shown, the longest pending first.

    `help` is what would help, where it is the same for all of them; otherwise it is empty.
    """

    code: str
    message: str
    nodes: int
    help: str
    count: int
    rows: tuple[PendingPodRow, ...]


def read_pending_filter(query: Mapping[str, str]) -> PendingFilter:
    return PendingFilter(**{member.name: query.get(member.name, "")[:253] for member in fields(PendingFilter)})


def rows(
    pending: Iterable[PendingPod], causes: Mapping[PendingPod, PendingCause], before: str
) -> tuple[PendingPodRow, ...]:
    """Return the rows, the longest pending first; pods of unknown age by name.

    A scheduler that has not looked at a pod which was created before the timestamp `before` is given as the cause.
    """
    pods = sorted(pending, key=lambda pod: (pod.created or "~", pod.key))
    return tuple(
        PendingPodRow(pod.namespace, pod.name, pod.asks, pod.created, _cause(pod, causes.get(pod), before))
        for pod in pods
    )


def _cause(pod: PendingPod, cause: PendingCause | None, before: str) -> PendingCause | None:
    silent = cause is not None and pod.unseen_by and "" < pod.created < before
    return told_of_scheduler(cause, pod.unseen_by) if cause is not None and silent else cause


def selected(all_rows: Iterable[PendingPodRow], asked: PendingFilter) -> list[PendingPodRow]:
    return [
        row
        for row in all_rows
        if asked.namespace in ("", row.namespace) and asked.cause in ("", row.code)
    ]  # fmt: skip


def choices_of(all_rows: Iterable[PendingPodRow]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the values that can be filtered by."""
    namespaces, codes = zip(*((row.namespace, row.code) for row in all_rows), strict=True) if all_rows else ((), ())
    return ("namespace", tuple(sorted(set(namespaces)))), ("cause", tuple(sorted(set(codes))))


def groups_of(shown_rows: Iterable[PendingPodRow], most: int) -> tuple[PendingGroup, ...]:
    """Group rows by cause, that of most pods first; of each group `most` rows are shown. Unknown causes are last."""
    by_cause: dict[tuple[str, str], list[PendingPodRow]] = {}
    for row in shown_rows:
        by_cause.setdefault((row.code, row.cause.message if row.cause else ""), []).append(row)
    ordered = sorted(by_cause.items(), key=lambda item: (item[0][0] == UNKNOWN, -len(item[1])))
    return tuple(_group(code, message, members, most) for (code, message), members in ordered)


def _group(code: str, message: str, members: Sequence[PendingPodRow], most: int) -> PendingGroup:
    first = members[0]
    common = first.help if all(row.help == first.help for row in members) else ""
    nodes = first.cause.nodes if first.cause else 0
    return PendingGroup(code, message, nodes, common, len(members), tuple(members[:most]))
