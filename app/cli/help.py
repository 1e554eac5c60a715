# SPDX-License-Identifier: Apache-2.0
"""`--help` as a page of a manual: below what a verb does and its options, the sections of app/cli/manual.py."""

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


def sampled(args: list[str]) -> list[str]:
    """Write `--demo` in a command line as the option that it is short for."""
    named = any(each.split("=")[0] == "--demo-fleet" for each in args)
    short = [] if named else ["--demo-fleet", DEFAULT]
    return [word for each in args for word in (short if each == "--demo" else [each])]


class Verb(TyperCommand):
    """A command whose help ends with its page of the manual, and that takes --demo for the default sample fleet."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; a verb that has a --demo of its own reads that itself."""
        names = {each.name for each in self.params}
        return super().parse_args(ctx, sampled(args) if "demo_fleet" in names and "demo" not in names else args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, and the page."""
        super().format_help(ctx, formatter)
        _print(sections(words_of(ctx), self.params))


class VerbGroup(TyperGroup):
    """A group of commands, or the whole command line; its examples are the first of each of its commands."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, and the examples."""
        super().format_help(ctx, formatter)
        _print(group_sections(words_of(ctx)))


Sections = Iterator[tuple[str, list[str]]]
"""Heading and lines; a line is not broken where it can be copied."""


def words_of(ctx: Any) -> str:
    """Give the words of a command, without the program's own."""
    return f"{words_of(ctx.parent)} {ctx.info_name}".strip() if ctx.parent else ""


def sections(words: str, params: list[Any]) -> Sections:
    """Write the sections of a verb."""
    page = MANUAL[words]
    yield "Reads", [page.reads]
    yield "Examples", list(page.examples)
    codes = [("0", "fine"), ("1", page.fails), *ERRORS]
    yield "Exit codes", [f"{code}  {means}" for code, means in codes if means]
    variables = environment(page, params)
    widest = max(map(len, variables))
    yield "Environment", [f"{name:{widest}}  {means}" for name, means in variables.items()]
    yield "See also", [", ".join(f"gpu-usher {each}" for each in page.see)] if page.see else []


def environment(page: ManualPage, params: list[Any]) -> dict[str, str]:
    """Name the variables that a verb heeds, and what they stand for."""
    options = {each.envvar: f"as {each.opts[0]}" for each in params if getattr(each, "envvar", None)}
    return options | dict(page.environment or {}) | TERMINAL


def group_sections(words: str) -> Sections:
    """Write the sections of a group: one example of each command in it."""
    inner = [page for name, page in MANUAL.items() if f"{name} ".startswith(f"{words} ".lstrip())]
    yield "Examples", [page.examples[0] for page in inner]
    yield (
        "Exit codes",
        ["0  fine", "1  a check failed; each command says which"] + [f"{code}  {means}" for code, means in ERRORS],
    )


def _print(found: Sections) -> None:
    """Print sections. Examples and names of variables stay on one line each, so that they can be copied and found."""
    console = Console(highlight=False)
    for heading, lines in found:
        if lines:
            console.print(f" [bold]{heading}[/]")
        for line in lines:
            if heading == "Examples":
                console.print(f"   [cyan]{escape(line)}[/]", soft_wrap=True)
            else:
                console.print(Padding(escape(line), (0, 1, 0, 3), expand=False))
        console.print()
