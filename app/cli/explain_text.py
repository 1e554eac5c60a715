# SPDX-License-Identifier: Apache-2.0
"""Prints an explanation as text: the answer and what to do; with details also evidence, the funnel, and scores."""

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Column

from app.admission.fleet_warnings import NOWHERE
from app.admission.node_affinity import FROM_ZERO
from app.cli.output import table_of
from app.explain.counterfactual import RECREATE
from app.explain.explanation import Explanation, NodeVerdict
from app.kube.finished_pods import SUCCEEDED, Ending
from app.values.reasons import counted

BAR = 20
"""Characters of a full bar."""
MOST_CHANGES, MOST_BEST, MOST_STAGES = 3, 3, 3
"""Changes, nodes that fit, and stages of filtering printed without details; and the holders of GPUs."""
NOTES_BEFORE_CHANGES = 2
"""Notes that are printed before the changes that help, which begin on one of the first five lines then."""


def print_explanation(console: Console, explanation: Explanation, by_node: bool = False, details: bool = False) -> None:
    """Print an explanation, the answer first; `details` adds what it rests on."""
    _headline(console, explanation)
    if explanation.bound is None and not details:
        _places(console, explanation)
    before = len(explanation.notes) if details or explanation.fits or explanation.bound else NOTES_BEFORE_CHANGES
    _notes(console, explanation.notes[:before])
    for conflict in explanation.conflicts:
        console.print(f"  [red]{escape(conflict)}[/]")
    if details:
        _needs(console, explanation)
        _funnel(console, explanation)
        _devices(console, explanation)
        console.print()
        _fixes(console, explanation, len(explanation.fixes))
        _best(console, explanation)
    else:
        _fixes(console, explanation, MOST_CHANGES)
        _notes(console, explanation.notes[before:])
        _summary(console, explanation)
    if by_node:
        _nodes(console, explanation)


def print_first_change(console: Console, explanation: Explanation) -> None:
    """Print the first line of the answer, and the first change that helps."""
    _headline(console, explanation)
    for fix in explanation.fixes[:1]:
        console.print(f"  → {escape('; and '.join(edit.text for edit in fix.edits))} → {escape(fix.opened_nodes)}")


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
        colour = "green" if explanation.fits else "red"
        console.print(f"[bold {colour}]{escape(f'{explanation.pod} {explanation.headline}')}[/]")


def _notes(console: Console, notes: Iterable[str]) -> None:
    for note in notes:
        console.print(f"  [yellow]{escape(note)}[/]")


def _bound(console: Console, explanation: Explanation, bound: NodeVerdict) -> None:
    """Print where the pod is, why it has not started there, and where it would go if it were created again."""
    colour = " red" if explanation.not_started else ""
    console.print(f"[bold{colour}]{escape(explanation.pod)} is {escape(explanation.place)}[/]")
    for problem in explanation.not_started:
        console.print(f"  [red]{escape(problem)}[/]")
    for device in explanation.unhealthy:
        console.print(f"  [red]holds a device that is unhealthy: {escape(device)}; it keeps it until it ends[/]")
    completed = any(edit.kind == RECREATE.kind for fix in explanation.fixes for edit in fix.edits)
    again = "without what admission adds" if completed else "created again"
    if not bound.fits:
        against = "; ".join(dict.fromkeys(bound.messages))
        console.print(f"  [yellow]{again}, it would not go there: {escape(against)}[/]")
    console.print(escape(f"{again}, it {explanation.headline}".replace("it fits", "it would fit", 1)))


def _places(console: Console, explanation: Explanation) -> None:
    """Print which GPU the pod gets on which node, the best first."""
    for node in explanation.best[:MOST_BEST]:
        lowered = f"; lowered by {', '.join(node.lowered_by)}" if node.lowered_by else ""
        console.print(f"  [green]{escape(node.node)}[/]  {escape(node.gpu + lowered)}")
    if (more := explanation.fits - MOST_BEST) > 0:
        console.print(f"  and {counted(more, 'more node')}")


def _summary(console: Console, explanation: Explanation) -> None:
    """Print what else decides, a line each: what admission says, the needs, and what leaves out other nodes."""
    for funnel in () if explanation.fits else explanation.devices:
        console.print(f"  request {escape(funnel.request)}: {escape(funnel.steps[-1].detail or funnel.wants)}")
    for name in explanation.unjudged:
        console.print(f"  [yellow]{name} is not checked here: only kube-scheduler can decide[/]")
    refusal, first = explanation.admission.message, explanation.primary
    if not explanation.admission.allowed and not explanation.live:
        said = first is not None and refusal == f"{first.reason}: {first.message}"
        console.print(f"  [red]admission refuses it{escape(' for that reason' if said else f': {refusal}')}[/]")
    for warning in explanation.admission.warnings if explanation.bound is None else ():
        # The first line says it, or administrators ask it, or it was said.
        if not warning.startswith((NOWHERE, FROM_ZERO)) and warning not in explanation.notes:
            console.print(f"  [yellow]admission warns: {escape(warning)}[/]")
    # Without where it says so, and without the memory of shared GPUs, which repeats that of each GPU.
    needs = (need.partition(" (container")[0] for need in explanation.needs if not need.startswith("declares "))
    if shown := "; ".join((*needs, *explanation.claimed)):
        console.print(f"  [dim]needs {escape(shown)}[/]")
    cuts = sorted((step for step in explanation.funnel if step.cut and step.message), key=lambda step: -step.cut)
    if explanation.fits and cuts and explanation.bound is None:
        words = "; ".join(f"{counted(step.cut, 'node')}: {step.message}" for step in cuts[:MOST_STAGES])
        console.print(f"  [dim]left out {escape(words)}[/]")
    console.print("[dim]--details: what this rests on, and all changes that help[/]")


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
    if not explanation.admission.allowed and not explanation.live:
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


def _fixes(console: Console, explanation: Explanation, most: int) -> None:
    if explanation.fits:
        return
    if not explanation.fixes:
        console.print(f"[bold]{escape(explanation.no_change)}[/]")
        return
    console.print("[bold]smallest changes that help[/] [dim](each verified)[/]")
    ending = [fix for fix in explanation.fixes if any(edit.evicts for edit in fix.edits)][:1]
    first = explanation.fixes[:most]
    for number, fix in enumerate((*first, *(fix for fix in ending if fix not in first)), 1):
        opened = f" [dim]→ {escape(fix.opened_nodes)}[/]"
        for position, edit in enumerate(fix.edits):
            prefix = f"  [bold]{number}[/] " if not position else "    [dim]and[/] "
            console.print(prefix + escape(edit.text) + ("" if position else opened))


def _best(console: Console, explanation: Explanation) -> None:
    if not explanation.best:
        return
    console.print("\n[bold]best nodes[/]")
    for node in explanation.best:
        parts = ", ".join(f"{name} {part['score']:g}" for name, part in node.scores.items())
        lowered = f"lowered by {', '.join(node.lowered_by)}" if node.lowered_by else ""
        said = "; ".join(filter(None, (node.gpu, ", ".join(filter(None, (parts, lowered))))))
        console.print(f"  [green]{node.score:3}[/]  {escape(node.node)}  [dim]{escape(said)}[/]")


def _nodes(console: Console, explanation: Explanation) -> None:
    columns = [Column(name, overflow="fold") for name in ("node", "why not")]
    rows = (
        (escape(verdict.node), "[green]fits[/]" if verdict.fits else escape("; ".join(dict.fromkeys(verdict.messages))))
        for verdict in explanation.verdicts or ()
    )
    console.print(table_of(columns, rows, "\n[bold]node by node[/]", ruled=False))
