# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher advise`: finds MIG layouts for pods that wait, the fewest moves that free a node, and right sizes."""

from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.markup import escape

from app.cli.advise_repack import FREED, OPTIONAL, freed_of, repacked, show_repack
from app.cli.help import verb_group
from app.cli.names import names_of
from app.cli.output import Output, one_of, show
from app.cli.progress import show_progress
from app.cli.records import command
from app.cli.right_size import find_right_sizes, show_right_sizes
from app.cli.source import Fleet, Policies, policies_in, state_of
from app.cli.usage import PricesFile, read_prices_file
from app.cli.usage_history import PrometheusURL, Since, TokenFile, history_of, read_since
from app.cli.whatif import Nodes, gpu_pods, selected
from app.telemetry.logs import now
from app.whatif.advice import Advice, advise_layout
from app.whatif.repack import MOST_MOVES, Freed

advice = verb_group("Advise on what to change.")


@command(advice)
def mig(
    *,
    nodes: Nodes = "",
    fleet: Fleet,
    policies: Policies = None,
    output: Output = "text",
) -> None:
    """Find a MIG layout of idle nodes for the pods that wait for slices (nvidia.com/mig-*).

    Stdout has the configuration for mig-parted (the mig-parted-config of MIG Manager), with the nodes it is for and the
    pods that it gives a place to as comments. Only GPU nodes without GPU pods are changed, so that nobody is evicted;
    those with less memory come first, and no more GPUs than needed, so that others keep their layout. What those pods
    leave of a GPU becomes slices in the mix that all pods request, running ones included. Nodes must use MIG strategy
    mixed. Exit 1 if pods stay without a slice.
    """
    objects = fleet.read()
    state = state_of(objects)
    pods = list(gpu_pods(objects, state, policies_in(objects, policies, state)))
    idle = [name for name in selected(state, nodes) if not state.usage_on(name)]
    with show_progress("finding slices for waiting pods"):
        result = advise_layout(state.nodes, idle, pods, state.knowledge)
    show(result, output, lambda console: _show(console, result))
    raise typer.Exit(1 if result.unplaced else 0)


@command(advice)
def repack(
    *,
    free: Annotated[str, one_of(*FREED, names=("--free",), prefix="What to free: ", callback=freed_of)] = "node",
    nodes: Nodes = "",
    most_moves: Annotated[int, typer.Option("--moves", min=1, max=64, help="The most pods to move.")] = MOST_MOVES,
    fleet: Fleet,
    policies: Policies = None,
    output: Output = "text",
) -> None:
    """Find the fewest restarts of pods that free a node, an NVLink domain, or places for the pods that wait.

    Only pods move that a controller makes again, that no PodDisruptionBudget and no annotation of cluster-autoscaler,
    Karpenter or the descheduler protects, and for a pod that waits only those of no higher priority. Each move is
    proven by the checks of kube-scheduler and by our filters, in order, with the moves before it made. Nothing is
    moved: the steps are for you, one at a time, each when the pod before runs again. Of plans with as many restarts the
    one is preferred that loses the fewest GPU-hours: those that the pods have run since their start (status.startTime),
    as nobody knows their checkpoints; an unknown start counts as the longest. With few moves the search is exact; else
    it is greedy, and says so. Exit 1 if there is no such plan.
    """
    objects = fleet.read(optional=OPTIONAL)
    state = state_of(objects)
    chosen = selected(state, nodes)
    with show_progress("searching for moves"):
        rules, time = policies_in(objects, policies, state), now().timestamp()
        result = repacked(objects, state, rules, chosen, Freed(free), most_moves, time)
    show(result, output, lambda console: show_repack(console, result))
    raise typer.Exit(0 if result.possible else 1)


@command(advice, "right-size")
def right_size(
    *,
    prometheus: PrometheusURL = None,
    prometheus_token_file: TokenFile = None,
    since: Since = "7d",
    prices: PricesFile = None,
    fleet: Fleet,
    policies: Policies = None,
    output: Output = "text",
) -> None:
    """Find the smallest slice, share or product that would have carried each workload's peak, proven on the engine.

    A workload is judged where its use is known for a day and without gaps, and its pods hold one GPU or slice each. The
    unit must have a fifth more memory and computation than the peak. Computation is the share of multiprocessors in use
    where DCGM_FI_PROF_SM_ACTIVE is exported; else any moment of full activity counts as the whole GPU. Another product
    counts only where --prices says the speeds of both. Each patch was tried: admission, the filters and
    kube-scheduler's checks leave every pod a node. Nothing is written.
    """
    seconds = read_since(since)
    objects = fleet.read()
    state = state_of(objects)
    costs = read_prices_file(prices, state.knowledge)
    history = history_of(prometheus, prometheus_token_file, fleet.demo_fleet, state, seconds)
    rules = policies_in(objects, policies, state)
    with show_progress("trying smaller units"):
        result = find_right_sizes(objects, state, rules, history, costs)
    show(result, output, lambda console: show_right_sizes(console, result))


def _show(console: Console, result: Advice) -> None:
    """Print the configuration, and everything else as comments."""
    for layout in result.layouts:
        console.print(f"# kubectl label node {escape(layout.node)} --overwrite nvidia.com/mig.config={layout.config}")
        console.print(f"#   {escape(layout.product)}, seats {escape(names_of(layout.pods))}")
    if result.fitting:
        console.print(f"# slices there already would do for: {escape(names_of(result.fitting))}")
    if result.unplaced:
        console.print(f"# [yellow]no idle GPU takes: {escape(names_of(result.unplaced))}[/]")
    if result.configuration:
        print(yaml.safe_dump(result.configuration, sort_keys=False), end="")
    else:
        console.print("# nothing to change")
