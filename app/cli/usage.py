# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher usage`: shows how the GPUs that pods hold were used over time, and what that cost."""

from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from app.cli.output import Output, in_words, one_of, show
from app.cli.source import Fleet, state_of
from app.cli.usage_history import PrometheusURL, Since, TokenFile, history_of, read_since
from app.knowledge.tables import Knowledge
from app.usage.owners import owners_of
from app.usage.prices import NO_PRICES, Prices, read_prices
from app.usage.table import By, Unit, UsageReport, UsageRow, usage_report
from app.values.errors import BadInput

ROWS_SHOWN = 40
LARGEST_FILE = 1 << 20
"""Bytes of a file of prices."""
SHARED = Unit.Share.value
BYS = tuple(by.value for by in By)

PricesFile = Annotated[Path | None, typer.Option("--prices", help="YAML: currency, and products with hourly prices.")]


def usage(
    *,
    prometheus: PrometheusURL = None,
    prometheus_token_file: TokenFile = None,
    by: Annotated[str, one_of(*BYS, names=("--by",), prefix="What the rows are: ")] = "namespace",
    since: Since = "7d",
    prices: PricesFile = None,
    fleet: Fleet,
    output: Output = "text",
) -> None:
    """Show how the GPUs that pods hold were used: hours held, active share, memory peak, idle now and for how long.

    Held is the time in which the DCGM exporter named the pod as the holder. Whole GPUs, MIG slices and shared GPUs are
    rows of their own. What is not known is shown as unknown and never as idle: a share is of the time in which it was
    known, and a GPU is idle only where the last hours are known without a gap. What several pods use at once is not
    divided among them. With a fleet, its owners and its shared nodes are taken from there.
    """
    if by not in BYS:
        raise BadInput(f"--by {by[:20]!r}: wants {in_words(BYS)}")
    seconds = read_since(since)
    objects = fleet.read(needs_nodes=False) if fleet.given else []
    state = state_of(objects)
    costs = read_prices_file(prices, state.knowledge)
    history = history_of(prometheus, prometheus_token_file, fleet.demo_fleet, state, seconds)
    owners = owners_of(document for document in objects if document.get("kind") == "Pod")
    report = usage_report(history, By(by), owners, costs)
    show(report, output, lambda console: _show(console, report))


def read_prices_file(path: Path | None, knowledge: Knowledge) -> Prices:
    """Read the file of prices; no prices without one.

    Raises BadInput.
    """
    if path is None:
        return NO_PRICES
    try:
        text = path.read_text("utf-8")
        if len(text) > LARGEST_FILE:
            raise BadInput(f"{path}: more than {LARGEST_FILE} bytes")
        return read_prices(yaml.safe_load(text), knowledge.geometry, str(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise BadInput(f"{path}: {str(error)[:200]}: wants YAML with the prices of products") from error


def _show(console: Console, report: UsageReport) -> None:
    hours = (report.end - report.start) / 3600
    console.print(f"[bold]{hours:.0f} hours[/], in windows of {report.window_seconds // 60} minutes")
    for problem in report.problems:
        console.print(f"[yellow]{escape(problem)}[/]")
    if not report.rows:
        console.print("no pod was seen on a GPU: check that Prometheus has DCGM's metrics with the labels of pods")
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold")
    money = report.currency is not None
    names = ("held h", "active", "known", "memory peak", "now", "idle", "idle for")
    table.add_column(report.by, overflow="fold")
    table.add_column("unit")
    for name in (*names, *((f"cost {report.currency}".strip(), "of it idle") if money else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.rows[:ROWS_SHOWN]:
        table.add_row(escape(row.of), row.unit, *_cells(row), *(_money(row) if money else ()))
    console.print(table)
    if len(report.rows) > ROWS_SHOWN:
        console.print(f"and {len(report.rows) - ROWS_SHOWN} more rows; -o json has all")


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


def _money(row: UsageRow) -> tuple[str, str]:
    unknown = "not divisible" if row.unit == SHARED else "unknown"
    cells = (unknown if amount is None else f"{amount:,.2f}" for amount in (row.cost, row.idle_cost))
    cost, idle = cells
    return cost, idle
