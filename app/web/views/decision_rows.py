# SPDX-License-Identifier: Apache-2.0
"""Decisions as rows of a table: equal ones in one row, filtered by namespace, verb, outcome and reason."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.api.decision_line import RecentDecision  # its type alone: this room is pure


MOST_ROWS = 200
"""Rows on the page, the newest first."""
OUTCOMES: Mapping[str, str] = {
    "none_fits": "no node fits",
    "unconcerned": "no GPU pod",
    "unhandled": "not reviewed",
}
"""Outcomes in words, where the name in the log is none."""


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """The filter of the page; an empty member selects everything."""

    namespace: str = ""
    verb: str = ""
    outcome: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """Equal decisions about one pod: `times` of them; all figures are the newest one's.

    `seconds` and `since` are the times of the newest and of the oldest one, as Unix
    time. `counts` is the nodes kept of those asked about; empty for admission.
    """

    times: int
    seconds: float
    since: float
    verb: str
    outcome: str
    namespace: str
    pod: str
    reasons: tuple[tuple[str, int], ...]
    actions: tuple[str, ...]
    policies: tuple[str, ...]
    counts: str
    milliseconds: str
    error: str


def read_decision_filter(query: Mapping[str, str]) -> DecisionFilter:
    return DecisionFilter(**{member.name: query.get(member.name, "")[:253] for member in fields(DecisionFilter)})


def rows_of(recent: Sequence["RecentDecision"]) -> tuple[DecisionRow, ...]:
    """Return a row for each pod and each answer about it, that of the newest decision first.

    Decisions are equal where all but their times and figures is: a scheduler asks about a waiting pod again and again.
    """
    equal: dict[tuple[Any, ...], list[RecentDecision]] = {}
    for number, entry in enumerate(reversed(recent)):
        decision = entry.decision
        names = tuple(sorted(code.name for code in decision.reasons))
        same = entry.verb, decision.outcome, decision.namespace, decision.pod, names, decision.actions, decision.error
        equal.setdefault(same if decision.pod else (number,), []).append(entry)
    return tuple(map(_row, equal.values()))


def select(all_rows: Iterable[DecisionRow], asked: DecisionFilter) -> tuple[DecisionRow, ...]:
    """Return the first rows that a filter selects, MOST_ROWS of them."""
    return tuple(islice((row for row in all_rows if _selects(asked, row)), MOST_ROWS))


def _selects(asked: DecisionFilter, row: DecisionRow) -> bool:
    return (
        asked.namespace in ("", row.namespace)
        and asked.verb in ("", row.verb)
        and asked.outcome in ("", row.outcome)
        and (not asked.reason or any(name == asked.reason for name, _ in row.reasons))
    )


def choices_of(all_rows: Iterable[DecisionRow]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the values that can be filtered by: those of the decisions."""
    namespaces, verbs, outcomes, reasons = set[str](), set[str](), set[str](), set[str]()
    for row in all_rows:
        namespaces.add(row.namespace)
        verbs.add(row.verb)
        outcomes.add(row.outcome)
        reasons.update(name for name, _ in row.reasons)
    values = {"namespace": namespaces - {""}, "verb": verbs, "outcome": outcomes, "reason": reasons}
    return tuple((name, tuple(sorted(words))) for name, words in values.items())


def _row(entries: Sequence["RecentDecision"]) -> DecisionRow:
    """Make the row of equal decisions; there is one at least, and the newest is first."""
    newest, oldest = entries[0], entries[-1]
    decision = newest.decision
    reasons = sorted(((code.name, count) for code, count in decision.reasons.items()), key=lambda pair: -pair[1])
    return DecisionRow(
        times=len(entries),
        seconds=newest.seconds,
        since=oldest.seconds,
        verb=newest.verb,
        outcome=OUTCOMES.get(decision.outcome, decision.outcome),
        namespace=decision.namespace,
        pod=decision.pod,
        reasons=tuple(reasons),
        actions=decision.actions,
        policies=decision.policies,
        counts=f"{decision.kept} of {decision.asked}" if decision.asked else "",
        milliseconds=f"{newest.cpu_ns / 1e6:.2f}",
        error=decision.error or "",
    )
