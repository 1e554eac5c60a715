# SPDX-License-Identifier: Apache-2.0
"""Every command of the command line, as a walk finds it: a new verb is in the tests without being named there."""

from collections.abc import Iterator
from typing import Any

import typer.main

from app.cli.main import app

Command = Any
"""Typer's, of which the class is private."""


def root() -> Command:
    """Make the command line."""
    return typer.main.get_command(app)


def every(command: Command | None = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Walk all verbs, groups and sub-verbs: the words after `gpu-usher`, and the command; the root without words."""
    command = command or root()
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from every(inner, (*path, name))


def verbs() -> dict[str, Command]:
    """Give what can be run, by its words with `-` between."""
    return {"-".join(path): each for path, each in every() if not hasattr(each, "commands")}


def output_of(command: Command) -> str | None:
    """Give the help of the option `-o`; None where there is none."""
    return next((each.help for each in command.params if "-o" in each.opts), None)
