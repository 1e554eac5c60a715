# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher whatif`: the fleet as it would be with another driver, and what its pods make of it."""

from collections.abc import Iterator, Mapping
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from app.admission.preview import admitted_pod, target_of_new_object
from app.admission.review import ReviewContext
from app.cli.help import Verb, VerbGroup
from app.cli.mutate import namespace_of, read_file
from app.cli.output import Output, output_of, show
from app.cli.progress import counted, doing
from app.cli.source import DemoFleet, Kubeconfig, Objects, Policies, Snapshots, policies_in, read_objects_of, state_of
from app.cluster.ruling_cache import RulingCache
from app.cluster.state import State
from app.kube.gpu_usage import FINISHED
from app.kube.pods import read_pod
from app.policy.compiled import PolicySet
from app.values.errors import BadInput
from app.values.label_requirements import all_allow
from app.values.versions import parse_version
from app.whatif.driver import Rollout, plan_rollout
from app.whatif.mig_relayout import MIGRelayout, parse_layout, relayout
from app.whatif.node_template import node_template
from app.whatif.placing_in_turn import GPUPod
from app.whatif.selector import parse_selector

whatif = typer.Typer(
    help="Show a fleet as it would be, and what its pods make of it.", no_args_is_help=True, cls=VerbGroup
)
SHOWN = 10
"""Groups, nodes and names shown; -o json has all."""
Nodes = Annotated[str, typer.Option("--nodes", help="Label selector, as of kubectl -l; empty is all GPU nodes.")]


@whatif.callback()
def _group() -> None:
    """Show a fleet as it would be, and what its pods make of it."""


@whatif.command(cls=Verb)
def driver(
    to: Annotated[str, typer.Option("--to", help="The driver's version, as 580.65.06.")],
    nodes: Nodes = "",
    snapshot: Snapshots = None,
    kubeconfig: Kubeconfig = None,
    demo_fleet: DemoFleet = None,
    policies: Policies = None,
    output: Output = "text",
) -> None:
    """Show what another driver on some nodes changes: which pods gain or lose them, and the order with least eviction.

    Every GPU pod of the fleet, running or waiting, is judged on these nodes with the old and the new driver: CUDA with
    minor-version and forward compatibility, NVIDIA_REQUIRE_*, policies. Nodes with the fewest pods come first; with the
    others cordoned nobody is evicted twice, and pods for which no place is left until then are named. Taints, CPU and
    memory are the scheduler's to judge. Exit 1 where pods are left that no node of the fleet could serve.
    """
    objects = read_objects_of(snapshot, kubeconfig, demo_fleet)
    state = state_of(objects)
    rules = policies_in(objects, policies, state)
    wanting = list(pods_wanting(objects, state, rules))
    with doing("judging pods with both drivers"):
        found = plan_rollout(state.nodes, selected(state, nodes), wanting, parse_version(to), state.knowledge.cuda)
    show(found, output, lambda console: _show(console, found))
    raise typer.Exit(1 if found.strands else 0)


@whatif.command(cls=Verb)
def mig(
    layout: Annotated[
        str, typer.Option("--layout", help="all-1g.10gb, all-balanced, all-disabled, or 1g.10gb:2,3g.40gb:1.")
    ],
    nodes: Nodes = "",
    snapshot: Snapshots = None,
    kubeconfig: Kubeconfig = None,
    demo_fleet: DemoFleet = None,
    policies: Policies = None,
    output: Output = "text",
) -> None:
    """Show what another MIG layout on some nodes changes: what they offer, whom that evicts, who has a place then.

    Every GPU of the nodes gets the layout; MIG Manager stops all GPU pods of a node to change it. Those evicted and the
    waiting pods are then seated one after another, the evicted ones first. Nodes keep their MIG strategy: under single
    the slices are nvidia.com/gpu, else nvidia.com/mig-*. Fragmentation is the share of the free memory slices that the
    next pod is expected not to be able to use, by the mix of what all pods ask. Exit 1 where a node cannot have the
    layout.
    """
    objects = read_objects_of(snapshot, kubeconfig, demo_fleet)
    state = state_of(objects)
    rules = policies_in(objects, policies, state)
    wanting = list(pods_wanting(objects, state, rules))
    with doing("seating pods in the new layout"):
        found = relayout(state.nodes, selected(state, nodes), wanting, parse_layout(layout), state.knowledge)
    show(found, output, lambda console: _show_mig(console, found))
    raise typer.Exit(1 if any(each.problem for each in found.nodes) else 0)


