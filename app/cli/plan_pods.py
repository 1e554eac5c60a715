# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher plan mig`, `repack` and `right-size`: slices for waiting pods, the fewest moves, smaller units."""

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any

import typer
import yaml
from rich.console import Console
from rich.markup import escape

from app.cli.options import GovernedFleet, PrometheusOptions
from app.cli.output import MOST_SHOWN, names_of, show, show_more, show_progress
from app.cli.plan_nodes import documents_of_gpu_pods, gpu_pods, selected
from app.cli.source import POLICY_KINDS, Objects, key_of, read_governed, unfinished_pods
from app.cli.usage import read_since, read_use
from app.cluster.snapshot import bound_volumes
from app.knowledge.mig_profiles import profile_of
from app.kube.api_kinds import DRA
from app.kube.existing_pods import existing_pods_of
from app.kube.pod_object import pod_object
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from app.telemetry.logs import now
from app.usage.table import GPUUse
from app.usage.units import peaks_of
from app.usage.workloads import owners_of, workload_of
from app.values.errors import BadInput
from app.whatif.advice import Advice, advise_layout
from app.whatif.fleet_with_moves import FleetWithMoves
from app.whatif.movable_pods import read_budgets, why_kept
from app.whatif.repack import Freed, Method, Repack, Repacking, WaitingSeat
from app.whatif.repack_search import RepackPod
from app.whatif.right_size import RightSize, RightSizes, right_sizes, workloads_of
from app.world.state import State
from app.world.world import world_of

OPTIONAL = (
    "PersistentVolume", "PersistentVolumeClaim", "PodDisruptionBudget", "NodeResourceTopology", *DRA, *POLICY_KINDS,
)  # fmt: skip
"""Kinds that a cluster may not have or may forbid to the user."""


def repacked(
    objects: Objects, state: State, policies: PolicySet, chosen: list[str], freed: Freed, most_moves: int, now: float
) -> Repack:
    """Find the plan for a fleet. `chosen` are the nodes that may be freed, `now` is in seconds since the epoch.

    Raises BadInput where an NVLink domain is asked for, and no chosen node has the label of one.
    """
    documents = {key_of(pod): pod for pod in unfinished_pods(objects)}
    snapshot = world_of(
        state, policies, volumes=bound_volumes(objects), existing_pods=existing_pods_of(documents.values())
    )
    pods = list(_gpu_pods(objects, state, policies, now))
    fleet = FleetWithMoves(snapshot, {pod.name: documents[pod.name] for pod in pods})
    budgets_seen = any(document.get("kind") == "PodDisruptionBudget" for document in objects)
    plan = Repacking(
        fleet, pods, lambda pod: memory_mib(state.nodes.get(pod.node), pod.units), budgets_seen, most_moves
    )
    if freed is Freed.Places:
        return plan.place_waiting()
    if freed is Freed.Node:
        return plan.free_unit(freed, {name: [name] for name in fleet.nodes()}, chosen)
    domains: dict[str, list[str]] = {}
    for name in fleet.nodes():
        if clique := state.nodes[name].clique:
            domains.setdefault(clique, []).append(name)
    cliques = list(dict.fromkeys(state.nodes[name].clique for name in chosen if state.nodes[name].clique))
    if not cliques:
        raise BadInput(
            "--free domain: no chosen node has the label nvidia.com/gpu.clique, wants nodes of NVLink domains"
        )
    return plan.free_unit(freed, domains, cliques)


def _gpu_pods(objects: Objects, state: State, policies: PolicySet, now: float) -> Iterator[RepackPod]:
    """Yield the GPU pods, those that wait in kube-scheduler's order: by priority, then by age."""
    budgets = read_budgets(objects)
    by_turn = sorted(unfinished_pods(objects), key=lambda pod: (
        -_priority(pod), str(pod["metadata"].get("creationTimestamp") or ""), key_of(pod)))  # fmt: skip
    for pod, document in documents_of_gpu_pods(by_turn, state, policies):
        if not pod.node or pod.node in state.nodes:
            declared = pod_object(document)
            owner = declared.metadata.controller
            controller = "/".join(filter(None, (owner.kind, owner.name))) if owner else ""
            kept = why_kept(declared, budgets) if pod.node else ""
            hours = _hours_since_start(document, now) if pod.node else None
            units, priority = pod.demand.resources, _priority(document)
            yield RepackPod(pod.name, pod.node, units, priority, controller, kept, hours)


