# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher plan driver`, `relayout`, `claims`, `node-template`: nodes as they would be, and the effects on pods."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import typer
from rich.console import Console
from rich.markup import escape

from app.admission.claim_conversion import Conversion, NoEquivalent, convert
from app.admission.preview import admitted_pod, templates_of_new_object, unbound, wanted_template
from app.admission.reviewed_pod import ReviewContext
from app.cli.mutate import namespace_of, read_file
from app.cli.options import GovernedFleet
from app.cli.output import MOST_SHOWN, names_of, show, show_count, show_more, show_progress
from app.cli.source import Objects, govern, home_of, read, read_governed, unfinished_pods
from app.kube.pods import read_pod
from app.policy.compiled import PolicySet
from app.policy.demand import Demand
from app.values.errors import BadInput
from app.values.json_members import Object
from app.values.label_requirements import Requirement, all_allow, label_requirement
from app.values.reasons import counted
from app.values.versions import parse_version
from app.whatif.dra import DRAMove, MovingPod, MovingWorkload, NodeMove, plan_move
from app.whatif.driver import NodeTurn, Rollout, plan_rollout
from app.whatif.mig_relayout import MIGRelayout, parse_layout, relayout
from app.whatif.node_template import node_template
from app.whatif.placing_in_turn import GPUPod
from app.world.state import State
from app.world.world import RulingCache, world_of


def moving_pods(objects: Objects, state: State, policies: PolicySet) -> Iterator[MovingPod]:
    """Yield the unfinished pods that request or claim GPUs, with what they become.

    Raises MalformedPod, QuantityError.
    """
    context = ReviewContext(world_of(state, policies))
    for pod, document in documents_of_gpu_pods(unfinished_pods(objects), state, policies):
        yield MovingPod(pod, _outcome(document, pod.demand, state, context) if pod.demand.resources else None)


def _outcome(
    document: Object, demand: Demand, state: State, context: ReviewContext
) -> Conversion | NoEquivalent | None:
    """Convert a pod as it was created; None for one that admission would leave alone."""
    pod = read_pod(unbound(document))
    outcome = convert(pod, demand, context.world.knowledge, context.world.state.devices.shares())
    wanted = wanted_template(document, pod.namespace, state.namespaces.labels(pod.namespace), context)
    return None if isinstance(outcome, Conversion) and wanted.template is None else outcome


def show_move(console: Console, move: DRAMove) -> None:
    """Print what pods become, which nodes cannot move, and the order of the others."""
    console.print(f"[bold]to DRA[/]: {counted(move.nodes, 'node')}, {move.already} of them there already")
    for workload in move.workloads[:MOST_SHOWN]:
        _show_workload(console, workload)
    show_more(console, move.workloads, MOST_SHOWN, " kinds of pods")
    for node in move.held:
        console.print(f"[red]{escape(node.node)} cannot move[/]: {escape(names_of(node.pods))}")
        console.print(f"  {escape('; '.join(node.reasons))}")
    _show_order(console, [(turn.node, turn) for turn in move.order])


def _show_order(console: Console, turns: Sequence[tuple[str, NodeMove | NodeTurn]]) -> None:
    """Print the order in which nodes are changed, each with its name."""
    console.print("[bold]order[/] (cordon the nodes that come later)")
    for number, (name, turn) in enumerate(turns, 1):
        evicts = f"evicts {len(turn.evicts)}: {names_of(turn.evicts)}" if turn.evicts else "evicts no pod"
        console.print(f"{number:4} {escape(name)} {escape(evicts)}")
        if turn.waiting:
            console.print(f"     [yellow]no place until later: {escape(names_of(turn.waiting))}[/]")
    console.print(f"{counted(sum(len(turn.evicts) for _, turn in turns), 'eviction')} in all")


def _show_workload(console: Console, workload: MovingWorkload) -> None:
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


_PART = re.compile(r"\s*(?:([^\s,()=!]+)\s+(in|notin)\s*\(([^)]*)\)|([^,()]+))\s*(?:,|$)")


def parse_selector(text: str) -> tuple[Requirement, ...]:
    """Read a selector such as `pool=gpu,zone in (a,b),!spot`; an empty one selects everything.

    Raises BadInput.
    """
    requirements, position = [], 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            raise BadInput(f"selector: got {text[:80]!r}, wants such as pool=gpu,zone in (a,b),!spot")
        key, operator, values, simple = match.groups()
        if key:
            listed = [value.strip() for value in values.split(",")]
            requirements.append(label_requirement(key, "In" if operator == "in" else "NotIn", listed))
        else:
            requirements.append(_simple(simple.strip()))
        position = match.end()
    return tuple(requirements)


def _simple(text: str) -> Requirement:
    for sign, operator in (("!=", "NotIn"), ("==", "In"), ("=", "In")):
        key, present, value = text.partition(sign)
        if present:
            return label_requirement(_key(key), operator, (value.strip(),))
    if text.startswith("!"):
        return label_requirement(_key(text[1:]), "DoesNotExist")
    return label_requirement(_key(text), "Exists")


def _key(text: str) -> str:
    key = text.strip()
    if not re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?", key):
        raise BadInput(f"selector: got key {key[:60]!r}, wants a label's key such as nvidia.com/gpu.product")
    return key


def driver(*, to: str, nodes: str, fleet: GovernedFleet, output: str) -> None:
    objects, state, rules = read_governed(fleet)
    pods = list(gpu_pods(objects, state, rules))
    with show_progress("judging pods with both drivers"):
        rollout = plan_rollout(state.nodes, selected(state, nodes), pods, parse_version(to), state.knowledge.cuda)
    show(rollout, output, lambda console: _show_rollout(console, rollout))
    raise typer.Exit(1 if rollout.leaves_pods_without_nodes else 0)


