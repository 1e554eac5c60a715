# SPDX-License-Identifier: Apache-2.0
"""How a command's answer is printed: as a text for a person, or as the data that it is."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer
import yaml
from rich.console import Console

from app.values.errors import BadInput

FORMATS = ("text", "json", "yaml")
FILE_COLUMNS = 120
"""Width of tables where there is no terminal to fit in."""


def one_of(*choices: str, names: tuple[str, ...], means: str = "", **more: Any) -> Any:
    """Make an option of a few values, which its help names and a shell completes; the verb refuses others itself."""
    return typer.Option(*names, help=f"{means}{in_words(choices)}.", autocompletion=lambda: list(choices), **more)


def output_of(*formats: str) -> Any:
    """Make the option --output of a verb; another value is refused before the verb does anything.

    Raises BadInput.
    """

    def checked(output: str) -> str:
        if output not in formats:
            raise BadInput(f"-o {output[:20]}: wants {in_words(formats)}")
        return output

    return one_of(*formats, names=("--output", "-o"), means="How to print the answer: ", callback=checked)


def in_words(choices: tuple[str, ...]) -> str:
    """Write choices as help and errors name them: `a, b or c`."""
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


Output = Annotated[str, output_of(*FORMATS)]


def show(answer: Any, output: str, text: Callable[[Console], None]) -> None:
    """Print an answer made of dataclasses and plain values; `text` prints it for a person, in colour on a terminal."""
    if output == "json":
        print(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
    elif output == "yaml":
        print(yaml.safe_dump(msgspec.to_builtins(answer), sort_keys=False, width=120), end="")
    else:
        console = Console(highlight=False, soft_wrap=True)
        if not console.is_terminal:
            console.width = max(console.width, FILE_COLUMNS)
        text(console)


def check(output: str, formats: tuple[str, ...] = FORMATS) -> None:
    """Check an output before the work is done.

    Raises BadInput for one that is not among the formats.
    """
    if output not in formats:
        raise BadInput(f"-o {output[:20]}: wants {', '.join(formats[:-1])} or {formats[-1]}")
