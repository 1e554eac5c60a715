# SPDX-License-Identifier: Apache-2.0
"""`--help` as a manual page: below what a verb does and its options, the sections of app/cli/manual.py."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from typer.core import TyperCommand, TyperGroup

from app.cli.manual import MANUAL, ManualPage
from app.demo.notation import DEFAULT

ERRORS = (("2", "bad input; stderr says what was found and what is wanted"),
          ("3", "our own fault, or a cluster or service that does not answer"))  # fmt: skip
TERMINAL = {"NO_COLOR": "no colour on a terminal either", "COLUMNS": "width of the text"}


def expand_demo(args: list[str]) -> list[str]:
    """Replace `--demo` in a command line by the option that it is short for."""
    has_fleet = any(arg.split("=")[0] == "--demo-fleet" for arg in args)
    short = [] if has_fleet else ["--demo-fleet", DEFAULT]
    return [expanded for arg in args for expanded in (short if arg == "--demo" else [arg])]


class Verb(TyperCommand):
    """A command whose help ends with its manual page. It takes --demo for the default sample fleet."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; a verb with its own --demo reads that itself."""
        names = {param.name for param in self.params}
        return super().parse_args(ctx, expand_demo(args) if "demo_fleet" in names and "demo" not in names else args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help and the manual page."""
        super().format_help(ctx, formatter)
        _print(sections(command_words(ctx), self.params))


class VerbGroup(TyperGroup):
    """A group of commands, or the whole command line; its examples are the first of each command."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help and the examples."""
        super().format_help(ctx, formatter)
        _print(group_sections(command_words(ctx)))


Sections = Iterator[tuple[str, list[str]]]
"""Heading and lines; examples are not wrapped, so that they can be copied."""


def command_words(ctx: Any) -> str:
    """Return the words of a command, without the program's name."""
    return f"{command_words(ctx.parent)} {ctx.info_name}".strip() if ctx.parent else ""


def sections(words: str, params: list[Any]) -> Sections:
    """Yield the sections of a verb."""
    page = MANUAL[words]
    yield "Reads", [page.reads]
    yield "Examples", list(page.examples)
    codes = [("0", "fine"), ("1", page.fails), *ERRORS]
    yield "Exit codes", [f"{code}  {meaning}" for code, meaning in codes if meaning]
    variables = environment(page, params)
    widest = max(map(len, variables))
    yield "Environment", [f"{name:{widest}}  {meaning}" for name, meaning in variables.items()]
    yield "See also", [", ".join(f"gpu-usher {command}" for command in page.see)] if page.see else []


def environment(page: ManualPage, params: list[Any]) -> dict[str, str]:
    """Return the environment variables of a verb with their meanings."""
    options = {param.envvar: f"as {param.opts[0]}" for param in params if getattr(param, "envvar", None)}
    return options | dict(page.environment or {}) | TERMINAL


def group_sections(words: str) -> Sections:
    """Yield the sections of a group: one example of each command in it."""
    inner = [page for name, page in MANUAL.items() if f"{name} ".startswith(f"{words} ".lstrip())]
    yield "Examples", [page.examples[0] for page in inner]
    yield (
        "Exit codes",
        ["0  fine", "1  a check failed; each command says which"] + [f"{code}  {meaning}" for code, meaning in ERRORS],
    )


def _print(help_sections: Sections) -> None:
    """Print sections; examples stay on one line, so that they can be copied."""
    console = Console(highlight=False)
    for heading, lines in help_sections:
        if lines:
            console.print(f" [bold]{heading}[/]")
        for line in lines:
            if heading == "Examples":
                console.print(f"   [cyan]{escape(line)}[/]", soft_wrap=True)
            else:
                console.print(Padding(escape(line), (0, 1, 0, 3), expand=False))
        console.print()
