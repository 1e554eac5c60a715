# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher usage`: shows how the GPUs that pods hold were used over time.

Its options that name a source of use are shared with `explain`, `doctor` and `plan right-size`.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column

from app.cli.output import Output, in_words, one_of, show, show_more, show_progress, table_of
from app.cli.source import Fleet, refuse_several, state_of
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

Since = Annotated[str, typer.Option("--since", help="How far back to look, such as 12h, 7d or 4w.")]


def read_since(text: str) -> int:
    """Read how far back to look, in seconds.

    Raises BadInput.
    """
    match = SINCE.fullmatch(text)
    seconds = int(match[1]) * UNITS[match[2]] if match else parse_seconds(text)
    if seconds is None or not SHORTEST <= seconds <= LONGEST:
        raise BadInput(f"--since {text[:20]!r}: wants 1h to 92d, such as 12h, 7d or 4w")
    return int(seconds)


@dataclass(frozen=True, slots=True)
class PrometheusOptions:
    """The options that name the Prometheus from which the use of GPUs is read."""

    prometheus: Annotated[
        str | None, typer.Option("--prometheus", help="A Prometheus with DCGM's metrics of pods.")
    ] = None
    prometheus_token_file: Annotated[
        Path | None, typer.Option("--prometheus-token-file", help="A file with a bearer token for it.")
    ] = None

    def use(self, demo: str | None, state: State, seconds: int, sizes: bool = False) -> GPUUse:
        """Read the use, or make up that of a sample fleet, with the shared GPUs of `state` marked.

        With `sizes` it has what a smaller unit is chosen by. Raises BadInput without a source, SourceError.
        """
        refuse_several(("--prometheus", self.prometheus), ("--demo-fleet", demo))
        if not (self.prometheus or demo):
            raise BadInput(
                "wants --prometheus URL, with DCGM's metrics: a cluster and a snapshot have no history (--demo has one)"
            )
        if self.prometheus_token_file and not self.prometheus:
            raise BadInput("got --prometheus-token-file without --prometheus, wants both")
        from app.cluster.usage_polling import PrometheusUse, shared_nodes

        source: UseSource = DemoUsage(lambda: state.nodes, state.allocations.bound)
        if self.prometheus:
            knowledge, token = state.knowledge, self.prometheus_token_file
            source = PrometheusUse(self.prometheus, knowledge.dcgm, knowledge.usage_metrics, token, sizes)
        with show_progress(f"asking {source.origin}"):
            use = asyncio.run(_read(source, now().timestamp(), seconds))
        return with_sharing(use, shared_nodes(state.nodes))

    def idle(self, state: State) -> Mapping[str, float]:
        """Give for how many seconds the pods of a fleet have been idle for certain; nothing without a Prometheus.

        Raises BadInput, SourceError.
        """
        given = self.prometheus or self.prometheus_token_file
        return idle_pods(self.use(None, state, IDLE_LOOK_BACK)) if given else {}


async def _read(source: "UseSource", end: float, seconds: int) -> GPUUse:
    try:
        return await source.read(end, seconds, BELOWS)
    finally:
        await source.close()


BELOWS = (IDLE_BELOW,)
ROWS_SHOWN = 40
SHARED = UseUnit.Share.value
BYS = tuple(by.value for by in By)


def usage(
    *,
    source: PrometheusOptions,
    by: Annotated[str, one_of(*BYS, names=("--by",), prefix="What the rows are: ")] = "namespace",
    since: Since = "7d",
    fleet: Fleet,
    output: Output = "text",
) -> None:
    """Show how the GPUs that pods hold were used: hours held, active share, memory peak, idle now and for how long.

    Held is the time in which the DCGM exporter named the pod as the holder. Whole GPUs, MIG slices and shared GPUs are
    rows of their own. What is not known is shown as unknown and never as idle: a share is of the time in which it was
    known, and a GPU is idle only where nine tenths of the last minutes are known. What several pods use at once is not
    divided among them. With a fleet, its owners and its shared nodes are taken from there.
    """
    if by not in BYS:
        raise BadInput(f"--by {by[:20]!r}: wants {in_words(BYS)}")
    seconds = read_since(since)
    objects = fleet.read(needs_nodes=False) if fleet.given else []
    state = state_of(objects)
    use = source.use(fleet.demo_fleet, state, seconds)
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
