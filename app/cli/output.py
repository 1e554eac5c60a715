# SPDX-License-Identifier: Apache-2.0
"""How a command's answer is printed: as a text for a person, or as the data that it is."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer
import yaml
from rich.console import Console

from app.errors import BadInput

Output = Annotated[str, typer.Option("--output", "-o", help="text, json or yaml.")]
FORMATS = ("text", "json", "yaml")


def show(answer: Any, output: str, text: Callable[[Console], None], formats: tuple[str, ...] = FORMATS) -> None:
    """Print an answer made of dataclasses and plain values; `text` prints it for a person, in colour on a terminal.

    Raises BadInput for an output that is not among the formats.
    """
    check(output, formats)
    if output == "json":
        print(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
    elif output == "yaml":
        print(yaml.safe_dump(msgspec.to_builtins(answer), sort_keys=False, width=120), end="")
    else:
        text(Console(highlight=False, soft_wrap=True))


def check(output: str, formats: tuple[str, ...] = FORMATS) -> None:
    """Check an output before the work is done.

    Raises BadInput for one that is not among the formats.
    """
    if output not in formats:
        raise BadInput(f"-o {output[:20]}: wants {', '.join(formats[:-1])} or {formats[-1]}")
