# SPDX-License-Identifier: Apache-2.0
"""The command line and its verbs. Each is imported when it is called: together they take two seconds of CPU."""

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import typer
import typer.main

from app import __version__
from app.cli.help import SETTINGS, VerbGroup, command

VERBS = {
    "serve": "serve:serve",
    "explain": "explain:explain_pod",
    "doctor": "doctor:doctor",
    "inventory": "inventory:inventory",
    "mutate": "mutate:mutate",
    "diff": "diff:diff",
    "replay": "replay:replay",
    "usage": "usage:usage",
    "lint": "lint:lint",
    "test": "policy_tests:run_cases",
    "schema": "json_schema:schema",
    "scheduler-config": "scheduler_config:scheduler_config",
    "certs": "certs:certs",
    "export": "export:export",
    "claims": "claims:claims",
    "whatif": "whatif:whatif",
    "advise": "advise:advice",
}
"""The module of app.cli and the function in it, or the group of commands, by verb."""


class Verbs(MutableMapping[str, Any]):
    """The commands by name, in the order of VERBS; looking one up imports it."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


def load(name: str) -> Any:
    """Import a verb and return its command. Raises KeyError for an unknown name."""
    module, _, attribute = VERBS[name].partition(":")
    target = getattr(import_module(f"app.cli.{module}"), attribute)
    if not isinstance(target, typer.Typer):
        verb, target = target, typer.Typer(add_completion=False, rich_markup_mode=None)
        command(target, name)(verb)
    loaded = typer.main.get_command(target)
    loaded.name = name
    return loaded


class CommandLine(VerbGroup):
    """The group of all verbs; the module of a verb is imported when the verb is called."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.commands = Verbs()


app = typer.Typer(name="gpu-usher", cls=CommandLine, rich_markup_mode=None, context_settings=SETTINGS)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True)) -> None:
    """Make every GPU pod correct at admission, and place it on the right GPU at scheduling."""
    if show:
        print(__version__)
        raise typer.Exit
