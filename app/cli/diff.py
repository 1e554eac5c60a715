# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher diff`: what an edit of policies would change for the pods of a cluster, or of a decision log."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from app.admission.review import ReviewContext
from app.admission.reviewed_pod import PodForm
from app.api.decision_replay import Line
from app.cli.mutate import read_file
from app.cli.output import Output, show
from app.cli.progress import counted
from app.cli.replay import read_logs
from app.cli.source import DRA, DemoFleet, Kubeconfig, Objects, Snapshots, read_objects_of, state_of
from app.cluster.best_nodes import BestNodes
from app.cluster.policy_sources import MOUNTED, holds_policies, policies_of
from app.cluster.policy_watch import PolicyBook
from app.cluster.ruling_cache import RulingCache
from app.cluster.state import State
from app.explain.policy_diff import (
    HARMFUL,
    ComparedPod,
    Difference,
    Differences,
    PodDifference,
    PolicySide,
    as_created,
    compare,
)
from app.kube.gpu_usage import FINISHED
from app.policy.compiled import PolicySet
from app.telemetry.clock import today
from app.values.errors import BadInput, MalformedPod

HURTING = {each.value for each in HARMFUL}


def diff(
    old: Annotated[Path, typer.Argument(help="Directory of the policies as they are, or manifests with them.")],
    new: Annotated[Path, typer.Argument(help="The same as they would be; - is stdin.")],
    snapshot: Snapshots = None,
    kubeconfig: Kubeconfig = None,
    demo_fleet: DemoFleet = None,
    decisions: Annotated[
        list[Path] | None, typer.Option(help="Try the requests of a decision log instead of the pods that are there.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Pods shown by name for each change.")] = 10,
    output: Output = "text",
) -> None:
    """Tell for whom an edit of policies changes anything, before it is made; exit 1 if it hurts somebody.

    Every unfinished pod of the fleet is tried as if it were created again, under the old and the new policies: who is
    newly refused, left without any node (both exit 1), let in at last, moved to another best node, changed otherwise.
    A pod that runs gives its own place back first. What old policies wrote into a running pod (affinity,
    runtimeClassName) stays in it, and only GPUs are judged: taints, CPU and memory are the scheduler's.

    Instead of a directory: a file of manifests, of which ConfigMap gpu-usher-policies and GPUPolicy objects count. What
    an overlay would deny in a cluster, before it is applied:
    kubectl kustomize deploy/overlays/production | gpu-usher diff policies - --kubeconfig FILE

    With --decisions the recorded requests are tried instead; where they would go only if a fleet is given too.
    """
    if decisions and not (snapshot or kubeconfig or demo_fleet):
        objects: Objects = []
    else:
        objects = read_objects_of(snapshot, kubeconfig, demo_fleet, optional=DRA)
    state = state_of(objects)
    lines = read_logs(decisions) if decisions else None
    asked = map(_of_line, lines) if lines is not None else _of_pods(objects)
    total = len(lines) if lines is not None else sum(each.get("kind") == "Pod" for each in objects)
    with counted(asked, "trying pods under both", total) as each:
        found = compare(each, _side(old, state), _side(new, state), BestNodes(state) if objects else None)
    show(found, output, lambda console: _show(console, found, limit))
    raise typer.Exit(1 if found.hurts else 0)


def _side(source: Path, state: State) -> PolicySide:
    setting = ReviewContext(
        _policies(source, state), state.fleet(), state.knowledge, claimed=state.claimed, rule=RulingCache().of
    )
    return PolicySide(setting, state.namespace_labels)


def _policies(source: Path, state: State) -> PolicySet:
    """Load the policies of a directory, or those that manifests would put into a cluster.

    Raises PolicyError, SnapshotError, and BadInput for manifests without any.
    """
    if source.is_dir():
        return PolicyBook(source, state.knowledge, today).current
    objects = read_file(str(source))
    if not any(holds_policies(each) for each in objects):
        raise BadInput(f"{source}: no ConfigMap {MOUNTED} and no GPUPolicy in it, wants what kubectl kustomize prints")
    return policies_of(objects, None, state.knowledge, today())


def _of_pods(objects: Objects) -> Iterator[ComparedPod]:
    """List the unfinished pods of a cluster."""
    for each in objects:
        if each.get("kind") == "Pod" and (each.get("status") or {}).get("phase") not in FINISHED:
            yield _asked(each, {}, (each.get("spec") or {}).get("nodeName") or "")


def _of_line(line: Line) -> ComparedPod:
    """Take the pod of a line of the log; only a request to admission says which form it has."""
    form = PodForm[line["form"]] if "form" in line else PodForm.Pod
    more = {"form": form, "existing_ephemeral": frozenset(line.get("settled", ())), "old_template": line.get("before")}
    asked = _asked(line["pod"], more)
    return replace(asked, document=line["pod"], namespace=line["namespace"]) if "form" in line else asked


def _asked(pod: Mapping[str, Any], more: Mapping[str, Any], node: str = "") -> ComparedPod:
    """Read who a pod is.

    Raises MalformedPod.
    """
    try:
        metadata = pod.get("metadata") or {}
        namespace = metadata.get("namespace") or "default"
        name = f"{namespace}/{metadata.get('name') or metadata.get('generateName') or 'without a name'}"
        return ComparedPod(name, namespace, as_created(pod), uid=metadata.get("uid") or "", node=node, **more)
    except (AttributeError, TypeError) as error:
        raise MalformedPod(f"metadata: wants a Pod as kubectl get pods -o json writes it: {error}") from error


def _show(console: Console, found: Differences, limit: int) -> None:
    for change, pods in groupby(found.differences, key=lambda each: each.change):
        colour = "red" if change in HURTING else "yellow"
        console.print(f"[bold {colour}]{change}[/]: {found.counts[change]} pods")
        listed = list(pods)
        for each in listed[:limit]:
            console.print(f"  {escape(_line(each))}")
        if len(listed) > limit:
            console.print(f"  [dim]and {len(listed) - limit} more; -o json has all of them[/]")
    console.print(f"{found.pods} pods of {found.templates} kinds: {found.unchanged} unchanged")


def _line(each: Difference) -> str:
    where = f" on {each.node}" if each.node else ""
    if each.change == PodDifference.Refused.value:
        return f"{each.pod}{where}: {each.now}"
    if each.change == PodDifference.Admitted.value:
        return f"{each.pod}{where}: was {each.was}"
    return f"{each.pod}{where}: {each.was} → {each.now}"
