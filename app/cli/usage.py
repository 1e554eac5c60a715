# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher usage`: shows how the GPUs that pods hold were used over time.

Its options that name a source of use are shared with `explain`, `doctor` and `plan right-size`.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Column

from app.cli.options import Fleet, PrometheusOptions, refuse_several
from app.cli.output import show, show_more, show_progress, table_of
from app.cli.source import read, state_of
from app.demo.usage import DemoUsage
from app.policy.schema_admission import IDLE_BELOW
from app.telemetry.logs import now
from app.usage.queries import DAY, HOUR
from app.usage.table import By, GPUUse, UsageReport, UsageRow, UseUnit, idle_pods, usage_report, with_sharing
from app.usage.workloads import owners_of
from app.values.errors import BadInput
from app.values.quantity import parse_seconds
from app.world.state import State

if TYPE_CHECKING:
    from app.cluster.usage_polling import UseSource

SINCE = re.compile(r"(\d{1,3})([dw])", re.ASCII)
UNITS = {"d": DAY, "w": 7 * DAY}
SHORTEST, LONGEST = HOUR, 92 * DAY
"""Seconds to look back: an hour, and three months, which few keep."""
IDLE_LOOK_BACK = DAY
"""Seconds for which idleness is looked back where a command only says who is idle."""


def read_since(text: str) -> int:
    """Read how far back to look, in seconds.

    Raises BadInput.
    """
    match = SINCE.fullmatch(text)
    seconds = int(match[1]) * UNITS[match[2]] if match else parse_seconds(text)
    if seconds is None or not SHORTEST <= seconds <= LONGEST:
        raise BadInput(f"--since {text[:20]!r}: wants 1h to 92d, such as 12h, 7d or 4w")
    return int(seconds)


def read_use(use: PrometheusOptions, demo: str | None, state: State, seconds: int, sizes: bool = False) -> GPUUse:
    """Read the use, or make up that of a sample fleet, with the shared GPUs of `state` marked.

    With `sizes` it has what a smaller unit is chosen by. Raises BadInput without a source, SourceError.
    """
    refuse_several(("--prometheus", use.prometheus), ("--demo-fleet", demo))
    if not (use.prometheus or demo):
        raise BadInput(
            "wants --prometheus URL, with DCGM's metrics: a cluster and a snapshot have no history (--demo has one)"
        )
    if use.prometheus_token_file and not use.prometheus:
        raise BadInput("got --prometheus-token-file without --prometheus, wants both")
    from app.cluster.usage_polling import PrometheusUse, shared_nodes

    source: UseSource = DemoUsage(lambda: state.nodes, state.allocations.bound)
    if use.prometheus:
        knowledge, token = state.knowledge, use.prometheus_token_file
        source = PrometheusUse(use.prometheus, knowledge.dcgm, knowledge.usage_metrics, token, sizes)
    with show_progress(f"asking {source.origin}"):
        answer = asyncio.run(_read(source, now().timestamp(), seconds))
    return with_sharing(answer, shared_nodes(state.nodes))


def read_idle_pods(use: PrometheusOptions, state: State) -> Mapping[str, float]:
    """Give for how many seconds the pods of a fleet have been idle for certain.

    Raises BadInput, SourceError.
    """
    return idle_pods(read_use(use, None, state, IDLE_LOOK_BACK))


async def _read(source: "UseSource", end: float, seconds: int) -> GPUUse:
    try:
        return await source.read(end, seconds, BELOWS)
    finally:
        await source.close()


BELOWS = (IDLE_BELOW,)
ROWS_SHOWN = 40
SHARED = UseUnit.Share.value


def usage(*, source: PrometheusOptions, by: str, since: str, fleet: Fleet, output: str) -> None:
    seconds = read_since(since)
    objects = read(fleet, needs_nodes=False) if fleet.given else []
    state = state_of(objects)
    use = read_use(source, fleet.demo_fleet, state, seconds)
    owners = owners_of(document for document in objects if document.get("kind") == "Pod")
    report = usage_report(use, By(by), owners)
    show(report, output, lambda console: _show_usage(console, report))


def _show_usage(console: Console, report: UsageReport) -> None:
    hours = (report.end - report.start) / 3600
    console.print(f"[bold]{hours:,.0f} hours[/]")
    for problem in report.problems:
        console.print(f"[yellow]{escape(problem)}[/]")
    if not report.rows:
        console.print("no pod was seen on a GPU: check that Prometheus has DCGM's metrics with the labels of pods")
        return
    names = ("held h", "active", "known", "memory peak", "now", "idle", "idle for")
    columns = [Column(report.by, overflow="fold"), Column("unit")]
    for name in names:
        columns.append(Column(name, justify="right", no_wrap=True))
    rows = report.rows[:ROWS_SHOWN]
    cells = ((escape(row.of), row.unit, *_cells(row)) for row in rows)
    console.print(table_of(columns, cells))
    show_more(console, report.rows, ROWS_SHOWN, " rows")


def _cells(row: UsageRow) -> tuple[str, ...]:
    unknown = "not divisible" if row.unit == SHARED else "unknown"
    return (
        f"{row.held_hours:,.1f}",
        unknown if row.active_share is None else f"{row.active_share:.1%}",
        f"{row.known_share:.0%}",
        unknown if row.memory_peak_mib is None else f"{row.memory_peak_mib / 1024:,.1f} GiB",
        str(row.held_now),
        str(row.idle_now),
        "" if row.idle_hours is None else f"{row.idle_hours:,.1f} h",
    )
