# SPDX-License-Identifier: Apache-2.0
"""The command line and its verbs, each imported when it is called, as together they take two seconds of CPU.

Typer writes `--help`, with the examples (examples.txt) and exit codes of a verb below the options. Options that several
verbs share are one parameter: a frozen dataclass whose fields are Typer options.
"""

import inspect
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from app import __version__
from app.demo.notation import DEFAULT

EXAMPLES = Path(__file__).with_name("examples.txt").read_text("utf-8").splitlines()
FAILS = {
    "explain": "no node fits now",
    "doctor": "something hurts pods now; with --strict, also where there is advice",
    "mutate": "an object is denied",
    "plan driver": "pods are left that no node of the fleet could serve",
    "plan relayout": "a node cannot have the layout",
    "plan mig": "pods stay without a slice",
    "plan repack": "nothing of the kind can be freed, or a pod that waits finds no place",
    "plan node-template": "no GPU product fits",
    "plan claims": "a node cannot move, as pods on it have no equivalent claim",
    "policy lint": "there are findings",
    "policy test": "a case does not hold",
    "policy diff": "the edit hurts: a pod is newly refused, or left without any node",
    "policy replay": "a decision differs",
    "scheduler-config": "with --verify, something is dangerous or worth a warning",
    "certs show": "it is expired, not yet valid, or does not belong to its key, its CA or the name asked for",
}
"""The meaning of exit code 1, by the words of the verb."""
ERRORS = (
    "2: bad input; stderr says what was found and what is wanted. "
    "3: internal error, or a cluster or service that does not answer."
)
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""Settings of every command; lines of more than a hundred characters are hard to read."""


def examples_of(words: str) -> list[str]:
    """Return the examples of a verb."""
    return [example for example in EXAMPLES if f"{example} ".startswith(f"gpu-usher {words} ")]


def epilog(words: str) -> str:
    """Return what follows the options in the help of a verb; click does not wrap the lines after a backspace."""
    fails = f"1: {FAILS[words]}. " if words in FAILS else ""
    return "\n".join(
        ("\b", "Examples:", *(f"  {line}" for line in examples_of(words)), "", f"Exit codes: 0: fine. {fails}{ERRORS}")
    )


def expand_demo(args: list[str]) -> list[str]:
    """Replace `--demo` in a command line by the option that it is short for."""
    has_fleet = any(arg.split("=")[0] == "--demo-fleet" for arg in args)
    short = [] if has_fleet else ["--demo-fleet", DEFAULT]
    return [expanded for arg in args for expanded in (short if arg == "--demo" else [arg])]


class Verb(TyperCommand):
    """A command that takes --demo for the default sample fleet."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; a verb with its own --demo reads that itself."""
        names = {param.name for param in self.params}
        return super().parse_args(ctx, expand_demo(args) if "demo_fleet" in names and "demo" not in names else args)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb. From now on SIGINT raises KeyboardInterrupt, so that what the verb holds is given back."""
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return super().invoke(ctx)


class VerbGroup(TyperGroup):
    """A group of commands, or the whole command line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; without words it is a request for help."""
        return super().parse_args(ctx, args if args or ctx.resilient_parsing else ["--help"])


Function = Callable[..., Any]


def command_of(verb: Function, words: str) -> Any:
    """Return the command of a verb."""
    target, name = typer.Typer(add_completion=False, rich_markup_mode=None), words.rpartition(" ")[2]
    target.command(name, cls=Verb, epilog=epilog(words), context_settings=SETTINGS)(with_records(verb))
    made = typer.main.get_command(target)
    made.name, made.short_help = name, summary(words)
    return made


def with_records(verb: Function) -> Function:
    """Return a verb that Typer can read: each parameter that is a record is replaced by one option for each field.

    Fields without an option keep their defaults, and a tuple is a repeatable option. The record is made of the values
    before the verb runs, and may refuse them (BadInput).
    """
    hints = get_type_hints(verb, include_extras=True)
    options = {name: dict(_options_of(hint)) for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for name, parameter in inspect.signature(verb).parameters.items():
        parameters += (
            list(options[name].values()) if name in options else [_parameter(name, parameter.default, hints[name])]
        )

    def run(**values: Any) -> Any:
        made = {
            name: hints[name](**{field: _made(hints[name], field, values.pop(field)) for field in of_record})
            for name, of_record in options.items()
        }
        return verb(**values, **made)

    run.__doc__, run.__name__ = verb.__doc__, verb.__name__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def _options_of(record: Any) -> Iterator[tuple[str, inspect.Parameter]]:
    hints = get_type_hints(record, include_extras=True)
    for field in fields(record):
        if hasattr(hint := hints[field.name], "__metadata__"):
            many, kind = _item(hint), get_args(hint)[0]
            if many:
                kind = list[many] | None  # type: ignore[valid-type]
            elif get_origin(kind) is Literal:
                kind = str
            annotation = Annotated[kind, *hint.__metadata__]  # type: ignore[valid-type]
            yield field.name, _parameter(field.name, None if many else field.default, annotation)


def _item(hint: Any) -> Any:
    """Return the type of the items of an annotated tuple; None for another type."""
    inner = get_args(hint)[0]
    return get_args(inner)[0] if get_origin(inner) is tuple else None


def _made(record: Any, field: str, value: Any) -> Any:
    return tuple(value or ()) if _item(get_type_hints(record, include_extras=True)[field]) else value


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


VERBS = {
    "serve": "serve:serve",
    "explain": "explain:explain_pod",
    "doctor": "doctor:doctor",
    "inventory": "inventory:inventory",
    "usage": "usage:usage",
    "mutate": "mutate:mutate",
    "image": "image:image",
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
    "export admission-policies": "export:admission_policies",
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
    "policy": "Check, test and compare policies.",
    "export": "Write policies in the form of others.",
    "certs": "Make, rotate and show serving certificates; keep those of a cluster.",
}
"""The help of a group of verbs, by its word."""


class Verbs(Mapping[str, Any]):
    """The commands of a group by name, in the order of VERBS; looking one up imports it. The group "" is all."""

    def __init__(self, group: str) -> None:
        self._prefix = f"{group} " if group else ""
        inner = (words.removeprefix(self._prefix) for words in VERBS if words.startswith(self._prefix))
        self._names = list(dict.fromkeys(name.partition(" ")[0] for name in inner))

    def __getitem__(self, name: str) -> Any:
        return load(self._prefix + name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class CommandLine(VerbGroup):
    """A group of verbs, of which each is imported when it is called; without `group` the whole command line."""

    def __init__(self, group: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._prefix = f"{group} " if group else ""
        self.commands = Verbs(group)  # type: ignore[assignment]  # no verb is added to it

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """Write the list of verbs; none is imported for it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary(self._prefix + name)) for name in self.commands])


def summary(words: str) -> str:
    """Return the first sentence of the help of a verb, from the source of its module, or that of a group."""
    if words in GROUPS:
        return GROUPS[words]
    module, _, function = VERBS[words].partition(":")
    source = Path(__file__).with_name(f"{module}.py").read_text("utf-8")
    match = re.search(rf'^def {function}\(.*?"""(.*?)(?:\n\n|""")', source, re.DOTALL | re.MULTILINE)
    return " ".join(match[1].split()) if match else ""


@cache
def load(words: str) -> Any:
    """Import a verb and return its command, or return a group. Raises KeyError for unknown words."""
    if words in GROUPS:
        return CommandLine(words, name=words, help=GROUPS[words], short_help=GROUPS[words], rich_markup_mode=None)
    module, _, function = VERBS[words].partition(":")
    return command_of(getattr(import_module(f"app.cli.{module}"), function), words)


app = typer.Typer(name="gpu-usher", cls=CommandLine, rich_markup_mode=None, context_settings=SETTINGS)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True)) -> None:
    """Make every GPU pod correct at admission, and place it on the right GPU at scheduling."""
    if show:
        print(__version__)
        raise typer.Exit
