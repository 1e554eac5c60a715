# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher advise mig`: a MIG layout for the pods that wait for slices, as mig-parted takes it."""

import typer
import yaml
from rich.console import Console
from rich.markup import escape

from app.cli.help import Verb, VerbGroup
from app.cli.output import Output, show
from app.cli.progress import doing
from app.cli.source import DemoFleet, Kubeconfig, Policies, Snapshots, policies_in, read_objects_of, state_of
from app.cli.whatif import Nodes, names_of, pods_wanting, selected
from app.whatif.advice import Advice, advise_layout

advice = typer.Typer(help="Advise on what to change.", no_args_is_help=True, cls=VerbGroup)


@advice.callback()
def _group() -> None:
    """Advise on what to change."""


@advice.command(cls=Verb)
def mig(
    nodes: Nodes = "",
    snapshot: Snapshots = None,
    kubeconfig: Kubeconfig = None,
    demo_fleet: DemoFleet = None,
    policies: Policies = None,
    output: Output = "text",
) -> None:
    """Find a MIG layout of idle nodes for the pods that wait for slices (nvidia.com/mig-*).

    Stdout has the configuration for mig-parted (the mig-parted-config of MIG Manager), with the nodes it is for and the
    pods that it seats as comments. Only GPU nodes that hold no pod are carved, so that nobody is evicted, those with
    less memory first, and no more GPUs than it takes: others keep the layout that they have. What those pods leave of a
    GPU becomes slices in the mix of what all pods ask, the running ones too. Nodes must use MIG strategy mixed. Exit 1
    where pods stay without a slice.
    """
    objects = read_objects_of(snapshot, kubeconfig, demo_fleet)
    state = state_of(objects)
    pods = list(pods_wanting(objects, state, policies_in(objects, policies, state)))
    idle = [name for name in selected(state, nodes) if not state.usage_on(name)]
    with doing("finding slices for waiting pods"):
        found = advise_layout(state.nodes, idle, pods, state.knowledge)
    show(found, output, lambda console: _show(console, found))
    raise typer.Exit(1 if found.unplaced else 0)


def _show(console: Console, found: Advice) -> None:
    """Print the configuration, and as comments all else."""
    for each in found.layouts:
        console.print(f"# kubectl label node {escape(each.node)} --overwrite nvidia.com/mig.config={each.config}")
        console.print(f"#   {escape(each.product)}, seats {escape(names_of(each.pods))}")
    if found.fitting:
        console.print(f"# slices there already would do for: {escape(names_of(found.fitting))}")
    if found.unplaced:
        console.print(f"# [yellow]no idle GPU takes: {escape(names_of(found.unplaced))}[/]")
    if found.configuration:
        print(yaml.safe_dump(found.configuration, sort_keys=False), end="")
    else:
        console.print("# nothing to change")
