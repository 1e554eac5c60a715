# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher policy diff` and `replay`: what other policies change."""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from app.admission.reviewed_pod import PodForm, ReviewContext
from app.api.decision_replay import DECISION_MEMBERS, DifferingDecision, Line, read_lines, replay_decisions
from app.cli.mutate import read_file
from app.cli.options import Fleet
from app.cli.output import show, show_count
from app.cli.source import Objects, read, state_of, unfinished_pods
from app.cluster.policy_watch import PolicyBook
from app.cluster.snapshot_policies import holds_policies, policies_of
from app.explain.fleet_placements import FleetPlacements
from app.explain.policy_diff import (
    HARMFUL,
    ComparedPod,
    Difference,
    Differences,
    PodDifference,
    PolicySide,
    compare_policies,
    without_cluster_fields,
)
from app.kube.api_kinds import DRA
from app.policy.compiled import PolicySet
from app.policy.load import MOUNTED
from app.server.composition import build
from app.server.service import Service
from app.settings import Settings, filter_answer_of
from app.telemetry.logs import today
from app.values.errors import BadInput, MalformedPod
from app.values.reasons import counted
from app.world.state import State
from app.world.world import world_of

LINES_SHOWN = 20
Logs = Annotated[list[Path], typer.Argument(help="Files of serve --decision-log, the oldest first.")]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay. `other_policies` counts lines recorded under other policies than those of the replay."""

    lines: int
    other_policies: int
    differing: tuple[DifferingDecision, ...]


def replay(
    *,
    logs: list[Path],
    snapshot: list[Path] | None,
    demo_fleet: str | None,
    policies: Path | None,
    recount: bool,
    filter_answer: str,
    output: str,
) -> None:
    service = offline_service(snapshot, demo_fleet, policies, recount, filter_answer)
    lines = read_logs(logs)
    other = sum(line.get("policy_hash", "") not in ("", service.policies.hash) for line in lines)
    with show_count(replay_decisions(lines, service), "deciding again", len(lines)) as differences:
        differing = tuple(difference for difference in differences if difference is not None)
        result = ReplayResult(len(lines), other, differing)
    show(result, output, lambda console: _show_replay(console, result))
    raise typer.Exit(1 if result.differing else 0)


def offline_service(
    snapshots: list[Path] | None,
    demo_fleet: str | None,
    policies: Path | None,
    recount: bool = True,
    filter_answer: str = "shortlist",
) -> Service:
    """Build the service with a snapshot or sample fleet, without listeners and without files left behind.

    Raises BadInput.
    """
    if not (snapshots or demo_fleet):
        raise BadInput("got no fleet, wants --snapshot FILE or --demo-fleet NAME")
    with tempfile.TemporaryDirectory() as folder:
        return build(
            Settings(
                demo=bool(demo_fleet),
                demo_fleet=demo_fleet or "",
                snapshots=tuple(snapshots or ()),
                policies=policies,
                recount="true" if recount else "false",
                filter_answer=filter_answer_of(filter_answer),
                certs=Path(folder),
            )
        )


def read_logs(logs: list[Path]) -> list[Line]:
    """Read decision logs in order.

    Raises BadInput.
    """
    return list(chain.from_iterable(map(_read_log, logs)))


def _read_log(path: Path) -> Iterator[Line]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from read_lines(str(path), file)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {error}: wants a file of serve --decision-log") from error


def _show_replay(console: Console, result: ReplayResult) -> None:
    for difference in result.differing[:LINES_SHOWN]:
        title = f"[yellow]line {difference.line}[/] [bold]{difference.verb}[/] {escape(difference.pod)}"
        console.print(f"{title}: {escape(_change(difference))}")
    if len(result.differing) > LINES_SHOWN:
        console.print(f"and {len(result.differing) - LINES_SHOWN} more; -o json has all of them")
    if result.other_policies:
        console.print(f"[dim]{counted(result.other_policies, 'decision')} recorded under other policies[/]")
    console.print(f"{counted(result.lines, 'decision')}: {len(result.differing) or 'none'} different now")


def _change(difference: DifferingDecision) -> str:
    parts = [
        f"{key} {_words(difference.was[key])}, now {_words(difference.now[key])}"
        for key in DECISION_MEMBERS
        if key != "answer" and difference.was[key] != difference.now[key]
    ]
    return "; ".join(parts) or "another answer in detail"


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{code} {count}" for code, count in sorted(value.items())) or "none"
    return value if isinstance(value, str) else " | ".join(value) or "none"


HURTING = {change.value for change in HARMFUL}


def diff(*, old: Path, new: Path, fleet: Fleet, decisions: list[Path] | None, limit: int, output: str) -> None:
    objects: Objects = [] if decisions and not fleet.given else read(fleet, optional=("NodeResourceTopology", *DRA))
    state = state_of(objects)
    lines = read_logs(decisions) if decisions else None
    pods = map(_pod_of_line, lines) if lines is not None else _pods_of_cluster(objects)
    total = len(lines) if lines is not None else sum(document.get("kind") == "Pod" for document in objects)
    with show_count(pods, "trying pods under both policies", total) as counted_pods:
        differences = compare_policies(
            counted_pods, _side(old, state), _side(new, state), FleetPlacements(state) if objects else None
        )
    show(differences, output, lambda console: _show_differences(console, differences, limit))
    raise typer.Exit(1 if differences.hurts else 0)


def _side(source: Path, state: State) -> PolicySide:
    return PolicySide(ReviewContext(world_of(state, _policies(source, state))), state.namespaces.labels)


def _policies(source: Path, state: State) -> PolicySet:
    """Load the policies of a directory, or those that manifests would create in a cluster.

    Raises PolicyError, SnapshotError, and BadInput for manifests without any.
    """
    if source.is_dir():
        return PolicyBook(source, state.knowledge, today).current
    objects = read_file(str(source), "wants a directory of policies, or a file of manifests")
    if not any(holds_policies(document) for document in objects):
        raise BadInput(
            f"{source}: no ConfigMap {MOUNTED} and no GPUPolicy in it, wants a directory of policies, or what kubectl "
            "kustomize prints"
        )
    return policies_of(objects, None, state.knowledge, today())


def _pods_of_cluster(objects: Objects) -> Iterator[ComparedPod]:
    for document in unfinished_pods(objects):
        yield _compared_pod(document, {}, (document.get("spec") or {}).get("nodeName") or "")


def _pod_of_line(line: Line) -> ComparedPod:
    """Return the pod of a line of the log; only admission requests have a form."""
    form = PodForm[line["form"]] if "form" in line else PodForm.Pod
    more = {"form": form, "existing_ephemeral": frozenset(line.get("settled", ())), "old_template": line.get("before")}
    pod = _compared_pod(line["pod"], more)
    return replace(pod, document=line["pod"], namespace=line["namespace"]) if "form" in line else pod


def _compared_pod(pod: Mapping[str, Any], more: Mapping[str, Any], node: str = "") -> ComparedPod:
    """Return a pod with its name, namespace, UID and node.

    Raises MalformedPod.
    """
    try:
        metadata = pod.get("metadata") or {}
        namespace = metadata.get("namespace") or "default"
        name = f"{namespace}/{metadata.get('name') or metadata.get('generateName') or 'without a name'}"
        return ComparedPod(
            name, namespace, without_cluster_fields(pod), uid=metadata.get("uid") or "", node=node, **more
        )
    except (AttributeError, TypeError) as error:
        raise MalformedPod(f"metadata: wants a Pod as kubectl get pods -o json writes it: {error}") from error


def _show_differences(console: Console, differences: Differences, limit: int) -> None:
    for change, pods in groupby(differences.differences, key=lambda difference: difference.change):
        colour, count = "red" if change in HURTING else "yellow", differences.counts[change]
        console.print(f"[bold {colour}]{change}[/]: {counted(count, 'pod')}")
        group = list(pods)
        for difference in group[:limit]:
            console.print(f"  {escape(_line(difference))}")
        if len(group) > limit:
            console.print(f"  [dim]and {len(group) - limit} more; -o json has all of them[/]")
    kinds = counted(differences.templates, "kind")
    console.print(f"{counted(differences.pods, 'pod')} of {kinds}: {differences.unchanged} unchanged")


def _line(difference: Difference) -> str:
    where = f" (runs on {difference.node})" if difference.node else ""
    if difference.change == PodDifference.Refused.value:
        return f"{difference.pod}{where}: {difference.now}"
    if difference.change == PodDifference.Admitted.value:
        return f"{difference.pod}{where}: was {difference.was}"
    same = (PodDifference.Fewer.value, PodDifference.More.value, PodDifference.Otherwise.value)
    what = "" if difference.change in same else "best node "
    return f"{difference.pod}{where}: {what}before the edit: {difference.was}; after it: {difference.now}"
