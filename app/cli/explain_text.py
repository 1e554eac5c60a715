# SPDX-License-Identifier: Apache-2.0
"""Prints an explanation as text: needs with evidence, the funnel with bars, the smallest changes that help."""

from rich.console import Console
from rich.markup import escape
from rich.table import Column

from app.cli.output import table_of
from app.explain.explanation import Explanation, NodeVerdict
from app.intree.checks import InTreeCause
from app.kube.finished_pods import SUCCEEDED, Ending
from app.values.reasons import counted

BAR = 20
"""Characters of a full bar."""
MOST_ROWS = 40


def print_explanation(console: Console, explanation: Explanation, by_node: bool = False) -> None:
    """Print an explanation, the answer first."""
    _headline(console, explanation)
    _needs(console, explanation)
    _funnel(console, explanation)
    _devices(console, explanation)
    _fixes(console, explanation)
    _best(console, explanation)
    if by_node:
        _nodes(console, explanation)


def _ending(console: Console, pod: str, ending: Ending) -> None:
    """Print how the pod ended, why, and what to do."""
    what = "was refused by the kubelet of" if ending.refused else f"has ended ({ending.phase}) on"
    colour = "green" if ending.phase == SUCCEEDED else "red"
    console.print(f"[bold {colour}]{escape(pod)} {what} {escape(ending.node or 'no node')}[/]")
    if ending.message:
        console.print(f"  {escape(ending.message)} [dim]({escape(ending.reason)})[/]")
    if ending.why:
        console.print(f"  {escape(ending.why)}")
    if ending.cause:
        console.print(f"  [yellow]likely cause: {escape(ending.cause)}[/]")
    if ending.remedy:
        console.print(f"  [green]→[/] {escape(ending.remedy)}")
    console.print("if it were created again:")


def _headline(console: Console, explanation: Explanation) -> None:
    if explanation.ending is not None:
        _ending(console, explanation.pod, explanation.ending)
    if explanation.bound is not None:
        _bound(console, explanation, explanation.bound)
    else:
        for problem in explanation.not_started:
            console.print(f"  [red]does not start: {escape(problem)}[/]")
        fits, nodes = explanation.fits, counted(explanation.nodes, "node")
        refused = explanation.primary is not None and explanation.primary.reason == InTreeCause.RefusedByAPIServer.name
        number = f"on {fits or 'none'} of {nodes}" if explanation.nodes else "nowhere: there are no nodes"
        verdict = "is refused by the API server" if refused else f"fits {number}"
        console.print(f"[bold {'green' if fits else 'red'}]{escape(explanation.pod)} {verdict}[/]")
    if explanation.primary is not None:
        nodes = counted(explanation.primary.nodes, "node")
        console.print(f"  {escape(explanation.primary.sentence)} [dim]({explanation.primary.reason}, {nodes})[/]")
    for note in explanation.notes:
        console.print(f"  [yellow]{escape(note)}[/]")
    for conflict in explanation.conflicts:
        console.print(f"  [red]{escape(conflict)}[/]")


def _bound(console: Console, explanation: Explanation, bound: NodeVerdict) -> None:
    """Print where the pod is, why it has not started there, and where it would go if it were created again."""
    colour = " red" if explanation.not_started else ""
    console.print(f"[bold{colour}]{escape(explanation.pod)} is {escape(explanation.place)}[/]")
    for problem in explanation.not_started:
        console.print(f"  [red]{escape(problem)}[/]")
    for device in explanation.unhealthy:
        console.print(f"  [red]holds a device that is unhealthy: {escape(device)}; it keeps it until it ends[/]")
    if not bound.fits:
        against = "; ".join(dict.fromkeys(bound.messages))
        console.print(f"  [yellow]created again, it would not go there: {escape(against)}[/]")
    nodes = counted(explanation.nodes, "node")
    console.print(f"created again, it would fit on {explanation.fits or 'none'} of {nodes}")


