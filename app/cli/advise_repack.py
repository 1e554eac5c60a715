# SPDX-License-Identifier: Apache-2.0
"""What `gpu-usher advise repack` reads of a fleet, and how it prints a plan."""

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from app.cli.names import MOST_SHOWN, names_of
from app.cli.output import in_words
from app.cli.source import POLICY_KINDS, Objects
from app.cluster.core import RulingCache
from app.cluster.snapshot import bound_volumes, view
from app.cluster.state import State
from app.explain.fleet_with_moves import FleetWithMoves
from app.intree.existing_pods import existing_pods_of
from app.knowledge.mig_profiles import profile_of
from app.kube.api_kinds import DRA
from app.kube.gpu_usage import FINISHED
from app.kube.pods import read_pod
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from app.values.errors import BadInput
from app.whatif.movable_pods import controller_of, read_budgets, why_kept
from app.whatif.repack import Freed, Method, Move, Repack, Repacking, WaitingSeat
from app.whatif.repack_search import RepackPod

FREED = tuple(freed.value for freed in Freed)
OPTIONAL = ("PersistentVolume", "PersistentVolumeClaim", "PodDisruptionBudget", *DRA, *POLICY_KINDS)
"""Kinds that a cluster may not have or may forbid to the user."""


def freed_of(free: str) -> str:
    """Check a value of --free.

    Raises BadInput.
    """
    if free not in FREED:
        raise BadInput(f"--free {free[:20]}: wants {in_words(FREED)}")
    return free


def repacked(
    objects: Objects, state: State, policies: PolicySet, chosen: list[str], freed: Freed, most_moves: int, now: float
) -> Repack:
    """Find the plan for a fleet. `chosen` are the nodes that may be freed, `now` is in seconds since the epoch.

    Raises BadInput where an NVLink domain is asked for, and no chosen node has the label of one.
    """
    documents = {_name(pod): pod for pod in _unfinished(objects)}
    snapshot = view(state, policies, bound_volumes(objects), existing_pods_of(documents.values()))
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


def _unfinished(objects: Objects) -> Iterator[dict[str, Any]]:
    return (
        document
        for document in objects
        if document.get("kind") == "Pod" and (document.get("status") or {}).get("phase") not in FINISHED
    )


def _name(document: Mapping[str, Any]) -> str:
    return f"{document['metadata'].get('namespace') or 'default'}/{document['metadata'].get('name')}"


def _gpu_pods(objects: Objects, state: State, policies: PolicySet, now: float) -> Iterator[RepackPod]:
    """Yield the GPU pods, those that wait in kube-scheduler's order: by priority, then by age."""
    rule, budgets = RulingCache().of, read_budgets(objects)
    by_turn = sorted(_unfinished(objects), key=lambda pod: (
        -_priority(pod), str(pod["metadata"].get("creationTimestamp") or ""), _name(pod)))  # fmt: skip
    for document in by_turn:
        pod = read_pod(document)
        labels = state.namespaces.labels(pod.namespace)
        demand = rule(pod, labels, policies, state.knowledge, state.devices.claimed(pod)).demand
        node = pod.node_name or ""
        if demand.requests_gpus and (not node or node in state.nodes):
            controller = "/".join(filter(None, controller_of(document)))
            kept = why_kept(document, budgets) if node else ""
            hours = _hours_since_start(document, now) if node else None
            yield RepackPod(_name(document), node, demand.resources, _priority(document), controller, kept, hours)


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
        what = f"{move.controller}, {held}, priority {move.priority}, {_age(move)}"
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


def _age(move: Move) -> str:
    return "age unknown" if move.hours is None else f"has run {move.hours:,.1f} h"


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
        console.print("[dim]no plan of these rules has fewer moves[/]")
