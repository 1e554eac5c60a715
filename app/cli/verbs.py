# SPDX-License-Identifier: Apache-2.0
"""The command line and its verbs, each imported when it is called: together they take two seconds of CPU.

`--help` is a manual page: below what a verb does and its options, the sections of app/cli/manual.py. Typer's own tables
cut names of options and variables where a terminal is narrow, so that pages are written here. Options that several
verbs share are one parameter: a frozen dataclass whose fields are Typer options.
"""

import inspect
import re
import signal
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from app import __version__
from app.cli.manual import MANUAL, ManualPage
from app.demo.notation import DEFAULT

ERRORS = (("2", "bad input; stderr says what was found and what is wanted"),
          ("3", "internal error, or a cluster or service that does not answer"))  # fmt: skip
TERMINAL = {"NO_COLOR": "no colour on a terminal either", "COLUMNS": "width of the text"}
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""Settings of every command; lines of more than a hundred characters are hard to read."""

WIDEST_NAMES = 30
"""Columns for the names of options beside their texts."""
OPTION_NAME = re.compile(r"--?[\w-]+|[,/<> ]")
VALUES = {"path": "PATH", "int": "NUMBER", "float": "NUMBER"}
"""Words for the value of an option, by a part of the name of its type; TEXT for others."""


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

    def invoke(self, ctx: Any) -> Any:
        """Run the verb. From now on SIGINT raises KeyboardInterrupt, so that what the verb holds is given back."""
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help and the manual page."""
        _write_page(self, ctx, formatter, sections(command_words(ctx), self.params))


class VerbGroup(TyperGroup):
    """A group of commands, or the whole command line; its examples are the first of each command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; without words it is a request for help."""
        return super().parse_args(ctx, args if args or ctx.resilient_parsing else ["--help"])

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, the commands with the first sentences of theirs, and the examples."""
        _write_page(self, ctx, formatter, group_sections(command_words(ctx)))


Sections = Iterator[tuple[str, list[str]]]
"""Heading and lines; examples are not wrapped, so that they can be copied."""


def command_words(ctx: Any) -> str:
    """Return the words of a command, without the program's name."""
    return f"{command_words(ctx.parent)} {ctx.info_name}".strip() if ctx.parent else ""


def sections(words: str, params: list[Any]) -> Sections:
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


def _write_page(command: Any, ctx: Any, formatter: Any, help_sections: Sections) -> None:
    """Write a page: usage, text, arguments, options, commands and further sections."""
    width = formatter.width
    command.format_usage(ctx, formatter)
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        formatter.write(f"\n{_filled(paragraph, width)}")
    for param in command.params:
        param.show_envvar = False  # the section Environment has the variables
    params = [(param, param.get_help_record(ctx)) for param in command.get_params(ctx)]
    rows = [(_names(param, record[0]), record[1], param.param_type_name) for param, record in params if record]
    inner = [(name, inner.help.partition("\n\n")[0]) for name, inner in getattr(command, "commands", {}).items()]
    for heading, kind in (("Arguments", "argument"), ("Options", "option")):
        _write_rows(formatter, heading, [(names, text) for names, text, of_kind in rows if of_kind == kind])
    _write_rows(formatter, "Commands", inner)
    for heading, lines in help_sections:
        formatter.write(f"\n{heading}:\n" if lines else "")
        for line in lines:
            formatter.write(_continued(line, width) if heading == "Examples" else _filled(line, width))


def _names(param: Any, typers: str) -> str:
    """Return how a parameter is written: its names, and a word for its value. `typers` is how Typer writes it."""
    if param.param_type_name == "argument":
        return str(param.name).upper()
    names = ", ".join(sorted((*param.opts, *param.secondary_opts), key=len))
    kind = OPTION_NAME.sub("", typers.lower())
    return f"{names} {next((word for name, word in VALUES.items() if name in kind), 'TEXT')}" if kind else names


def _write_rows(formatter: Any, heading: str, rows: list[tuple[str, str]]) -> None:
    """Write names with their texts beside them; a long name has its text below."""
    formatter.write(f"\n{heading}:\n" if rows else "")
    column = min(max((len(names) for names, _ in rows), default=0) + 4, WIDEST_NAMES)
    for names, text in rows:
        beside = len(names) + 4 <= column
        formatter.write("" if beside else f"  {names}\n")
        formatter.write(_filled(text, formatter.width, f"  {names:<{column - 2}}" if beside else " " * column, column))


def _filled(text: str, width: int, first: str = "  ", indent: int = 2) -> str:
    """Wrap a paragraph once; names with hyphens and variables stay whole, so that they can be searched and copied."""
    wrapper = textwrap.TextWrapper(width, initial_indent=first, subsequent_indent=" " * indent)
    wrapper.break_on_hyphens = wrapper.break_long_words = False
    return wrapper.fill(text.replace("\n", " ")) + "\n"


def _continued(example: str, width: int) -> str:
    """Write an example in lines of at most `width` characters, joined by backslashes as shells read them."""
    lines = ["  "]
    for word in example.split(" "):
        if len(lines[-1]) + len(word) + 3 > width:
            lines.append("     ")
        lines[-1] += f"{' ' * bool(lines[-1].strip())}{word}"
    return " \\\n".join(lines) + "\n"


Function = Callable[..., Any]


def command_of(verb: Function, name: str) -> Any:
    """Return the command of a verb; its help ends with its manual page."""
    target = typer.Typer(add_completion=False, rich_markup_mode=None)
    target.command(name, cls=Verb)(with_records(verb))
    made = typer.main.get_command(target)
    made.name = name
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
        self.commands = Verbs(group)  # type: ignore[assignment]  # no verb is added to it


@cache
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
