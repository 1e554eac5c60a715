# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher whatif dra`: what a move of nodes from the device plugin to DRA means for the pods of a fleet."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from app.admission.claim_conversion import Conversion, NoEquivalent, convert
from app.admission.preview import unbound, wanted_template
from app.admission.reviewed_pod import ReviewContext
from app.cli.names import MOST_SHOWN, names_of
from app.cli.source import Objects
from app.cluster.core import RulingCache
from app.cluster.state import State
from app.kube.gpu_usage import FINISHED
from app.kube.pods import read_pod
from app.policy.compiled import PolicySet
from app.policy.demand import Demand
from app.whatif.dra import DRAMove, MovingPod, Workload
from app.whatif.placing_in_turn import GPUPod


def moving_pods(objects: Objects, state: State, policies: PolicySet) -> Iterator[MovingPod]:
    """Yield the unfinished pods that request or claim GPUs, with what they become.

    Raises MalformedPod, QuantityError.
    """
    context = ReviewContext(
        policies, state.fleet(), state.knowledge, claimed=state.devices.claimed, rule=RulingCache().of
    )
    for document in objects:
        if document.get("kind") != "Pod" or (document.get("status") or {}).get("phase") in FINISHED:
            continue
        pod = read_pod(document)
        labels = state.namespaces.labels(pod.namespace)
        demand = context.ruling(pod, labels).demand
        if demand.requests_gpus:
            gpu_pod = GPUPod(f"{pod.namespace}/{pod.name}", pod.uid, pod.node_name or "", demand)
            yield MovingPod(gpu_pod, _outcome(document, demand, labels, context) if demand.resources else None)


def _outcome(
    document: Mapping[str, Any], demand: Demand, labels: Mapping[str, str], context: ReviewContext
) -> Conversion | NoEquivalent | None:
    """Convert a pod as it was created; None for one that admission would leave alone."""
    pod = read_pod(unbound(document))
    outcome = convert(pod, demand, context.knowledge)
    wanted = wanted_template(document, pod.namespace, labels, context)
    return None if isinstance(outcome, Conversion) and wanted.template is None else outcome


def show_move(console: Console, move: DRAMove) -> None:
    """Print what pods become, which nodes cannot move, and the order of the others."""
    console.print(f"[bold]to DRA[/]: {move.nodes} nodes, of which {move.already} are there")
    for workload in move.workloads[:MOST_SHOWN]:
        _show_workload(console, workload)
    if (more := len(move.workloads) - MOST_SHOWN) > 0:
        console.print(f"and {more} more kinds of pods; -o json has all")
    for node in move.held:
        console.print(f"[red]{escape(node.node)} cannot move[/]: {escape(names_of(node.pods))}")
        console.print(f"  {escape('; '.join(node.reasons))}")
    console.print("[bold]order[/] (others cordoned meanwhile)")
    for number, turn in enumerate(move.order, 1):
        evicts = f"evicts {len(turn.evicts)}: {names_of(turn.evicts)}" if turn.evicts else "evicts nobody"
        console.print(f"{number:4} {escape(turn.node)} {escape(evicts)}")
        if turn.waiting:
            console.print(f"     [yellow]no place until later: {escape(names_of(turn.waiting))}[/]")
    console.print(f"{sum(len(turn.evicts) for turn in move.order)} evictions in all")


def _show_workload(console: Console, workload: Workload) -> None:
    if workload.stays:
        console.print(f"[red]no equivalent[/]: {escape(names_of(workload.pods))}")
    else:
        colour, by = ("yellow" if workload.loses else "green"), f" by {workload.template}" * bool(workload.template)
        what = escape(", ".join(workload.requests) + by)
        console.print(f"[{colour}]{what}[/]: {escape(names_of(workload.pods))}")
    for line in workload.stays:
        console.print(f"  {escape(line)}")
    for line in workload.loses:
        console.print(f"  only filter says: {escape(line)}")
