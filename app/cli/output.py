# SPDX-License-Identifier: Apache-2.0
"""What every verb prints: an answer as text, JSON or YAML, names of pods, and its progress on a terminal."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, cast

import msgspec
import yaml
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, TaskID, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.table import Column, Table

from app.values.computations import T

FILE_COLUMNS = 120
"""Width of tables without a terminal."""
PADDING = re.compile(r" +$", re.MULTILINE)


class UnpaddedOutput:
    """Standard output without the spaces with which rich pads the last column of a table."""

    def write(self, text: str) -> int:
        """Write a text without the spaces at the ends of its lines."""
        return sys.stdout.write(PADDING.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)


def show(answer: Any, output: str, text: Callable[[Console], None]) -> None:
    """Print an answer of dataclasses and plain values; `text` prints it as text, in colour on a terminal."""
    if output == "json":
        print(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
    elif output == "yaml":
        print(yaml.safe_dump(msgspec.to_builtins(answer), sort_keys=False, width=120), end="")
    else:
        console = Console(file=cast(TextIO, UnpaddedOutput()), highlight=False, soft_wrap=True)
        if not console.is_terminal:
            console.width = max(console.width, FILE_COLUMNS)
        text(console)


def table_of(
    columns: Iterable[Column], rows: Iterable[Iterable[str]], title: str | None = None, ruled: bool = True, **more: Any
) -> Table:
    """Make a table; its cells are markup. A `ruled` one has a line below its heads, another dim heads."""
    style: dict[str, Any] = {"box": None, "padding": (0, 1), "header_style": "dim"}
    if ruled:
        style = {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0), "header_style": "bold"}
    table = Table(*columns, title=title, title_justify="left", **(style | more))
    for row in rows:
        table.add_row(*row)
    return table


MOST_SHOWN = 10
"""Most groups, nodes and names that are printed; -o json has all."""


def names_of(names: tuple[str, ...], most: int = MOST_SHOWN) -> str:
    """Return the first names, and the number of others."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def show_more(console: Console, items: Sequence[object], most: int, what: str = "") -> None:
    """Say how many items are not printed, if there are any."""
    if (more := len(items) - most) > 0:
        console.print(f"and {more} more{what}; -o json has all")


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
def show_count(items: Iterable[T], text: str, total: int) -> Iterator[Iterable[T]]:
    """Yield the items again, and show how many have been taken, while the block runs."""
    with _line(BarColumn(), MofNCompleteColumn()) as progress:
        yield items if progress.disable else _counting(items, progress, progress.add_task(text, total=total))


def _counting(items: Iterable[T], progress: Progress, task: TaskID) -> Iterator[T]:
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