def _needs(console: Console, explanation: Explanation) -> None:
    console.print("\n[bold]needs[/]")
    for need in (*(explanation.needs or (() if explanation.claims else ("no GPU",))), *explanation.claimed):
        console.print(f"  {escape(need)}")
    if explanation.policies:
        console.print(f"  [dim]policies: {escape(', '.join(explanation.policies))}[/]")
    for name in explanation.unjudged:
        console.print(f"  [yellow]{name} is not checked here: only kube-scheduler can decide[/]")
    if explanation.admission.actions or explanation.admission.message or explanation.admission.warnings:
        console.print("\n[bold]admission[/]")
    if not explanation.admission.allowed:
        console.print(f"  [red]refuses it: {escape(explanation.admission.message)}[/]")
    for action in explanation.admission.actions:
        console.print(f"  {escape(action)}")
    for warning in explanation.admission.warnings:
        console.print(f"  [yellow]warns: {escape(warning)}[/]")


def _funnel(console: Console, explanation: Explanation) -> None:
    columns = [Column(name, overflow="fold", no_wrap=True) for name in ("after", "")]
    columns += [Column(name, justify="right", overflow="fold", no_wrap=True) for name in ("left", "cut")]
    rows = []
    for step in explanation.funnel:
        full = round(BAR * step.left / explanation.nodes) if explanation.nodes else 0
        bar = "█" * max(full, 1 if step.left else 0)
        colour = "green" if step.left else "red"
        cut = f"-{step.cut}" if step.cut else ""
        share = f" ({step.nodes} of {step.cut})" if step.nodes != step.cut else ""
        rows.append((step.stage, f"[{colour}]{bar}[/]", str(step.left), cut, escape(f"{step.message or ''}{share}")))
    columns.append(Column("mostly because", overflow="fold"))
    console.print(table_of(columns, rows, "\n[bold]nodes left[/]", ruled=False))


def _devices(console: Console, explanation: Explanation) -> None:
    """Print the funnel of each request for devices."""
    for funnel in explanation.devices:
        console.print(
            f"\n[bold]request {escape(funnel.request)}[/] of claim {escape(funnel.claim)}: {escape(funnel.wants)}"
        )
        columns = [Column(name, justify="right", overflow="fold") for name in ("devices", "nodes")]
        columns += [Column(name, overflow="fold") for name in ("that are", "mostly because")]
        rows = []
        for step in funnel.steps:
            colour = "green" if step.nodes else "red"
            rows.append((f"[{colour}]{step.devices}[/]", str(step.nodes), escape(step.stage), escape(step.detail)))
        console.print(table_of(columns, rows, ruled=False))


def _fixes(console: Console, explanation: Explanation) -> None:
    if explanation.fits:
        return
    if not explanation.fixes:
        console.print(f"\n[bold]{escape(explanation.no_change)}[/]")
        return
    console.print("\n[bold]smallest changes that help[/] [dim](each verified)[/]")
    for number, fix in enumerate(explanation.fixes, 1):
        opened = f" [dim]→ {escape(fix.opened_nodes)}[/]"
        for position, edit in enumerate(fix.edits):
            prefix = f"  [bold]{number}[/] " if not position else "    [dim]and[/] "
            console.print(prefix + escape(edit.text) + ("" if position else opened))


def _best(console: Console, explanation: Explanation) -> None:
    if not explanation.best:
        return
    console.print("\n[bold]best nodes[/]")
    for node in explanation.best:
        facts = ", ".join(f"{name} is {value}" for name, value in node.gives.items())
        parts = ", ".join(f"{name} {part['score']:g}" for name, part in node.scores.items())
        lowered = f"lowered by {', '.join(node.lowered_by)}" if node.lowered_by else ""
        said = "; ".join(filter(None, (facts, ", ".join(filter(None, (parts, lowered))))))
        console.print(f"  [green]{node.score:3}[/]  {escape(node.node)}  [dim]{escape(said)}[/]")


def _nodes(console: Console, explanation: Explanation) -> None:
    columns = [Column(name, overflow="fold") for name in ("node", "why not")]
    rows = (
        (escape(verdict.node), "[green]fits[/]" if verdict.fits else escape("; ".join(dict.fromkeys(verdict.messages))))
        for verdict in explanation.verdicts or ()
    )
    console.print(table_of(columns, rows, "\n[bold]node by node[/]", ruled=False))
