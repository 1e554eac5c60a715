# SPDX-License-Identifier: Apache-2.0
"""Every command of the command line, found by a walk, so that the tests cover a new verb without naming it."""

from collections.abc import Iterator
from typing import Any

import typer.main

from app.cli.verbs import app

Command = Any
"""A command of Typer, whose own class is private."""


def root() -> Command:
    """Make the command line."""
    return typer.main.get_command(app)


def every(command: Command | None = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Yield the words after `gpu-usher` and the command for the root (no words), all groups, verbs and sub-verbs."""
    command = command or root()
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from every(inner, (*path, name))


def verbs() -> dict[str, Command]:
    """Map the words of each runnable command, joined by `-`, to the command."""
    return {"-".join(path): command for path, command in every() if not hasattr(command, "commands")}


def output_of(command: Command) -> str | None:
    """Return the help of the option `-o`, or None if there is none."""
    return next((option.help for option in command.params if "-o" in option.opts), None)
