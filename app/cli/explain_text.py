# SPDX-License-Identifier: Apache-2.0
"""An explanation as a text for a person: needs with evidence, the funnel with bars, the smallest changes that help."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from app.explain.explanation import Explanation

BAR = 20
"""Characters of a full bar."""
MOST_ROWS = 40


def print_explanation(console: Console, found: Explanation, by_node: bool = False) -> None:
    """Print it: the answer first."""
    _headline(console, found)
    _needs(console, found)
    _funnel(console, found)
    _fixes(console, found)
    _best(console, found)
    if by_node:
        _nodes(console, found)


def _headline(console: Console, found: Explanation) -> None:
    if found.bound is not None:
        console.print(f"[bold]{escape(found.pod)} is bound to {escape(found.bound.node)}[/]")
        if not found.bound.fits:
            against = "; ".join(dict.fromkeys(found.bound.messages))
            console.print(f"  [yellow]created again, it would not go there: {escape(against)}[/]")
    if found.fits:
        console.print(f"[bold green]{escape(found.pod)} fits on {found.fits} of {found.nodes} nodes[/]")
    elif not found.nodes:
        console.print(f"[bold red]{escape(found.pod)} fits nowhere: there are no nodes[/]")
    else:
        console.print(f"[bold red]{escape(found.pod)} fits on none of {found.nodes} nodes[/]")
    if found.primary is not None:
        nodes = f"{found.primary.nodes} node{'s' if found.primary.nodes > 1 else ''}"
        console.print(f"  {escape(found.primary.message)} [dim]({found.primary.reason}, {nodes})[/]")
    for conflict in found.conflicts:
        console.print(f"  [red]{escape(conflict)}[/]")


def _needs(console: Console, found: Explanation) -> None:
    console.print("\n[bold]needs[/]")
    for each in found.needs or ("no GPU",):
        console.print(f"  {escape(each)}")
    for name, count in found.claims.items():
        console.print(f"  claims {count} of DeviceClass {escape(name)}")
    if found.policies:
        console.print(f"  [dim]policies: {escape(', '.join(found.policies))}[/]")
    for name in found.unjudged:
        console.print(f"  [yellow]{name} is not judged here: only kube-scheduler can tell[/]")
    if found.admission.actions or found.admission.message or found.admission.warnings:
        console.print("\n[bold]admission[/]")
    if not found.admission.allowed:
        console.print(f"  [red]refuses it: {escape(found.admission.message)}[/]")
    for action in found.admission.actions:
        console.print(f"  {escape(action)}")
    for warning in found.admission.warnings:
        console.print(f"  [yellow]warns: {escape(warning)}[/]")


def _funnel(console: Console, found: Explanation) -> None:
    table = Table(title="\n[bold]nodes left[/]", title_justify="left", header_style="dim", box=None, padding=(0, 1))
    for name, justify in (
        ("after", "left"),
        ("", "left"),
        ("left", "right"),
        ("cut", "right"),
        ("mostly because", "left"),
    ):
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name != "mostly because")  # type: ignore[arg-type]
    for step in found.funnel:
        full = round(BAR * step.left / found.nodes) if found.nodes else 0
        bar = "█" * max(full, 1 if step.left else 0)
        colour = "green" if step.left else "red"
        cut = f"-{step.cut}" if step.cut else ""
        table.add_row(step.stage, f"[{colour}]{bar}[/]", str(step.left), cut, escape(step.message or ""))
    console.print(table)


def _fixes(console: Console, found: Explanation) -> None:
    if found.fits:
        return
    if not found.fixes:
        console.print("\n[bold]no small change helps[/]: what the pod asks, no node here comes near to")
        return
    console.print("\n[bold]smallest changes that help[/] [dim](each verified)[/]")
    for number, fix in enumerate(found.fixes, 1):
        opens = f"{fix.opens} node{'s' if fix.opens != 1 else ''}, such as {fix.node}"
        for place, edit in enumerate(fix.edits):
            lead = f"  [bold]{number}[/] " if not place else "    [dim]and[/] "
            console.print(lead + escape(edit.text) + (f" [dim]→ {escape(opens)}[/]" if not place else ""))


def _best(console: Console, found: Explanation) -> None:
    if not found.best:
        return
    console.print("\n[bold]best nodes[/]")
    for seat in found.best:
        gives = ", ".join(f"{name} is {what}" for name, what in seat.gives.items())
        parts = ", ".join(f"{name} {part['score']:g}" for name, part in seat.scores.items())
        lowered = f", lowered by {', '.join(seat.lowered_by)}" if seat.lowered_by else ""
        console.print(
            f"  [green]{seat.score:3}[/]  {escape(seat.node)}  [dim]{escape(gives)}; {parts}{escape(lowered)}[/]"
        )


def _nodes(console: Console, found: Explanation) -> None:
    table = Table(title="\n[bold]node by node[/]", title_justify="left", header_style="dim", box=None, padding=(0, 1))
    table.add_column("node", overflow="fold")
    table.add_column("what stands against it", overflow="fold")
    for each in found.verdicts or ():
        against = "; ".join(dict.fromkeys(each.messages))
        table.add_row(escape(each.node), "[green]fits[/]" if each.fits else escape(against))
    console.print(table)
