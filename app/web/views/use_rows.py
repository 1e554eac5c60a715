# SPDX-License-Identifier: Apache-2.0
"""The rows of the page Use: figures of namespaces and workloads as text, sorted and filtered as the address says."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.usage.table import UsageRow, UseSummary, UseUnit, WorkloadUse

MOST_ROWS = 250
"""Rows of one table, as in the other tables of the page."""
COLUMNS: Mapping[str, str] = {
    "held": "held",
    "active": "active",
    "known": "known",
    "memory": "memory peak",
    "now": "held now",
    "idle": "idle now",
    "for": "idle for",
}
"""The columns that rows can be sorted by, as the address names them, and their heads."""
DEFAULT_SORT = "idle"


@dataclass(frozen=True, slots=True)
class UseQuery:
    """What the address asks for: the column that is sorted by, the largest first, and a namespace, or "" for all."""

    sort: str
    namespace: str


@dataclass(frozen=True, slots=True)
class UseRow:
    """One row. `share` is the active share from 0 to 1, None if it is unknown; all else is text.

    `nodes` are some on which the units of a workload are held, those with idle ones first.
    """

    of: str
    unit: str
    held: str
    share: float | None
    active: str
    known: str
    memory: str
    now: str
    idle: str
    idle_for: str
    nodes: tuple[str, ...] = ()


def read_use_query(query: Mapping[str, str]) -> UseQuery:
    """Read the query of an address; an unknown column is the default one."""
    sort = query.get("sort", "")
    return UseQuery(sort if sort in COLUMNS else DEFAULT_SORT, query.get("namespace", "")[:253])


def namespaces_of(summary: UseSummary, query: UseQuery) -> list[UsageRow]:
    """Return the use of the namespaces that the query selects, in its order."""
    return _ordered((row for row in summary.namespaces if query.namespace in ("", row.of)), query.sort)


def workloads_of(summary: UseSummary, query: UseQuery) -> list[WorkloadUse]:
    """Return the use of the workloads of the namespaces that the query selects, in its order."""
    uses = {(use.row.of, use.row.unit): use for use in summary.workloads if _is_of(use, query.namespace)}
    return [uses[row.of, row.unit] for row in _ordered((use.row for use in uses.values()), query.sort)]


def namespace_rows(summary: UseSummary, query: UseQuery) -> tuple[UseRow, ...]:
    """Return the rows of the namespaces that the query selects, in its order."""
    return tuple(map(use_row, namespaces_of(summary, query)))


def workload_rows(summary: UseSummary, query: UseQuery) -> tuple[UseRow, ...]:
    """Return the rows of the workloads of the namespaces that the query selects, in its order."""
    return tuple(use_row(use.row, use.nodes) for use in workloads_of(summary, query))


def _is_of(use: WorkloadUse, namespace: str) -> bool:
    return not namespace or use.row.of.partition("/")[0] == namespace


def _ordered(rows: Iterable[UsageRow], sort: str) -> list[UsageRow]:
    """Order rows by a column, the largest first; the idle time, the hours and the name decide between equal ones."""

    def key(row: UsageRow) -> tuple[Any, ...]:
        return -_figure(row, sort), -(row.idle_hours or 0.0), -row.held_hours, row.of, row.unit

    return sorted(rows, key=key)


def _figure(row: UsageRow, sort: str) -> float:
    """Return the figure of a column, below all others where it is unknown."""
    figures: Mapping[str, float | None] = {
        "held": row.held_hours,
        "active": row.active_share,
        "known": row.known_share,
        "memory": row.memory_peak_mib,
        "now": row.held_now,
        "idle": row.idle_now,
        "for": row.idle_hours,
    }
    figure = figures[sort]
    return -1.0 if figure is None else float(figure)


def use_row(row: UsageRow, nodes: tuple[str, ...] = ()) -> UseRow:
    """Write the figures of a row as text; what is not known is `unknown`, and never a figure."""
    unknown = "not divisible" if row.unit == UseUnit.Share.value else "unknown"
    return UseRow(
        of=row.of,
        unit=row.unit,
        held=f"{row.held_hours:,.1f} h",
        share=row.active_share,
        active=unknown if row.active_share is None else f"{100 * row.active_share:.0f} %",
        known=f"{100 * row.known_share:.0f} %",
        memory=unknown if row.memory_peak_mib is None else f"{row.memory_peak_mib / 1024:,.1f} GiB",
        now=f"{row.held_now:,}",
        idle=f"{row.idle_now:,}" if row.idle_now else "",
        idle_for="" if row.idle_hours is None else f"{row.idle_hours:,.1f} h",
        nodes=nodes,
    )


def sums(summary: UseSummary) -> tuple[tuple[str, int, int], ...]:
    """Return for each unit that pods hold now its name in the plural, how many are held, and how many are idle."""
    totals = []
    for unit in UseUnit:
        rows = [row for row in summary.namespaces if row.unit == unit.value]
        held, idle = sum(row.held_now for row in rows), sum(row.idle_now for row in rows)
        if held:
            totals.append((f"{unit.value}s", held, idle))
    return tuple(totals)
