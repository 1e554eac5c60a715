# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher`: the entry point of the command line; here an error becomes an exit code.

0 is success, 1 a failed check, 2 bad input, 3 our own failure.
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
    """The group of all verbs; the module of a verb is imported when the verb is called."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.commands = Verbs()


app = typer.Typer(
    name="gpu-usher",
    help="Make every GPU pod correct at admission, and place it on the right GPU at scheduling.",
    no_args_is_help=True,
    cls=CommandLine,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True)) -> None:
    """Make every GPU pod correct at admission, and place it on the right GPU at scheduling."""
    if show:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run a verb; an expected error is printed as one line on stderr, with its remedy."""
    try:
        app()
    except UsherError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, BadInput) else 3)


if __name__ == "__main__":
    main()
