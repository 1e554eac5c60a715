# SPDX-License-Identifier: Apache-2.0
"""The page Use: which namespaces and workloads hold GPUs, and how much they use them. `/use?as=json` has its figures
for programs."""

import datetime as dt
from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import Request, Response

from app.api.wire import encode
from app.cluster.core import Core
from app.cluster.usage_polling import FORGET_SECONDS, UseReading
from app.usage.summary import UseSummary, WorkloadUse
from app.usage.table import UsageRow
from app.web.rendering import HEADERS, html_page
from app.web.views.use_rows import (
    COLUMNS,
    DEFAULT_SORT,
    MOST_ROWS,
    UseQuery,
    namespace_rows,
    namespaces_of,
    read_use_query,
    sums,
    workload_rows,
    workloads_of,
)

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class UseAnswer:
    """The use of GPUs from `start` to `end`, in seconds since the epoch, as the last poll found it.

    `state` says in a sentence what is not known; empty where all is. Without figures the times are None and there are
    no rows. `more_workloads` counts those that are not kept; `problems` say what could not be read.
    """

    state: str
    start: float | None = None
    end: float | None = None
    window_seconds: int | None = None
    namespaces: tuple[UsageRow, ...] = ()
    workloads: tuple[WorkloadUse, ...] = ()
    more_workloads: int = 0
    problems: tuple[str, ...] = ()


def use_answer(reading: UseReading, query: UseQuery) -> UseAnswer:
    """Return the figures of the namespaces and workloads that a query selects, in its order."""
    summary, state = reading.summary, _state(reading)
    if summary is None:
        return UseAnswer(state)
    return UseAnswer(
        state=state,
        start=summary.start,
        end=summary.end,
        window_seconds=summary.window_seconds,
        namespaces=tuple(namespaces_of(summary, query)),
        workloads=tuple(workloads_of(summary, query)),
        more_workloads=summary.more_workloads,
        problems=summary.problems,
    )


class UsePage:
    """The page of one service. `start` identifies the process to the page's live updates."""

    def __init__(self, core: Core, start: str) -> None:
        self._core = core
        self._start = start

    async def show(self, request: Request) -> Response:
        """Show the use of each namespace and workload, or why none is known."""
        query, reading = read_use_query(request.query_params), self._core.usage.reading()
        if request.query_params.get("as") == "json":
            return Response(encode(use_answer(reading, query)), 200, HEADERS, JSON)
        summary = reading.summary
        namespaces = namespace_rows(summary, query) if summary else ()
        workloads = workload_rows(summary, query) if summary else ()
        names = sorted({row.of for row in summary.namespaces}) if summary else []
        return html_page(
            "use.html", here="/use", live="use", start=self._start, reading=reading,
            generation=reading.generation if summary else 0, summary=summary, state=_state(reading),
            period=_period(summary) if summary else "",
            choices=[("namespace", names[:MOST_ROWS])], asked={"namespace": query.namespace},
            columns=[(title, _address(query, name), name == query.sort) for name, title in COLUMNS.items()],
            sort="" if query.sort == DEFAULT_SORT else query.sort, sums=sums(summary) if summary else (),
            namespaces=namespaces[:MOST_ROWS], more_namespaces=max(0, len(namespaces) - MOST_ROWS),
            workloads=workloads[:MOST_ROWS],
            more_workloads=max(0, len(workloads) - MOST_ROWS) + (summary.more_workloads if summary else 0),
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
