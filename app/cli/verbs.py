# SPDX-License-Identifier: Apache-2.0
"""The command line: its verbs, and the module of each, which is imported when the verb runs, not for its `--help`.

Options that several verbs share are one parameter: a frozen dataclass whose fields are Typer options.
"""

import inspect
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from app import __version__
from app.cli import fleet_commands as fleet
from app.cli import service_commands as service
from app.demo.notation import DEFAULT

EXAMPLES = Path(__file__).with_name("examples.txt").read_text("utf-8").splitlines()
ERRORS = (
    "2: bad input; stderr says what was found and what is wanted. "
    "3: internal error, or a cluster or service that does not answer."
)
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""Settings of every command; lines of more than a hundred characters are hard to read."""
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class VerbRow:
    """A verb: its command line, `module:function` of app.cli that does the work, and the meaning of exit code 1."""

    declared: Function
    work: str
    fails: str = ""

    def function(self) -> Function:
        """Import what does the work; it takes the declared options by name."""
        module, _, name = self.work.partition(":")
        work: Function = getattr(import_module(f"app.cli.{module}"), name)
        return work


def epilog(words: str, row: VerbRow) -> str:
    """Return what follows the options in the help of a verb; click does not wrap the lines after a backspace."""
    examples = (f"  {line}" for line in EXAMPLES if f"{line} ".startswith(f"gpu-usher {words} "))
    fails = f"1: {row.fails}. " * bool(row.fails)
    return "\n".join(("\b", "Examples:", *examples, "", f"Exit codes: 0: fine. {fails}{ERRORS}"))


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


def with_records(row: VerbRow) -> Function:
    """Return a verb that Typer can read: each parameter that is a record is replaced by one option for each field.

    Fields without an option keep their defaults, and a tuple is a repeatable option. The record is made of the values
    before the verb runs, and may refuse them (BadInput).
    """
    verb = row.declared
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
        return row.function()(**values, **made)

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
    "serve": VerbRow(service.serve, "serve:serve"),
    "explain": VerbRow(fleet.explain, "explain:explain_pod", "no node fits now"),
    "doctor": VerbRow(
        fleet.doctor, "doctor:doctor", "something hurts pods now; with --strict, also where there is advice"
    ),
    "inventory": VerbRow(fleet.inventory, "inventory:inventory"),
    "usage": VerbRow(fleet.usage, "usage:usage"),
    "mutate": VerbRow(fleet.mutate, "mutate:mutate", "an object is denied"),
    "image": VerbRow(fleet.image, "image:image"),
    "plan driver": VerbRow(
        fleet.plan_driver, "plan_nodes:driver", "pods are left that no node of the fleet could serve"
    ),
    "plan relayout": VerbRow(fleet.plan_relayout, "plan_nodes:change_layout", "a node cannot have the layout"),
    "plan mig": VerbRow(fleet.plan_mig, "plan_pods:mig", "pods stay without a slice"),
    "plan repack": VerbRow(
        fleet.plan_repack, "plan_pods:repack", "nothing of the kind can be freed, or a pod that waits finds no place"
    ),
    "plan right-size": VerbRow(fleet.plan_right_size, "plan_pods:right_size"),
    "plan node-template": VerbRow(fleet.plan_node_template, "plan_nodes:find_node_template", "no GPU product fits"),
    "plan claims": VerbRow(
        fleet.plan_claims, "plan_nodes:move_to_claims", "a node cannot move, as pods on it have no equivalent claim"
    ),
    "plan claim-templates": VerbRow(fleet.plan_claim_templates, "claims:claim_templates"),
    "policy lint": VerbRow(service.policy_lint, "policies:lint", "there are findings"),
    "policy test": VerbRow(service.policy_test, "policies:run_cases", "a case does not hold"),
    "policy diff": VerbRow(
        service.policy_diff, "policy_changes:diff", "the edit hurts: a pod is newly refused, or left without any node"
    ),
    "policy replay": VerbRow(service.policy_replay, "policy_changes:replay", "a decision differs"),
    "export admission-policies": VerbRow(service.export_admission_policies, "made_texts:admission_policies"),
    "schema": VerbRow(service.schema, "made_texts:schema"),
    "scheduler-config": VerbRow(
        service.scheduler_config,
        "scheduler_config:scheduler_config",
        "with --verify, something is dangerous or worth a warning",
    ),
    "certs issue": VerbRow(service.certs_issue, "certs:issue"),
    "certs rotate": VerbRow(service.certs_rotate, "certs:rotate"),
    "certs show": VerbRow(
        service.certs_show,
        "certs:show_",
        "it is expired, not yet valid, or does not belong to its key, its CA or the name asked for",
    ),
    "certs controller": VerbRow(service.certs_controller, "certs:controller"),
    "claims-controller": VerbRow(service.claims_controller, "claims:controller"),
}
"""By the words of the verb, in the order of the help (decision 53)."""
GROUPS = {
    "plan": "Plan a change of a fleet, and see its effects on pods before it is made. Nothing is changed.",
    "policy": "Check, test and compare policies.",
    "export": "Write policies in the form of others.",
    "certs": "Make, rotate and show serving certificates; keep those of a cluster.",
}
"""The help of a group of verbs, by its word."""


app = typer.Typer(name="gpu-usher", cls=VerbGroup, rich_markup_mode=None, context_settings=SETTINGS)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True)) -> None:
    """Make every GPU pod correct at admission, and place it on the right GPU at scheduling."""
    if show:
        print(__version__)
        raise typer.Exit


def _add_verbs() -> None:
    """Add the verbs and their groups to the command line, in the order of VERBS."""
    groups: dict[str, typer.Typer] = {"": app}
    for words, row in VERBS.items():
        group, _, name = words.rpartition(" ")
        if group not in groups:
            groups[group] = typer.Typer(
                cls=VerbGroup, rich_markup_mode=None, help=GROUPS[group], short_help=GROUPS[group]
            )
            app.add_typer(groups[group], name=group, context_settings=SETTINGS)
        groups[group].command(
            name,
            cls=Verb,
            short_help=" ".join((row.declared.__doc__ or "").partition("\n\n")[0].split()),
            epilog=epilog(words, row),
            context_settings=SETTINGS,
        )(with_records(row))


_add_verbs()