def _hours_since_start(document: Mapping[str, Any], now: float) -> float | None:
    """Return for how long a pod has run, by status.startTime; None if that is missing, or no time with its zone."""
    try:
        start = dt.datetime.fromisoformat((document.get("status") or {})["startTime"])
    except (KeyError, TypeError, ValueError):
        return None
    return None if start.tzinfo is None else round(max(0.0, now - start.timestamp()) / 3600, 2)


def _priority(document: Mapping[str, Any]) -> int:
    priority = (document.get("spec") or {}).get("priority")
    return priority if isinstance(priority, int) else 0


def memory_mib(node: Node | None, units: tuple[tuple[str, int], ...]) -> int | None:
    """Return the memory of GPU units on a node in MiB; None if a part of it is not known."""
    if node is None:
        return None
    facts, total = node.node_class, 0
    for resource, amount in units:
        profile = profile_of(resource)
        of_unit = facts.slice_mib(profile) if profile else facts.memory_mib
        if of_unit is None:
            return None
        total += of_unit * amount // facts.replicas_of(resource)
    return total


def show_repack(console: Console, result: Repack) -> None:
    """Print the steps of a plan, what it costs, and what stood in its way."""
    for number, move in enumerate(result.moves, 1):
        held = ", ".join(f"{amount} x {resource}" for resource, amount in move.gpus.items())
        age = "age unknown" if move.hours is None else f"has run {move.hours:,.1f} h"
        what = f"{move.controller}, {held}, priority {move.priority}, {age}"
        console.print(
            f"{number}. restart [bold]{escape(move.pod)}[/] ({escape(what)}): {escape(move.source)} → "
            f"[bold]{escape(move.seat)}[/]"
        )
        if move.cordon:
            console.print(f"   [yellow]cordon meanwhile, as the engine prefers: {escape(names_of(move.cordon))}[/]")
    for seat in result.waiting:
        console.print(
            escape(_where(seat, min(result.most_moves, result.most_extra))), style="" if seat.node else "yellow"
        )
    _show_result(console, result)
    for held_node in result.held[:MOST_SHOWN]:
        console.print(
            f"[dim]stays: {escape(held_node.name)}, because of {escape(held_node.pod)}: {escape(held_node.why)}[/]"
        )
    if not result.budgets_seen:
        console.print(
            "[dim]no PodDisruptionBudget was seen: add poddisruptionbudgets to a snapshot if there are any[/]"
        )


def _where(seat: WaitingSeat, most_moves: int) -> str:
    if not seat.node:
        return f"{seat.pod}: no place found with at most {most_moves} moves"
    return f"{seat.pod}: {f'runs on {seat.node} after step {seat.after}' if seat.after else f'has room on {seat.node}'}"


def _show_result(console: Console, result: Repack) -> None:
    if result.nodes:
        what = f"NVLink domain {result.domain}: " if result.domain else ""
        console.print(f"[bold]free then[/]: {escape(what + names_of(result.nodes))}; cordon it before the first step")
    elif result.freed is not Freed.Places:
        limit = f"{result.most_moves} moves, {result.most_extra} of them to make room for others"
        console.print(f"[yellow]no {result.freed.value} can be freed with at most {limit}[/]")
    if result.moves:
        memory = "" if result.memory_mib is None else f", {result.memory_mib / 1024:.0f} GiB of GPU memory"
        hours = "" if result.gpu_hours is None else f", {result.gpu_hours:,.1f} GPU-hours done"
        restarted = (
            "1 pod restarted, which holds" if result.restarts == 1 else f"{result.restarts} pods restarted, which hold"
        )
        console.print(f"costs: {restarted} {result.gpus} GPUs or slices{memory}{hours}")
    if result.method is Method.Greedy:
        console.print("[yellow]the search was too large to try everything: there may be a plan with fewer moves[/]")
    elif result.moves:
        console.print("[dim]no plan that moves only movable pods has fewer moves[/]")