@whatif.command("node-template", cls=Verb)
def node_template_(
    file: Annotated[str, typer.Option("--filename", "-f", help="YAML or JSON of one Pod or workload; - is stdin.")],
    snapshot: Snapshots = None,
    kubeconfig: Kubeconfig = None,
    demo_fleet: DemoFleet = None,
    policies: Policies = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="For an object that names none.")] = "default",
    output: Annotated[str, output_of("yaml", "json")] = "yaml",
) -> None:
    """Say what a new node would need for a pod: GPU products, driver, labels, taints that it may have, resources.

    It is written as requirements of a Karpenter NodePool (node_pool) and as node-template tags of the Cluster
    Autoscaler (tags), so that a group that has no node yet is seen to fit. A fleet is not needed; with one, admission
    adds tolerations of the taints that its nodes carry. Exit 1 where no product will do.
    """
    asked = [each for each in read_file(file) if target_of_new_object(each) is not None]
    if len(asked) != 1:
        raise BadInput(f"{file}: got {len(asked)} Pods and workloads, wants one")
    given = snapshot or kubeconfig or demo_fleet
    objects = read_objects_of(snapshot, kubeconfig, demo_fleet) if given else []
    state = state_of(objects)
    rules = policies_in(objects, policies, state)
    setting = ReviewContext(rules, state.fleet(), state.knowledge, claimed=state.claimed)
    where = namespace_of(asked[0], namespace)
    pod = admitted_pod(asked[0], where, state.namespace_labels, setting)
    ruling = setting.ruling(read_pod(pod, where), state.namespace_labels(where))
    if not ruling.demand.requests_gpus:
        raise BadInput(f"{file}: asks for no GPU, wants a pod that does")
    found = node_template(ruling.demand, pod, state.knowledge)
    show(found, output, lambda _: None)
    raise typer.Exit(0 if found.products else 1)


def selected(state: State, selector: str) -> list[str]:
    """Name the GPU nodes that a label selector chooses.

    Raises BadInput where there are none.
    """
    wanted = parse_selector(selector)
    found = [name for name, node in state.nodes.items() if node.has_gpus and all_allow(wanted, node.labels)]
    if not found:
        raise BadInput(f"--nodes {selector[:80]!r}: chooses none of {len(state.nodes)} nodes, wants GPU nodes")
    return found


def pods_wanting(objects: Objects, state: State, policies: PolicySet) -> Iterator[GPUPod]:
    """List the unfinished pods that ask for GPUs, with what they need."""
    rule = RulingCache().of
    with counted(objects, "reading what pods need", len(objects)) as read:
        for each in read:
            if each.get("kind") != "Pod" or (each.get("status") or {}).get("phase") in FINISHED:
                continue
            pod = read_pod(each)
            labels = state.namespace_labels(pod.namespace)
            demand = rule(pod, labels, policies, state.knowledge, state.claimed(pod)).demand
            if demand.requests_gpus:
                yield GPUPod(f"{pod.namespace}/{pod.name}", pod.uid, pod.node_name or "", demand)


def names_of(pods: tuple[str, ...]) -> str:
    """Name the first pods, and count the others."""
    more = len(pods) - SHOWN
    return ", ".join(pods[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _show(console: Console, found: Rollout) -> None:
    console.print(f"[bold]driver {found.to}[/] on {found.nodes} nodes, of which {found.already} have it")
    for each in found.effects[:SHOWN]:
        gains, loses = [f"{each.gains} more"] * bool(each.gains), [f"{each.loses} fewer"] * bool(each.loses)
        many = "s" * (max(each.gains, each.loses) > 1)
        change = f"{' and '.join([*gains, *loses])} node{many}, {each.eligible_after or 'none'} in all"
        colour = "red" if each.loses and not each.eligible_after else "yellow" if each.loses else "green"
        console.print(f"[{colour}]{change}[/]: {escape(names_of(each.pods))}")
        if each.loses:
            console.print(f"  lost: {escape(each.why)}")
        if each.bound_there:
            console.print(f"  run there now and will not come back: {escape(names_of(each.bound_there))}")
    if not found.effects:
        console.print("no pod gains or loses a node")
    console.print("[bold]order[/] (others cordoned meanwhile)")
    for number, turn in enumerate(found.order, 1):
        evicts = f"evicts {len(turn.evicts)}: {names_of(turn.evicts)}" if turn.evicts else "evicts nobody"
        console.print(f"{number:4} {escape(turn.node)} ({turn.driver}) {escape(evicts)}")
        if turn.waiting:
            console.print(f"     [yellow]no place until later: {escape(names_of(turn.waiting))}[/]")
    console.print(f"{sum(len(turn.evicts) for turn in found.order)} evictions in all")


def _show_mig(console: Console, found: MIGRelayout) -> None:
    for each in found.nodes[:SHOWN]:
        if each.problem:
            console.print(f"{escape(each.node)}: [red]{escape(each.problem)}[/]")
            continue
        console.print(f"{escape(each.node)}: {_amounts(each.before)} → [bold]{_amounts(each.after)}[/]")
        if each.evicts:
            console.print(f"  [yellow]evicts {len(each.evicts)}: {escape(names_of(each.evicts))}[/]")
    if len(found.nodes) > SHOWN:
        console.print(f"and {len(found.nodes) - SHOWN} more nodes; -o json has all")
    for words, pods in (
        ("have a place then", found.gained),
        ("have none then", found.lost),
        ("wait on", found.waiting),
    ):
        if pods:
            console.print(f"{words}: {escape(names_of(pods))}")
    if not (found.gained or found.lost):
        console.print("no pod gains or loses a place")
    console.print(f"fragmentation: {found.fragmentation_before:.1%} → [bold]{found.fragmentation_after:.1%}[/]")


def _amounts(units: Mapping[str, int]) -> str:
    return ", ".join(f"{amount} x {name}" for name, amount in units.items() if amount) or "nothing"
