# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher advise right-size`: finds the smallest unit that would have carried the peak of each workload."""

from typing import Any

import yaml
from rich.console import Console
from rich.markup import escape

from app.cli.names import MOST_SHOWN, names_of
from app.cli.source import Objects
from app.cli.whatif import gpu_pods
from app.cluster.snapshot import view
from app.cluster.state import State
from app.policy.compiled import PolicySet
from app.usage.history import History
from app.usage.owners import owners_of
from app.usage.peaks import peaks_of
from app.usage.prices import Prices
from app.usage.right_size import RightSize, RightSizes, right_sizes
from app.usage.workloads import workload_of, workloads_of


def find_right_sizes(
    objects: Objects, state: State, policies: PolicySet, history: History, prices: Prices
) -> RightSizes:
    """Find the right sizes of the workloads of a fleet."""
    documents = {_key(document): document for document in objects if document.get("kind") == "Pod"}
    owners = owners_of(documents.values())
    pods = list(gpu_pods(objects, state, policies))
    peaks = peaks_of(history, workload_of(owners), state.knowledge.geometry)
    workloads = workloads_of(pods, documents, owners)
    waiting = [pod for pod in pods if not pod.node]
    return right_sizes(workloads, peaks, waiting, view(state, policies), prices)


def _key(document: dict[str, Any]) -> str:
    metadata = document.get("metadata") or {}
    return f"{metadata.get('namespace') or 'default'}/{metadata.get('name')}"


def show_right_sizes(console: Console, result: RightSizes) -> None:
    """Print the proposals, with what they free, and what was left undecided."""
    for proposal in result.proposals[:MOST_SHOWN]:
        _show_proposal(console, proposal, result.currency)
    if len(result.proposals) > MOST_SHOWN:
        console.print(f"and {len(result.proposals) - MOST_SHOWN} more; -o json has all")
    if not result.proposals:
        console.print("no workload is known to do with less")
    if result.right:
        console.print(f"right as they are: {escape(names_of(result.right))}")
    for unsized in result.undecided[:MOST_SHOWN]:
        console.print(f"[dim]not judged: {escape(unsized.workload)}: {escape(unsized.why)}[/]")


def _show_proposal(console: Console, proposal: RightSize, currency: str | None) -> None:
    who = f"{proposal.pods} pods, each" if proposal.pods > 1 else "one pod,"
    console.print(
        f"[bold]{escape(proposal.workload)}[/]: {who} {escape(proposal.holds)} → [green]{escape(proposal.to)}[/]"
    )
    memory = f"{proposal.peak_memory_mib / 1024:,.1f} GiB"
    console.print(
        f"  peak of {proposal.known_hours:,.0f} h: {memory}, {proposal.peak_part:.0%} of the GPU's computation"
    )
    frees = ", ".join(f"{amount} x {resource}" for resource, amount in proposal.frees.items())
    money = "" if proposal.saves_per_hour is None else f", saves {proposal.saves_per_hour:,.2f} {currency} an hour"
    console.print(f"  frees {escape(frees)}{escape(money)}")
    if proposal.would_start:
        console.print(f"  [green]would start then:[/] {escape(names_of(proposal.would_start))}")
    print("\n".join(f"    {line}" for line in yaml.safe_dump(proposal.patch, sort_keys=False).splitlines()))