def find_right_sizes(objects: Objects, state: State, policies: PolicySet, use: GPUUse) -> RightSizes:
    documents = {key_of(document): document for document in objects if document.get("kind") == "Pod"}
    owners = owners_of(documents.values())
    pods = list(gpu_pods(objects, state, policies))
    peaks = peaks_of(use, workload_of(owners), state.knowledge.geometry)
    workloads = workloads_of(pods, documents, owners)
    waiting = [pod for pod in pods if not pod.node]
    return right_sizes(workloads, peaks, waiting, world_of(state, policies))


def show_right_sizes(console: Console, result: RightSizes) -> None:
    """Print the proposals, with what they free, and what was left undecided."""
    for proposal in result.proposals[:MOST_SHOWN]:
        _show_proposal(console, proposal)
    show_more(console, result.proposals, MOST_SHOWN)
    if not result.proposals:
        console.print("no workload is known to do with less")
    if result.right:
        console.print(f"right as they are: {escape(names_of(result.right))}")
    for unsized in result.undecided[:MOST_SHOWN]:
        console.print(f"[dim]not judged: {escape(unsized.workload)}: {escape(unsized.why)}[/]")


def _show_proposal(console: Console, proposal: RightSize) -> None:
    who = f"{proposal.pods} pods, each" if proposal.pods > 1 else "one pod,"
    console.print(
        f"[bold]{escape(proposal.workload)}[/]: {who} {escape(proposal.holds)} → [green]{escape(proposal.to)}[/]"
    )
    memory = f"{proposal.peak_memory_mib / 1024:,.1f} GiB"
    console.print(
        f"  peak of {proposal.known_hours:,.0f} h: {memory}, {proposal.peak_part:.0%} of the GPU's computation"
    )
    frees = ", ".join(f"{amount} x {resource}" for resource, amount in proposal.frees.items())
    console.print(f"  frees {escape(frees)}")
    if proposal.would_start:
        console.print(f"  [green]pending pods that would then start:[/] {escape(names_of(proposal.would_start))}")
    print("\n".join(f"    {line}" for line in yaml.safe_dump(proposal.patch, sort_keys=False).splitlines()))


def mig(*, nodes: str, fleet: GovernedFleet, output: str) -> None:
    objects, state, rules = read_governed(fleet)
    pods = list(gpu_pods(objects, state, rules))
    idle = [name for name in selected(state, nodes) if not state.allocations.bound(name)]
    with show_progress("finding slices for waiting pods"):
        result = advise_layout(state.nodes, idle, pods, state.knowledge)
    show(result, output, lambda console: _show_layout(console, result))
    raise typer.Exit(1 if result.unplaced else 0)


def repack(*, free: str, nodes: str, most_moves: int, fleet: GovernedFleet, output: str) -> None:
    objects, state, rules = read_governed(fleet, optional=OPTIONAL)
    chosen = selected(state, nodes)
    with show_progress("searching for moves"):
        result = repacked(objects, state, rules, chosen, Freed(free), most_moves, now().timestamp())
    show(result, output, lambda console: show_repack(console, result))
    raise typer.Exit(0 if result.possible else 1)


def right_size(*, source: PrometheusOptions, since: str, fleet: GovernedFleet, output: str) -> None:
    seconds = read_since(since)
    objects, state, rules = read_governed(fleet)
    use = read_use(source, fleet.demo_fleet, state, seconds, sizes=True)
    with show_progress("trying smaller units"):
        result = find_right_sizes(objects, state, rules, use)
    show(result, output, lambda console: show_right_sizes(console, result))


def _show_layout(console: Console, result: Advice) -> None:
    """Print the configuration, and everything else as comments."""
    for layout in result.layouts:
        console.print(f"# kubectl label node {escape(layout.node)} --overwrite nvidia.com/mig.config={layout.config}")
        console.print(f"#   {escape(layout.product)}, for {escape(names_of(layout.pods))}")
    if result.fitting:
        console.print(f"# existing slices are enough for: {escape(names_of(result.fitting))}")
    if result.unplaced:
        console.print(f"# [yellow]no idle GPU fits: {escape(names_of(result.unplaced))}[/]")
    if result.configuration:
        print(yaml.safe_dump(result.configuration, sort_keys=False), end="")
    else:
        console.print("# nothing to change")