def change_layout(*, layout: str, nodes: str, fleet: GovernedFleet, output: str) -> None:
    objects, state, rules = read_governed(fleet)
    pods = list(gpu_pods(objects, state, rules))
    with show_progress("placing pods in the new layout"):
        result = relayout(state.nodes, selected(state, nodes), pods, parse_layout(layout), state.knowledge)
    show(result, output, lambda console: _show_mig(console, result))
    raise typer.Exit(1 if any(node.problem for node in result.nodes) else 0)


def move_to_claims(*, nodes: str, fleet: GovernedFleet, output: str) -> None:
    objects, state, rules = read_governed(fleet)
    chosen = selected(state, nodes)
    with show_progress("converting pods"):
        move = plan_move(state.nodes, chosen, list(moving_pods(objects, state, rules)))
    show(move, output, lambda console: show_move(console, move))
    raise typer.Exit(1 if move.held else 0)


def find_node_template(*, file: str, fleet: GovernedFleet, namespace: str | None, output: str) -> None:
    documents = read_file(file)
    _, state, rules = govern(fleet, read(fleet) if fleet.given else [])
    context, home = ReviewContext(world_of(state, rules)), home_of(fleet, namespace)
    asking = []
    for document in documents:
        where = namespace_of(document, home)
        for target in templates_of_new_object(document, state.knowledge.workloads):
            pod = admitted_pod(target.document, where, state.namespaces.labels, context)
            demand = context.ruling(read_pod(pod, where), state.namespaces.labels(where)).demand
            asking += [(demand, pod)] if demand.requests_gpus else []
    if len(asking) != 1:
        raise BadInput(f"{file}: got {len(asking)} Pods and pod templates that ask for GPUs, wants one")
    template = node_template(*asking[0], state.knowledge)
    show(template, output, lambda _: None)
    raise typer.Exit(0 if template.products else 1)


def selected(state: State, selector: str) -> list[str]:
    """Return the names of the GPU nodes that a label selector selects.

    Raises BadInput if there are none.
    """
    requirements = parse_selector(selector)
    names = [name for name, node in state.nodes.items() if node.has_gpus and all_allow(requirements, node.labels)]
    if not names:
        raise BadInput(f"--nodes {selector[:80]!r}: chooses none of {len(state.nodes)} nodes, wants GPU nodes")
    return names


def gpu_pods(objects: Objects, state: State, policies: PolicySet) -> Iterator[GPUPod]:
    """Yield the unfinished pods that request GPUs, with their demands."""
    with show_count(objects, "reading what pods need", len(objects)) as documents:
        yield from (pod for pod, _ in documents_of_gpu_pods(unfinished_pods(documents), state, policies))


def documents_of_gpu_pods(
    documents: Iterable[Object], state: State, policies: PolicySet
) -> Iterator[tuple[GPUPod, Object]]:
    """Yield the pods that request or claim GPUs, each with its document.

    Raises MalformedPod, QuantityError.
    """
    rule = RulingCache().of
    for document in documents:
        pod = read_pod(document)
        labels = state.namespaces.labels(pod.namespace)
        demand = rule(pod, labels, policies, state).demand
        if demand.requests_gpus:
            yield GPUPod(f"{pod.namespace}/{pod.name}", pod.uid, pod.node_name or "", demand), document


def _show_rollout(console: Console, rollout: Rollout) -> None:
    console.print(
        f"[bold]driver {rollout.to}[/]: {counted(rollout.nodes, 'node')} selected, {rollout.already} with it already"
    )
    for effect in rollout.effects[:MOST_SHOWN]:
        gains, loses = [f"{effect.gains} more"] * bool(effect.gains), [f"{effect.loses} fewer"] * bool(effect.loses)
        plural = "s" * (max(effect.gains, effect.loses) > 1)
        change = f"{' and '.join([*gains, *loses])} node{plural} could serve"
        colour = "red" if effect.loses and not effect.eligible_after else "yellow" if effect.loses else "green"
        left = effect.eligible_after or "none"
        console.print(f"[{colour}]{change}, {left} after the change[/]: {escape(names_of(effect.pods))}")
        if effect.loses:
            console.print(f"  lost: {escape(effect.why)}")
        if effect.bound_there:
            console.print(
                f"  run there now and would not be placed there again: {escape(names_of(effect.bound_there))}"
            )
    if not rollout.effects:
        console.print("no pod gains or loses a node")
    _show_order(console, [(f"{turn.node} ({turn.driver})", turn) for turn in rollout.order])


def _show_mig(console: Console, relayout: MIGRelayout) -> None:
    for node in relayout.nodes[:MOST_SHOWN]:
        if node.problem:
            console.print(f"{escape(node.node)}: [red]{escape(node.problem)}[/]")
            continue
        console.print(f"{escape(node.node)}: {_amounts(node.before)} → [bold]{_amounts(node.after)}[/]")
        if node.evicts:
            console.print(f"  [yellow]evicts {len(node.evicts)}: {escape(names_of(node.evicts))}[/]")
    show_more(console, relayout.nodes, MOST_SHOWN, " nodes")
    for label, pods in (
        ("have a place then", relayout.gained),
        ("have none then", relayout.lost),
        ("wait on", relayout.waiting),
    ):
        if pods:
            console.print(f"{label}: {escape(names_of(pods))}")
    if not (relayout.gained or relayout.lost):
        console.print("no pod gains or loses a place")
    console.print(f"fragmentation: {relayout.fragmentation_before:.1%} → [bold]{relayout.fragmentation_after:.1%}[/]")


def _amounts(units: Mapping[str, int]) -> str:
    return ", ".join(f"{amount} x {name}" for name, amount in units.items() if amount) or "nothing"
