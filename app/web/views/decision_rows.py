# SPDX-License-Identifier: Apache-2.0
"""Decisions as rows of a table, filtered by verb, reason and namespace."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

MOST_ROWS = 200
"""Rows on the page, the newest first."""


class RecordedDecision(Protocol):
    """A decision as api/recent_decisions.py keeps it."""

    @property
    def number(self) -> int:
        """Its number since the start."""
        ...

    @property
    def at(self) -> str:
        """Its time, as text."""
        ...

    @property
    def verb(self) -> str:
        """The verb of the request."""
        ...

    @property
    def decision(self) -> Any:
        """The decision (api/decision_line.py)."""
        ...

    @property
    def cpu_ns(self) -> int:
        """The CPU time of the answer in ns."""
        ...


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """The filter of the page; an empty member selects everything."""

    verb: str = ""
    reason: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One decision. `counts` is the nodes kept of those asked about; empty for admission."""

    number: int
    at: str
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
    """Read the filter from the query of a URL."""
    return DecisionFilter(**{member.name: query.get(member.name, "")[:253] for member in fields(DecisionFilter)})


def rows_of(
    recent: Sequence[RecordedDecision], decision_filter: DecisionFilter = DecisionFilter(), most: int = MOST_ROWS
) -> tuple[DecisionRow, ...]:  # frozen
    """Return rows of the newest decisions that a filter selects, the newest first."""
    rows: list[DecisionRow] = []
    for entry in reversed(recent):
        if len(rows) == most:
            break
        if selects(decision_filter, entry):
            rows.append(_row(entry))
    return tuple(rows)


def selects(decision_filter: DecisionFilter, entry: RecordedDecision) -> bool:
    """Tell whether a filter selects a decision."""
    decision = entry.decision
    return (
        (not decision_filter.verb or entry.verb == decision_filter.verb)
        and (not decision_filter.namespace or decision.namespace == decision_filter.namespace)
        and (not decision_filter.reason or any(code.name == decision_filter.reason for code in decision.reasons))
    )


def choices_of(recent: Sequence[RecordedDecision]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the values that can be filtered by: those of the decisions."""
    verbs = {entry.verb for entry in recent}
    reasons = {code.name for entry in recent for code in entry.decision.reasons}
    namespaces = {entry.decision.namespace for entry in recent} - {""}
    return ("verb", tuple(sorted(verbs))), ("reason", tuple(sorted(reasons))), ("namespace", tuple(sorted(namespaces)))


def _row(entry: RecordedDecision) -> DecisionRow:
    decision = entry.decision
    reasons = sorted(((code.name, count) for code, count in decision.reasons.items()), key=lambda pair: -pair[1])
    return DecisionRow(
        number=entry.number,
        at=entry.at,
        verb=entry.verb,
        outcome=decision.outcome,
        namespace=decision.namespace,
        pod=decision.pod,
        reasons=tuple(reasons),
        actions=decision.actions,
        policies=decision.policies,
        counts=f"{decision.kept} of {decision.asked}" if decision.asked else "",
        milliseconds=f"{entry.cpu_ns / 1e6:.2f}",
        error=decision.error or "",
    )
