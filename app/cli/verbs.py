# SPDX-License-Identifier: Apache-2.0
"""The command line and its verbs. Each is imported when it is called: together they take two seconds of CPU."""

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import typer

from app import __version__
from app.cli.help import SETTINGS, VerbGroup, command_of

VERBS = {
    "serve": "serve:serve",
    "explain": "explain:explain_pod",
    "doctor": "doctor:doctor",
    "inventory": "inventory:inventory",
    "usage": "usage:usage",
    "mutate": "mutate:mutate",
    "plan driver": "plan_nodes:driver",
    "plan relayout": "plan_nodes:change_layout",
    "plan mig": "plan_pods:mig",
    "plan repack": "plan_pods:repack",
    "plan right-size": "plan_pods:right_size",
    "plan node-template": "plan_nodes:find_node_template",
    "plan claims": "plan_nodes:move_to_claims",
    "plan claim-templates": "claims:claim_templates",
    "policy lint": "policies:lint",
    "policy test": "policies:run_cases",
    "policy diff": "policy_changes:diff",
    "policy replay": "policy_changes:replay",
    "policy vap": "policy_changes:vap",
    "schema": "json_schema:schema",
    "scheduler-config": "scheduler_config:scheduler_config",
    "certs issue": "certs:issue",
    "certs rotate": "certs:rotate",
    "certs show": "certs:show_",
    "certs controller": "certs:controller",
    "claims-controller": "claims:controller",
}
"""The module of app.cli and the function in it, by the words of the verb (decision 53)."""
GROUPS = {
    "plan": "Plan a change of a fleet, and see its effects on pods before it is made. Nothing is changed.",
    "policy": "Check, test, compare and export policies.",
    "certs": "Make, rotate and show serving certificates; keep those of a cluster.",
}
"""The help of a group of verbs, by its word."""


class Verbs(MutableMapping[str, Any]):
    """The commands of a group by name, in the order of VERBS; looking one up imports it. The group "" is all."""

    def __init__(self, group: str) -> None:
        self._prefix = f"{group} " if group else ""
        inner = (words.removeprefix(self._prefix) for words in VERBS if words.startswith(self._prefix))
        self._names = list(dict.fromkeys(name.partition(" ")[0] for name in inner))
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = load(self._prefix + name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class CommandLine(VerbGroup):
    """A group of verbs, of which each is imported when it is called; without `group` the whole command line."""

    def __init__(self, group: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.commands = Verbs(group)


def load(words: str) -> Any:
    """Import a verb and return its command, or return a group. Raises KeyError for unknown words."""
    if words in GROUPS:
        return CommandLine(words, name=words, help=GROUPS[words], rich_markup_mode=None)
    module, _, function = VERBS[words].partition(":")
    return command_of(getattr(import_module(f"app.cli.{module}"), function), words.rpartition(" ")[2])


app = typer.Typer(name="gpu-usher", cls=CommandLine, rich_markup_mode=None, context_settings=SETTINGS)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True)) -> None:
    """Make every GPU pod correct at admission, and place it on the right GPU at scheduling."""
    if show:
        print(__version__)
        raise typer.Exit
