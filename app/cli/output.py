# SPDX-License-Identifier: Apache-2.0
"""How a command's answer is printed: as a text for a person, or as the data that it is."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer
import yaml
from rich.console import Console

from app.errors import BadInput

FORMATS = ("text", "json", "yaml")


def one_of(*choices: str, names: tuple[str, ...], means: str = "") -> Any:
    """Make an option of a few values, which its help names and a shell completes; the verb refuses others itself."""
    return typer.Option(*names, help=f"{means}{in_words(choices)}.", autocompletion=lambda: list(choices))


def output_of(*formats: str) -> Any:
    """Make the option --output of a verb."""
    return one_of(*formats, names=("--output", "-o"), means="How to print the answer: ")


def in_words(choices: tuple[str, ...]) -> str:
    """Write choices as help and errors name them: `a, b or c`."""
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


Output = Annotated[str, output_of(*FORMATS)]


def check_output(output: str, formats: tuple[str, ...] = FORMATS) -> None:
    """Refuse an output that is not among the formats; for verbs that work long, or act, before they answer.

    Raises BadInput.
    """
    if output not in formats:
        raise BadInput(f"-o {output[:20]}: wants {in_words(formats)}")


def show(answer: Any, output: str, text: Callable[[Console], None], formats: tuple[str, ...] = FORMATS) -> None:
    """Print an answer made of dataclasses and plain values; `text` prints it for a person, in colour on a terminal.

    Raises BadInput for an output that is not among the formats.
    """
    check_output(output, formats)
    if output == "json":
        print(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
    elif output == "yaml":
        print(yaml.safe_dump(msgspec.to_builtins(answer), sort_keys=False, width=120), end="")
    else:
        text(Console(highlight=False, soft_wrap=True))
