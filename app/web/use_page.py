# SPDX-License-Identifier: Apache-2.0
"""The page Use: which namespaces and workloads hold GPUs, and how much they use them.

Rows are sorted and filtered as the address says; `/use?as=json` has the figures for programs.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import Request, Response

from app.api.wire import encode
from app.cluster.core import Core
from app.cluster.usage_polling import FORGET_SECONDS, UseReading
from app.usage.table import UsageRow, UseSummary, UseUnit
from app.values.json_members import JSON
from app.web.rendering import HEADERS, html_page

MOST_ROWS = 250
"""Rows of one table, as in the other tables of the page."""
COLUMNS: Mapping[str, tuple[str, Callable[[UsageRow], float | None]]] = {
    "held": ("held", lambda row: row.held_hours),
    "active": ("active", lambda row: row.active_share),
    "known": ("known", lambda row: row.known_share),
    "memory": ("memory peak", lambda row: row.memory_peak_mib),
    "now": ("held now", lambda row: row.held_now),
    "idle": ("idle now", lambda row: row.idle_now),
    "for": ("idle for", lambda row: row.idle_hours),
}
"""The columns that rows can be sorted by, as the address names them: their heads, and their figures."""
DEFAULT_SORT = "idle"


@dataclass(frozen=True, slots=True)
class UseQuery:
    """What the address asks for: the column that is sorted by, the largest first, and a namespace, or "" for all."""

    sort: str
    namespace: str


def read_use_query(query: Mapping[str, str]) -> UseQuery:
    """Read the query of an address; an unknown column is the default one."""
    sort = query.get("sort", "")
    return UseQuery(sort if sort in COLUMNS else DEFAULT_SORT, query.get("namespace", "")[:253])


def _ordered(rows: Iterable[UsageRow], sort: str) -> list[UsageRow]:
    """Order rows by a column, the largest first and unknown figures last; among equal ones the idle time decides, then
    the hours and the name."""
    figure_of = COLUMNS[sort][1]

    def key(row: UsageRow) -> tuple[float, float, float, str, str]:
        figure = figure_of(row)
        return 1.0 if figure is None else -figure, -(row.idle_hours or 0.0), -row.held_hours, row.of, row.unit

    return sorted(rows, key=key)


def sums(summary: UseSummary) -> tuple[tuple[str, int, int], ...]:
    """Return for each unit that pods hold now its name in the plural, how many are held, and how many are idle."""
    totals = []
    for unit in UseUnit:
        rows = [row for row in summary.namespaces if row.unit == unit.value]
        held, idle = sum(row.held_now for row in rows), sum(row.idle_now for row in rows)
        if held:
            totals.append((f"{unit.value}s", held, idle))
    return tuple(totals)


@dataclass(frozen=True, slots=True)
class UseAnswer:
    """The use of GPUs from `start` to `end`, in seconds since the epoch, as the last poll found it.

    `state` says in a sentence what is not known; empty where all is. Without figures the times are None and there are
    no rows. `more_workloads` counts those that are not kept; `problems` say what could not be read.
    """

    state: str
    start: float | None = None
    end: float | None = None
    step_seconds: int | None = None
    namespaces: tuple[UsageRow, ...] = ()
    workloads: tuple[UsageRow, ...] = ()
    more_workloads: int = 0
    problems: tuple[str, ...] = ()


def use_answer(reading: UseReading, query: UseQuery) -> UseAnswer:
    """Return the figures of the namespaces and workloads that a query selects, in its order."""
    summary, state = reading.summary, _state(reading)
    if summary is None:
        return UseAnswer(state)

    def selected(rows: tuple[UsageRow, ...]) -> tuple[UsageRow, ...]:
        some = (row for row in rows if query.namespace in ("", row.of.partition("/")[0]))
        return tuple(_ordered(some, query.sort))

    return UseAnswer(
        state=state,
        start=summary.start,
        end=summary.end,
        step_seconds=summary.step_seconds,
        namespaces=selected(summary.namespaces),
        workloads=selected(summary.workloads),
        more_workloads=summary.more_workloads,
        problems=summary.problems,
    )


class UsePage:
    """The page of one service."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def generation(self) -> int:
        """Return the number of polls of use, or 0 where nothing is known of it."""
        use = self._core.usage.reading()
        return use.generation if use.summary else 0

    async def show(self, request: Request, tag: str) -> Response:
        """Show the use of each namespace and workload, or why none is known."""
        query, reading = read_use_query(request.query_params), self._core.usage.reading()
        answer, summary = use_answer(reading, query), reading.summary
        if request.query_params.get("as") == "json":
            return Response(encode(answer), 200, HEADERS, JSON)
        names = sorted({row.of for row in summary.namespaces}) if summary else []
        return html_page(
            "use.html", here="/use", tag=tag, reading=reading, summary=summary, state=answer.state,
            period=_period(summary) if summary else "",
            choices=[("namespace", names[:MOST_ROWS])], asked={"namespace": query.namespace},
            columns=[(title, _address(query, name), name == query.sort) for name, (title, _) in COLUMNS.items()],
            sort="" if query.sort == DEFAULT_SORT else query.sort, sums=sums(summary) if summary else (),
            namespaces=answer.namespaces[:MOST_ROWS], more_namespaces=max(0, len(answer.namespaces) - MOST_ROWS),
            workloads=answer.workloads[:MOST_ROWS],
            more_workloads=max(0, len(answer.workloads) - MOST_ROWS) + answer.more_workloads,
            known_nodes=self._core.nodes,
        )  # fmt: skip


def _address(query: UseQuery, sort: str) -> str:
    """Return the address of the page sorted by a column."""
    asked = {"namespace": query.namespace, "sort": "" if sort == DEFAULT_SORT else sort}
    selected = urlencode({name: value for name, value in asked.items() if value})
    return f"/use?{selected}" if selected else "/use"


def _state(reading: UseReading) -> str:
    """Say in a sentence what is known of use, where that is not everything; empty where it is."""
    why = f": {reading.problem}" if reading.problem else ""
    if not reading.asked:
        return f"No GPU usage data{why}."
    if reading.age_seconds is None:
        return f"No GPU usage data yet{why}."
    minutes = int(reading.age_seconds // 60)
    if reading.age_seconds >= FORGET_SECONDS:
        return f"No current GPU usage data: the last answer is {minutes} minutes old{why}."
    return f"The last poll failed{why}. The figures are {minutes} minutes old." if reading.problem else ""


def _period(summary: UseSummary) -> str:
    """Write from when to when the summary is, in UTC."""
    start, end = (dt.datetime.fromtimestamp(at, dt.UTC) for at in (summary.start, summary.end))
    return f"{start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"
