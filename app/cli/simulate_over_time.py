# SPDX-License-Identifier: Apache-2.0
"""What `gpu-usher simulate --load` reads and shows: pods that come and go, and how long they wait."""

import re
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from app.simulate.over_time_figures import OverTimeRun
from app.simulate.over_time_pods import OverTime
from app.simulate.over_time_table import Figure, over_time_rows
from app.values.errors import BadInput

PODS, LEAST_PODS, MOST_PODS = 20_000, 10, 1_000_000
"""Pods that arrive. In the published trace 20,000 pods at a load of 1 arrive within a day."""
QUEUE_MODEL = (
    "kube-scheduler's, one priority: each pod that leaves has all waiting ones tried again, by their last attempt and "
    "backoff; an attempt takes no time"
)
"""The field `queue` of a result: how pods without a node are tried again (simulate/scheduling_queue.py)."""
LOADS = re.compile(r"(\d\.\d{1,2}|\d)(?:-(\d\.\d{1,2}|\d))?", re.ASCII)
"""A load, or a range of loads with both ends."""
STEP_PERCENT, MOST_PERCENT = 10, 200
"""The loads of a range are a tenth of the GPUs apart. More than twice what fits only makes the queue longer."""


def read_loads(text: str, pods: int) -> list[OverTime | None]:
    """Read `0.8-1.1` or `0.9,1`; an empty text is one job that is not played over time.

    Raises BadInput.
    """
    if not text:
        return [None]
    percents: list[int] = []
    for word in text.split(","):
        match = LOADS.fullmatch(word.strip())
        first, last = (round(100 * float(end)) for end in (match[1], match[2] or match[1])) if match else (1, 0)
        if not 0 < first <= last <= MOST_PERCENT:
            raise BadInput(f"--load: got {word[:20]!r}, wants numbers as 0.8-1.1 or 0.9,1, up to {MOST_PERCENT // 100}")
        percents.extend(range(first, last + 1, STEP_PERCENT))
    return [OverTime(percent / 100, pods) for percent in dict.fromkeys(percents)]


def show_over_time(console: Console, runs: Iterable[OverTimeRun], trace: str) -> None:
    """Print the table of runs on the trace that is named, and what its columns mean."""
    title = f"Pods that come and go ({trace})"
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in ("workload", "load %", "policy"):
        table.add_column(name, no_wrap=True)
    for name in ("seeds", "held %", "fragmented %", "wait p50", "p95", "p99", "mean", "waiting"):
        table.add_column(name, justify="right")
    for row in over_time_rows(runs):
        waits = (_cell(figure, 0) for figure in row.wait_seconds.values())
        table.add_row(
            row.workload,
            f"{row.load_percent:g}",
            row.policy,
            str(row.seeds),
            _cell(row.held_percent, 2),
            _cell(row.fragmented_percent, 2),
            *waits,
            _cell(row.still_waiting, 0),
        )
    console.print(table)
    console.print(
        "[dim]held, fragmented: percent of the GPUs, over time; wait: of GPU pods, in seconds; waiting: at the end[/]"
    )


def _cell(figure: Figure, digits: int) -> str:
    value, deviation = figure
    return f"{value:.{digits}f}" if deviation is None else f"{value:.{digits}f} ± {deviation:.{digits}f}"
