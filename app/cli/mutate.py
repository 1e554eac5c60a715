# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher mutate`: what admission would make of a Pod or a workload, as YAML or as a diff, and what it would say."""

import difflib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.markup import escape

from app.admission.preview import Preview, preview, target_of_new_object
from app.admission.review import ReviewContext
from app.cli.output import Output, show
from app.cli.source import DemoFleet, Kubeconfig, Policies, Snapshots, policies_in, read_objects_of, state_of
from app.cluster.files import read_snapshot_file
from app.cluster.snapshot import read_snapshot
from app.values.errors import BadInput
from app.values.json_members import member

COLOURS = {"+": "green", "-": "red", "@": "cyan"}
Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MutatedFile:
    """All objects of the file that are reviewed, in its order."""

    objects: tuple[Preview, ...]


def mutate(
    file: Annotated[str, typer.Option("--filename", "-f", help="YAML or JSON of Pods and workloads; - is stdin.")],
    snapshot: Snapshots = None,
    kubeconfig: Kubeconfig = None,
    demo_fleet: DemoFleet = None,
    policies: Policies = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="For objects that name none.")] = "default",
    diff: Annotated[bool, typer.Option("--diff", help="Show what changes instead of the whole object.")] = False,
    output: Output = "text",
) -> None:
    """Show what admission would do to a Pod, or to the template of a workload, if it were created now.

    Stdout has the objects as they would be let in, as YAML that kubectl takes, or with --diff what changes; stderr has
    what was done and what the user would be told. Objects of other kinds pass through. Exit 1 where one is denied.
    """
    objects = read_file(file)
    if not any(map(target_of_new_object, objects)):
        raise BadInput(f"{file}: no Pod and no workload in it, wants one")
    fleet = read_objects_of(snapshot, kubeconfig, demo_fleet)
    state = state_of(fleet)
    rules = policies_in(fleet, policies, state)
    setting = ReviewContext(rules, state.fleet(), state.knowledge, claimed=state.claimed)
    found = {
        index: _previewed(each, namespace_of(each, namespace), state.namespace_labels, setting)
        for index, each in enumerate(objects)
        if target_of_new_object(each) is not None
    }
    said = MutatedFile(tuple(found.values()))
    after = [found[index].object if index in found else each for index, each in enumerate(objects)]
    show(said, output, lambda console: _show(console, said, objects, after, diff))
    raise typer.Exit(0 if all(each.allowed for each in found.values()) else 1)


def _previewed(
    document: Object, namespace: str, labels_of: Callable[[str], Mapping[str, str]], setting: ReviewContext
) -> Preview:
    """Preview one object of several.

    Raises BadInput that names the object.
    """
    try:
        return preview(document, namespace, labels_of, setting)
    except BadInput as error:
        name = (member(document, "metadata", dict, "") or {}).get("name")
        raise BadInput(f"{document.get('kind', 'Pod')} {namespace}/{name}: {error}") from error


def read_file(file: str) -> list[dict[str, Any]]:
    """Read the objects of a file, `-` for stdin.

    Raises SnapshotError.
    """
    data = sys.stdin.buffer.read() if file == "-" else read_snapshot_file(Path(file))
    return read_snapshot(file, data)


def namespace_of(document: Object, namespace: str) -> str:
    """Give the namespace of an object; the other where it names none."""
    metadata = member(document, "metadata", dict, "") or {}
    return member(metadata, "namespace", str, "metadata.") or namespace


def _show(console: Console, said: MutatedFile, before: list[dict[str, Any]], after: list[Object], diff: bool) -> None:
    """Print objects or their diff to stdout, and to stderr what is said of them."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    for each in said.objects:
        for style, line in _said(each):
            errors.print(f"[{style}]{escape(line)}[/]")
    if diff:
        for line in difflib.unified_diff(_lines(before), _lines(after), "as it came", "as it is let in", lineterm=""):
            colour = COLOURS.get(line[:1], "none")
            console.print(escape(line), style=colour)
    elif all(each.allowed for each in said.objects):
        print(_text(after), end="")


def _said(each: Preview) -> Iterator[tuple[str, str]]:
    if not each.allowed:
        yield "red", f"{each.what}: denied: {each.message}"
    elif not (each.actions or each.patch):
        yield "dim", f"{each.what}: nothing to do"
    else:
        yield "green", f"{each.what}: " + ("patched" if each.patch else "allowed")
    yield from (("none", f"  done: {action}") for action in each.actions)
    yield from (("yellow", f"  warning: {warning}") for warning in each.warnings)


def _lines(objects: list[Any]) -> list[str]:
    return _text(objects).splitlines()


def _text(objects: list[Any]) -> str:
    return yaml.safe_dump_all(objects, sort_keys=False, width=120)
