# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher`: the verbs, and the one place where an error becomes an exit code.

0 fine, 1 a check failed, 2 bad input, 3 our own fault.
"""

import sys
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from app import __version__
from app.cli.help import VerbGroup
from app.cli.verbs import Verbs
from app.values.errors import BadInput, UsherError


class CommandLine(VerbGroup):
    """All verbs; the module of one is imported when it is called."""

    def __init__(self, **words: Any) -> None:
        super().__init__(**words)
        self.commands = Verbs()


app = typer.Typer(
    name="gpu-usher",
    help="Make every GPU pod correct at admission, and seat it on the right GPU at scheduling.",
    no_args_is_help=True,
    cls=CommandLine,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True)) -> None:
    """Make every GPU pod correct at admission, and seat it on the right GPU at scheduling."""
    if show:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run a verb; an error of ours is one line on stderr, with the remedy it carries."""
    try:
        app()
    except UsherError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, BadInput) else 3)


if __name__ == "__main__":
    main()
