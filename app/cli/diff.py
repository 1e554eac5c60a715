# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher diff`: shows what an edit of policies would change for the pods of a cluster, or of a decision log."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from app.admission.reviewed_pod import PodForm, ReviewContext
from app.api.decision_replay import Line
from app.cli.mutate import read_file
from app.cli.output import Output, show
from app.cli.progress import show_count
from app.cli.replay import read_logs
from app.cli.source import Fleet, Objects, state_of
from app.cluster.best_nodes import BestNodes
from app.cluster.core import RulingCache
from app.cluster.policy_watch import PolicyBook
from app.cluster.snapshot_policies import holds_policies, policies_of
from app.cluster.state import State
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
from app.kube.gpu_usage import FINISHED
from app.policy.compiled import PolicySet
from app.policy.load import MOUNTED
from app.telemetry.logs import today
from app.values.errors import BadInput, MalformedPod

HURTING = {change.value for change in HARMFUL}


def diff(
    *,
    old: Annotated[Path, typer.Argument(help="Directory of the policies as they are, or manifests with them.")],
    new: Annotated[Path, typer.Argument(help="The same as they would be; - is stdin.")],
    fleet: Fleet,
    decisions: Annotated[
        list[Path] | None, typer.Option(help="Try the requests of a decision log instead of the pods that are there.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Pods shown by name for each change.")] = 10,
    output: Output = "text",
) -> None:
    """Show for which pods an edit of policies changes anything, before it is applied; exit 1 if it hurts a pod.

    Every unfinished pod of the fleet is tried as if it were created again, under the old and the new policies. Shown
    are pods that are newly refused, left without any node (both exit 1), newly admitted, moved to another best node, or
    changed otherwise. A running pod first frees its own place. What old policies wrote into a running pod (affinity,
    runtimeClassName) stays in it, and only GPUs are judged; taints, CPU and memory are left to the scheduler.

    Instead of a directory, a file of manifests may be given, of which ConfigMap gpu-usher-policies and GPUPolicy
    objects count. To see what an overlay would deny in a cluster before it is applied: kubectl kustomize
    deploy/overlays/production | gpu-usher diff policies - --kubeconfig FILE

    With --decisions the recorded requests are tried instead; best nodes are compared only if a fleet is given too.
    """
    objects: Objects = [] if decisions and not fleet.given else fleet.read(optional=DRA)
    state = state_of(objects)
    lines = read_logs(decisions) if decisions else None
    pods = map(_pod_of_line, lines) if lines is not None else _pods_of_cluster(objects)
    total = len(lines) if lines is not None else sum(document.get("kind") == "Pod" for document in objects)
    with show_count(pods, "trying pods under both policies", total) as counted_pods:
        differences = compare_policies(
            counted_pods, _side(old, state), _side(new, state), BestNodes(state) if objects else None
        )
    show(differences, output, lambda console: _show(console, differences, limit))
    raise typer.Exit(1 if differences.hurts else 0)


def _side(source: Path, state: State) -> PolicySide:
    context = ReviewContext(
        _policies(source, state),
        state.fleet(),
        state.knowledge,
        claimed=state.devices.claimed,
        has_template=state.devices.has_template,
        rule=RulingCache().of,
    )
    return PolicySide(context, state.namespaces.labels)


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
    """Yield the unfinished pods of a cluster."""
    for document in objects:
        if document.get("kind") == "Pod" and (document.get("status") or {}).get("phase") not in FINISHED:
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


def _show(console: Console, differences: Differences, limit: int) -> None:
    for change, pods in groupby(differences.differences, key=lambda difference: difference.change):
        colour, count = "red" if change in HURTING else "yellow", differences.counts[change]
        console.print(f"[bold {colour}]{change}[/]: {count} {'pod' if count == 1 else 'pods'}")
        group = list(pods)
        for difference in group[:limit]:
            console.print(f"  {escape(_line(difference))}")
        if len(group) > limit:
            console.print(f"  [dim]and {len(group) - limit} more; -o json has all of them[/]")
    console.print(f"{differences.pods} pods of {differences.templates} kinds: {differences.unchanged} unchanged")


def _line(difference: Difference) -> str:
    where = f" on {difference.node}" if difference.node else ""
    if difference.change == PodDifference.Refused.value:
        return f"{difference.pod}{where}: {difference.now}"
    if difference.change == PodDifference.Admitted.value:
        return f"{difference.pod}{where}: was {difference.was}"
    return f"{difference.pod}{where}: {difference.was} → {difference.now}"
