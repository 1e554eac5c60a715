# SPDX-License-Identifier: Apache-2.0
"""Decisions as rows of a table: what was asked, what was decided, and why; filtered by verb, reason and namespace."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

SHOWN = 200
"""Rows of the page, the newest first."""


class RecordedDecision(Protocol):
    """A decision as the tail keeps it (api/tail.py)."""

    @property
    def number(self) -> int:
        """Of all since the start."""
        ...

    @property
    def at(self) -> str:
        """When, for a person."""
        ...

    @property
    def verb(self) -> str:
        """What was asked."""
        ...

    @property
    def decision(self) -> Any:
        """What was decided (api/decisions.py)."""
        ...

    @property
    def cpu_ns(self) -> int:
        """What it took."""
        ...


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """What a person filters by; an empty word asks for nothing."""

    verb: str = ""
    reason: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One decision. `counts`: nodes kept of nodes asked; empty for admission."""

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


def asked_of(query: Mapping[str, str]) -> DecisionFilter:
    """Read a filter from the query of an address."""
    return DecisionFilter(**{each.name: query.get(each.name, "")[:253] for each in fields(DecisionFilter)})


def rows_of(
    said: Sequence[RecordedDecision], asked: DecisionFilter = DecisionFilter(), most: int = SHOWN
) -> tuple[DecisionRow, ...]:  # frozen
    """Make rows of the newest decisions that a filter lets through, the newest first."""
    found: list[DecisionRow] = []
    for each in reversed(said):
        if len(found) == most:
            break
        if takes(asked, each):
            found.append(_row(each))
    return tuple(found)


def takes(asked: DecisionFilter, said: RecordedDecision) -> bool:
    """Tell whether a decision is shown."""
    decision = said.decision
    return (
        (not asked.verb or said.verb == asked.verb)
        and (not asked.namespace or decision.namespace == asked.namespace)
        and (not asked.reason or any(code.name == asked.reason for code in decision.reasons))
    )


def choices_of(said: Sequence[RecordedDecision]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Give what can be filtered by: what the decisions have."""
    verbs = {each.verb for each in said}
    reasons = {code.name for each in said for code in each.decision.reasons}
    namespaces = {each.decision.namespace for each in said} - {""}
    return ("verb", tuple(sorted(verbs))), ("reason", tuple(sorted(reasons))), ("namespace", tuple(sorted(namespaces)))


def _row(said: RecordedDecision) -> DecisionRow:
    decision = said.decision
    reasons = sorted(((code.name, count) for code, count in decision.reasons.items()), key=lambda pair: -pair[1])
    return DecisionRow(
        number=said.number,
        at=said.at,
        verb=said.verb,
        outcome=decision.outcome,
        namespace=decision.namespace,
        pod=decision.pod,
        reasons=tuple(reasons),
        actions=decision.actions,
        policies=decision.policies,
        counts=f"{decision.kept} of {decision.asked}" if decision.asked else "",
        milliseconds=f"{said.cpu_ns / 1e6:.2f}",
        error=decision.error or "",
    )
