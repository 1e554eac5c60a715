# SPDX-License-Identifier: Apache-2.0
"""The rows of `make bench`: what was measured, beside a budget that is scaled by the pace of the machine."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from tests.bench.measure import REFERENCE_MS, Figure, Scaled, middle


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `budget` is in the unit of `measured`, for a machine of scale 1.

    `scale` is the machine scale beside the measurement, by which a budget of time is multiplied; None for a ratio and
    for memory, of which a slow machine needs no more.
    """

    what: str
    measured: float
    budget: float
    unit: str
    scale: float | None = None

    @property
    def budget_here(self) -> float:
        """The budget on this machine."""
        return self.budget * (self.scale or 1.0)


def timed(what: str, measured: Scaled, budget: float, unit: str) -> Row:
    """Make the row of a time."""
    return Row(what, measured.value, budget, unit, measured.scale)


def timed_pair(what: str, rounds: Sequence[tuple[Figure, float]], p50: float, p99: float) -> Iterator[Row]:
    """Make the rows of the median and of the 99th percentile, each of the middle round."""
    yield timed(what, middle((figure.p50, scale) for figure, scale in rounds), p50, "µs p50")
    yield timed(what, middle((figure.p99, scale) for figure, scale in rounds), p99, "µs p99")


def print_rows(rows: Iterable[Row]) -> None:
    """Print the table, and the machine scales that were met."""
    lines = list(rows)
    table = Table(title="make bench: CPU time of the serving thread", title_justify="left", header_style="bold")
    for name in ("what", "measured", "scale", "budget", "at scale 1", "unit", ""):
        table.add_column(name, justify="left" if name in ("what", "unit", "") else "right")
    for row in lines:
        mark = "[green]holds[/]" if row.measured <= row.budget_here else "[red]missed[/]"
        digits = 2 if row.budget < 100 else 0
        scale = "" if row.scale is None else f"{row.scale:.2f}"
        budgets = (f"{row.budget_here:,.{digits}f}", f"{row.budget:,g}")
        table.add_row(row.what, f"{row.measured:,.{digits}f}", scale, *budgets, row.unit, mark)
    Console(highlight=False, width=130).print(table)
    scales = [row.scale for row in lines if row.scale is not None]
    print(
        f"machine scale {min(scales):.2f} to {max(scales):.2f}: a loop of 100,000 additions took so many times "
        f"{REFERENCE_MS} ms beside each measurement.\n"
        "A budget of time is multiplied by the scale; ratios and memory are not."
    )
