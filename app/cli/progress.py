# SPDX-License-Identifier: Apache-2.0
"""What a command is doing meanwhile: one line on stderr, only where that is a terminal, gone when it is done."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, TaskID, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed

Item = TypeVar("Item")
Say = Callable[[str], None]
"""Tells what is being done now."""
COUNTED_AT_ONCE = 64
"""Items between two updates: one costs as much as a light item does."""
REDRAWS_A_SECOND = 4
"""Often enough to be seen alive; each takes the interpreter from the work for about a millisecond."""


@contextmanager
def doing(what: str) -> Iterator[Say]:
    """Show what is being done for as long as the block lasts; what is given tells of a next step."""
    with _line() as progress:
        task = progress.add_task(what, total=None)
        yield lambda text: progress.update(task, description=text)


@contextmanager
def counted(items: Iterable[Item], what: str, total: int) -> Iterator[Iterable[Item]]:
    """Give the items again, and show how many of them have gone; for as long as the block lasts, however it ends."""
    with _line(BarColumn(), MofNCompleteColumn()) as progress:
        yield items if progress.disable else _counting(items, progress, progress.add_task(what, total=total))


def _counting(items: Iterable[Item], progress: Progress, task: TaskID) -> Iterator[Item]:
    for number, item in enumerate(items):
        yield item
        if not number % COUNTED_AT_ONCE:
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
