# SPDX-License-Identifier: Apache-2.0
"""Shows what a command is doing, as one line on stderr if that is a terminal; it disappears at the end."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, TaskID, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed

Item = TypeVar("Item")
Report = Callable[[str], None]
"""Shows the text of the current step."""
ITEMS_PER_UPDATE = 64
"""Items between two updates: an update costs as much as a light item."""
REDRAWS_A_SECOND = 4
"""Often enough to look alive; each redraw takes the interpreter for about a millisecond."""


@contextmanager
def show_progress(text: str) -> Iterator[Report]:
    """Show what is being done while the block runs; the yielded function shows the next step."""
    with _line() as progress:
        task = progress.add_task(text, total=None)
        yield lambda step: progress.update(task, description=step)


@contextmanager
def show_count(items: Iterable[Item], text: str, total: int) -> Iterator[Iterable[Item]]:
    """Yield the items again, and show how many have been taken, while the block runs."""
    with _line(BarColumn(), MofNCompleteColumn()) as progress:
        yield items if progress.disable else _counting(items, progress, progress.add_task(text, total=total))


def _counting(items: Iterable[Item], progress: Progress, task: TaskID) -> Iterator[Item]:
    for number, item in enumerate(items):
        yield item
        if not number % ITEMS_PER_UPDATE:
            progress.update(task, completed=number)


def _line(*more: ProgressColumn) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        *more,
        Elapsed(),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=REDRAWS_A_SECOND,
        disable=not sys.stderr.isatty(),
    )
