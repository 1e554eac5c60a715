# SPDX-License-Identifier: Apache-2.0
"""Prints a command's answer as text, JSON or YAML."""

import re
import sys
from collections.abc import Callable
from typing import Annotated, Any, TextIO, cast

import msgspec
import typer
import yaml
from rich.console import Console

from app.values.errors import BadInput

FORMATS = ("text", "json", "yaml")
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


def one_of(*choices: str, names: tuple[str, ...], prefix: str = "", **more: Any) -> Any:
    """Make an option with a few values, named in its help and completed by shells; the verb itself refuses others."""
    return typer.Option(*names, help=f"{prefix}{in_words(choices)}.", autocompletion=lambda: list(choices), **more)


def output_of(*formats: str) -> Any:
    """Make the option --output of a verb; other values are refused before the verb runs.

    Raises BadInput.
    """

    def check_format(output: str) -> str:
        if output not in formats:
            raise BadInput(f"-o {output[:20]}: wants {in_words(formats)}")
        return output

    return one_of(*formats, names=("--output", "-o"), prefix="How to print the answer: ", callback=check_format)


def in_words(choices: tuple[str, ...]) -> str:
    """Return choices as help and errors name them: `a, b or c`."""
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


Output = Annotated[str, output_of(*FORMATS)]


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


def check(output: str, formats: tuple[str, ...] = FORMATS) -> None:
    """Check an output before the work is done.

    Raises BadInput for one that is not among the formats.
    """
    if output not in formats:
        raise BadInput(f"-o {output[:20]}: wants {', '.join(formats[:-1])} or {formats[-1]}")
