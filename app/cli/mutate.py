# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher mutate`: shows what admission makes of a Pod or a workload, as YAML or as a diff, with its messages."""

import difflib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer
import yaml
from rich.console import Console
from rich.markup import escape

from app.admission.preview import Preview, preview, templates_of_new_object
from app.admission.reviewed_pod import ReviewContext
from app.cli.explained_objects import as_pods
from app.cli.options import GovernedFleet
from app.cli.output import show
from app.cli.source import POLICY_KINDS, home_of, read_governed
from app.cluster.files import read_snapshot_file
from app.cluster.snapshot import read_snapshot
from app.explain.survey import read_scheduled_pod
from app.kube.admission_objects import ADMISSION_KINDS
from app.kube.api_kinds import DRA
from app.values.errors import BadInput
from app.values.json_members import JSONObject, Object, member
from app.world.world import World, world_of

REFUSED = "the API server refuses it: "
COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True)
class MutatedFile:
    """The reviewed objects of a file, in its order."""

    objects: tuple[Preview, ...]


def mutate(*, file: str, fleet: GovernedFleet, namespace: str | None, registry: bool, diff: bool, output: str) -> None:
    objects = read_file(file)
    where = home_of(fleet, namespace, default=True)
    _, state, rules = read_governed(fleet, optional=(*ADMISSION_KINDS, *DRA, *POLICY_KINDS))
    workloads = state.knowledge.workloads
    if not any(templates_of_new_object(document, workloads) for document in objects):
        kinds = ", ".join(sorted({str(document.get("kind")) for document in objects})) or "it is empty"
        raise BadInput(f"{file}: no Pod and no workload in it ({kinds}), wants one")
    if registry:
        from app.cli.image import read_images

        read_images(state, [each.pod for one in objects for each in as_pods(one, namespace_of(one, where), workloads)])
    context, creating = ReviewContext(world_of(state, rules)), replace(world_of(state, rules), judges_creation=True)
    previews = {
        index: _preview(document, namespace_of(document, where), creating, context)
        for index, document in enumerate(objects)
        if templates_of_new_object(document, workloads)
    }
    result = MutatedFile(tuple(previews.values()))
    after = [previews[index].object if index in previews else document for index, document in enumerate(objects)]
    show(result, output, lambda console: _show(console, result, objects, after, diff))
    raise typer.Exit(0 if all(reviewed.allowed for reviewed in previews.values()) else 1)


def _preview(document: JSONObject, namespace: str, creating: World, context: ReviewContext) -> Preview:
    """Preview one object of a file, and say first what the API server itself refuses.

    Raises BadInput with the object's name.
    """
    try:
        shown = preview(document, namespace, creating.state.namespaces.labels, context)
        pods = (each.pod for each in as_pods(document, namespace, context.world.knowledge.workloads) if shown.allowed)
        refusals = (each for pod in pods for each in read_scheduled_pod(pod, creating, admit=True).api_refusals)
        refused = dict.fromkeys(f"{REFUSED}{each.message}" for each in refusals)
        return replace(shown, warnings=(*refused, *shown.warnings))
    except BadInput as error:
        name = (member(document, "metadata", dict, "") or {}).get("name")
        raise BadInput(f"{document.get('kind', 'Pod')} {namespace}/{name}: {error}") from error


def read_file(file: str, wants: str = "wants YAML or JSON of objects") -> list[dict[str, Any]]:
    """Read the objects of a file, `-` for stdin. `wants` ends the message about one that cannot be read.

    Raises SnapshotError.
    """
    data = sys.stdin.buffer.read() if file == "-" else read_snapshot_file(Path(file), wants)
    return read_snapshot(file, data)


def namespace_of(document: JSONObject, namespace: str) -> str:
    """Return the namespace of an object, `namespace` if it has none."""
    metadata = member(document, "metadata", dict, "") or {}
    return member(metadata, "namespace", str, "metadata.") or namespace


def _show(console: Console, result: MutatedFile, before: list[Object], after: list[JSONObject], diff: bool) -> None:
    """Print objects or their diff to stdout, and messages about them to stderr."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    for reviewed in result.objects:
        for style, line in _messages(reviewed):
            errors.print(f"[{style}]{escape(line)}[/]")
    if diff:
        for line in difflib.unified_diff(_lines(before), _lines(after), "as submitted", "as admitted", lineterm=""):
            colour = COLOURS.get(line[:1], "none")
            console.print(escape(line), style=colour)
    elif all(reviewed.allowed for reviewed in result.objects):
        print(_text(after), end="")


def _messages(reviewed: Preview) -> Iterator[tuple[str, str]]:
    yield from (("red", f"{reviewed.what}: {text}") for text in reviewed.warnings if text.startswith(REFUSED))
    if not reviewed.allowed:
        yield "red", f"{reviewed.what}: denied: {reviewed.message}"
    elif not (reviewed.actions or reviewed.patch or reviewed.pods):
        yield "dim", f"{reviewed.what}: nothing to do"
    else:
        also = ", and each pod is patched when it is created" if reviewed.pods else ""
        yield (
            "green",
            f"{reviewed.what}: {'patched' if reviewed.patch else 'allowed as it is' if also else 'allowed'}{also}",
        )
    yield from (
        ("yellow" if kind == "warning" else "none", f"  {kind}: {text}")
        for kind, text in reviewed.messages()
        if not text.startswith(REFUSED)
    )


def _lines(objects: list[Any]) -> list[str]:
    return _text(objects).splitlines()


def _text(objects: list[Any]) -> str:
    return yaml.safe_dump_all(objects, sort_keys=False, width=120)
