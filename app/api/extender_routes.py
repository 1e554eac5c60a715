# SPDX-License-Identifier: Apache-2.0
"""The extender routes filter and prioritize: ExtenderArgs in, the answer out, in the form of the request.

Preemption is in api/preemption.py.

No await and no I/O: each verb reads the state as it stands and answers (docs/reference/listeners.md#state).

A pod that requests no GPUs gets back every node that it came with, and `prioritize` keeps it off nodes with GPUs. With
`other_pods` the request came by the second extender of a configuration, which kube-scheduler asks about every pod; pods
that name a resource of the first one have been judged there (docs/reference/control-plane.md#two-extenders).
"""

import time
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import msgspec

from app.api.wire import (
    AskedPod,
    ExtenderArgs,
    HostPriority,
    check_bulk,
    decode_extender_args,
    decode_node,
    encode,
    read_asked,
)
from app.cluster.core import Core
from app.cluster.verdict_cache import VerdictTable
from app.intree.soft_constraints import SoftConstraints
from app.kube.pods import Pod
from app.nodes.model import Node
from app.nodes.reading import node_of
from app.placement.engine import judge, total
from app.placement.ranking import HIGHEST, best_in_turn, best_of_each, best_position, demand_scores
from app.placement.scheduler_demand import place_is_promised
from app.policy.demand import Demand
from app.values.computations import finish
from app.values.errors import BadInput, WireError
from app.values.reasons import Code, Reason, reason


@dataclass(frozen=True, slots=True)
class FittingNodes:
    """The nodes that fit, at least one: their names, their totals in the same order, and how to find one by name."""

    names: Sequence[str]
    totals: Sequence[float]
    node: Callable[[str], Node]

    def without(self, excluded: frozenset[str]) -> "FittingNodes":
        """Return the nodes without these; all of them if none would be left."""
        left = [name not in excluded for name in self.names]
        names = list(compress(self.names, left))
        return FittingNodes(names, list(compress(self.totals, left)), self.node) if names else self


def chosen(pod: Pod, soft: SoftConstraints, demand: Demand, fitting: FittingNodes, core: Core) -> list[str]:
    """Return the names of the nodes to name, at least one, best first.

    Pods of a PodGroup do not take turns: a further question about one tells nothing of a binding, and members of one
    template get one answer, so that they fill a node before the next.
    """
    if not pod.pod_group and (offered := core.offered_nodes.of(pod.uid)):
        fitting = fitting.without(offered)
    places = 1 if place_is_promised(pod, demand) else core.settings.shortlist
    turn = best_position(fitting.names, fitting.totals) if pod.pod_group else zlib.crc32(pod.uid.encode())
    positions = _shortlist(soft, demand, fitting, turn, places)
    names = [fitting.names[position] for position in positions]
    if (nominated := pod.nominated_node_name) and nominated in fitting.names:
        names = [nominated, *(name for name in names if name != nominated)][:places]
    names = _served_once(names, fitting) if demand.requests_gpus else names
    if not pod.pod_group:
        core.offered_nodes.note(pod.uid, names)
    return names


def _served_once(names: list[str], fitting: FittingNodes) -> list[str]:
    """Name a node that is served twice alone, so that its promise counts for the next pod, or not at all."""
    if fitting.node(names[0]).free.twice is not None:
        return names[:1]
    return [name for name in names if fitting.node(name).free.twice is None]


def _shortlist(soft: SoftConstraints, demand: Demand, fitting: FittingNodes, turn: int, most: int) -> list[int]:
    names, totals = fitting.names, fitting.totals
    best = best_in_turn(totals, turn)
    if soft.wants_something or soft.soft_taints(fitting.node(names[best])):
        traits = soft.traits([fitting.node(name) for name in names])
        return best_of_each(totals, traits, turn, most, not demand.ranked)
    return [best] if demand.ranked else best_of_each(totals, (), turn, most, wide=True)


MOST_NAMES = 20_000
"""Most names of a request; twice the known nodes where that is more. Kubernetes supports 5,000 nodes, and prioritize
takes 30 ms for 20,000."""
NODES_AT_ONCE = 32
"""Whole nodes read and judged between two rests of the event loop; they take 1 ms (measured)."""
NO_NODES: Mapping[str, str] = {}
NO_COUNTS: Mapping[str, int] = {}
NOT_CLOSED: Mapping[str, Reason] = {}
NOT_KNOWN = reason(Code.NodeNotKnown, "node not known to gpu-usher yet", "a node seen in the watch")


@dataclass(frozen=True, slots=True)
class ExtenderAnswer:
    """An answer, and what the log and the metrics need.

    `refused` is the number of nodes by reason. `behind` is the number of kept nodes that are full in our view, because
    our watch is late by a pod. `decided` is false where the pod is decided by another answer.
    """

    body: bytes
    pod: Pod | None = None
    asked: int = 0
    kept: int = 0
    refused: Mapping[Code, int] = field(default_factory=dict)
    error: str | None = None
    behind: int = 0
    decided: bool = True


def filter_nodes(body: bytes, core: Core) -> ExtenderAnswer:
    """Answer filter in one step; see `filter_steps`."""
    return finish(filter_steps(body, core))


def filter_steps(body: bytes, core: Core, other_pods: bool = False) -> Generator[None, None, ExtenderAnswer]:
    """Answer filter: which nodes fit, and why the others do not. Names take one step, whole nodes many.

    Raises WireError 400 and 413.
    """
    args = _read_args(body, core)
    asked = read_asked(args.Pod)
    pod = asked[0]
    if other_pods and by_first_extender(pod, core):
        return _all_nodes(args, pod, decided=False)
    if requests_no_devices(pod):
        return _all_nodes(args, pod)
    if (problem := core.cache_problem()) is not None:
        return ExtenderAnswer(encode({"Error": problem}), pod, error=problem)
    demand = asked_demand(pod, core)
    if not demand.requests_gpus:
        return _all_nodes(args, pod)
    names = args.NodeNames
    if names is None:
        answer, kept = yield from _filter_full(args, asked, demand, core)
    else:
        answer, kept = _filter_names(names, asked, demand, core)
    if len(kept) == 1:  # the scheduler takes a single node without asking prioritize
        core.promise(pod, demand, kept[0])
    elif not (kept or pod.pod_group) and pod.nominated_node_name:  # the victims there are still terminating
        core.promise(pod, demand, pod.nominated_node_name)
    return answer


def by_first_extender(pod: Pod, core: Core) -> bool:
    """Tell whether kube-scheduler asks the first extender about a pod, as its IsInterested does.

    It does where a container names a managed resource, whatever the amount (pkg/scheduler/extender.go).
    """
    managed = core.managed_resources
    return any(name in managed for container in pod.containers for name in (*container.requests, *container.limits))


def requests_no_devices(pod: Pod) -> bool:
    """Tell whether a pod has no claims and requests no extended resources, so that no view of the fleet is needed."""
    amounts = ((*container.requests.items(), *container.limits.items()) for container in pod.containers)
    return not pod.claims and not any("/" in name and amount > 0 for pairs in amounts for name, amount in pairs)


def _all_nodes(args: ExtenderArgs, pod: Pod, decided: bool = True) -> ExtenderAnswer:
    """Answer filter with every node of the request, in its form."""
    if args.NodeNames is not None:
        answer: Mapping[str, Any] = {"NodeNames": args.NodeNames}
        number = len(args.NodeNames)
    else:
        raws = (args.Nodes.items if args.Nodes else None) or []
        answer, number = {"Nodes": {"metadata": {}, "items": raws}}, len(raws)
    return ExtenderAnswer(_filter_body(answer, NO_NODES, NO_NODES), pod, number, number, decided=decided)


def _filter_names(
    names: list[str], asked: AskedPod, demand: Demand, core: Core
) -> tuple[ExtenderAnswer, Sequence[str]]:
    """Filter nodes given by name; return the answer and the names of the nodes that fit."""
    verdicts = core.verdicts(demand)
    kept, totals, lost = verdicts.fitting(names)
    closed = NOT_CLOSED
    if core.groups_matter(asked[0], demand):
        open_nodes, closed = _open_nodes(asked[0], demand, kept, lost, core)
        if open_nodes is not kept:
            kept, totals, fit = open_nodes, verdicts.totals(open_nodes), frozenset(open_nodes)
            lost = [name for name in names if name not in fit]
    if core.settings.filter_answer != "all" and kept:
        kept = chosen(*asked, demand, FittingNodes(kept, totals, core.nodes.__getitem__), core)
    failed, unresolvable = _messages(lost, verdicts, closed) if lost else (NO_NODES, NO_NODES)
    counts = Counter([*failed.values(), *unresolvable.values()]) if lost else NO_COUNTS
    codes = {**verdicts.codes, **{why.message: why.code for why in closed.values()}} if closed else verdicts.codes
    refused = {codes.get(message, NOT_KNOWN.code): count for message, count in counts.items()}
    if core.settings.shadow:
        return _shadowed({"NodeNames": names}, asked[0], len(names), len(kept), refused), ()
    behind = len(verdicts.behind.intersection(kept)) if verdicts.behind else 0
    body = _filter_body({"NodeNames": kept}, failed, unresolvable)
    return ExtenderAnswer(body, asked[0], len(names), len(kept), refused, behind=behind), kept


def _open_nodes(
    pod: Pod, demand: Demand, kept: Sequence[str], lost: Sequence[str], core: Core
) -> tuple[Sequence[str], Mapping[str, Reason]]:
    """Return the nodes that fit and are open to a pod beside groups, and those that are closed to it."""
    closed = core.groups.closed(pod, demand, time.monotonic())
    regained = core.groups.regained(pod, demand, lost, core.settings.recounting)
    if not (regained or closed):
        return kept, closed
    return [name for name in (*kept, *regained) if name not in closed], closed


def _messages(
    lost: Sequence[str], verdicts: VerdictTable, closed: Mapping[str, Reason]
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return filter's two maps for the nodes that do not fit; an unknown node is unresolvable."""
    failed = {name: verdicts.failed[name] for name in lost if name in verdicts.failed} if verdicts.failed else NO_NODES
    if closed:
        beside = {name: closed[name].message for name in lost if name in closed and name not in verdicts.unresolvable}
        failed = {**beside, **failed}
    others = [name for name in lost if name not in failed] if failed else lost
    return failed, {name: verdicts.unresolvable.get(name, NOT_KNOWN.message) for name in others}


def _filter_full(
    args: ExtenderArgs, asked: AskedPod, demand: Demand, core: Core
) -> Generator[None, None, tuple[ExtenderAnswer, Sequence[str]]]:
    """Filter whole nodes; return the answer and the names of the nodes that fit."""
    raws, nodes = yield from _full_nodes(args, core)
    verdicts = []
    for index, node in enumerate(nodes, 1):
        verdicts.append(judge(demand, node, core.settings.recounting))
        if index % NODES_AT_ONCE == 0:
            yield
    if core.groups_matter(asked[0], demand):
        verdicts = _verdicts_beside_groups(asked[0], demand, nodes, verdicts, core)
    kept = [index for index, verdict in enumerate(verdicts) if verdict is None]
    refusals = {node.name: verdict for node, verdict in zip(nodes, verdicts, strict=True) if verdict is not None}
    if core.settings.filter_answer != "all" and kept:
        by_name = {nodes[index].name: nodes[index] for index in kept}
        fitting = FittingNodes(list(by_name), [total(demand, node) for node in by_name.values()], by_name.__getitem__)
        named = chosen(*asked, demand, fitting, core)
        kept = [index for index in kept if nodes[index].name in named]
    answer = {"Nodes": {"metadata": {}, "items": raws if core.settings.shadow else [raws[index] for index in kept]}}
    failed = {name: refusal.message for name, refusal in refusals.items() if refusal.preemptible}
    unresolvable = {name: refusal.message for name, refusal in refusals.items() if not refusal.preemptible}
    refused = Counter(refusal.code for refusal in refusals.values())
    if core.settings.shadow:
        return _shadowed(answer, asked[0], len(nodes), len(kept), refused), ()
    body = _filter_body(answer, failed, unresolvable)
    return ExtenderAnswer(body, asked[0], len(nodes), len(kept), refused), [nodes[index].name for index in kept]


def _verdicts_beside_groups(
    pod: Pod, demand: Demand, nodes: Sequence[Node], verdicts: list[Reason | None], core: Core
) -> list[Reason | None]:
    """Return the verdicts on whole nodes with those that are closed to a pod, or fit by what its own group holds."""
    lost = [node.name for node, verdict in zip(nodes, verdicts, strict=True) if verdict is not None]
    opened, closed = _open_nodes(pod, demand, (), lost, core)
    judged = zip(nodes, verdicts, strict=True)
    return [closed.get(node.name) if verdict is None or node.name in opened else verdict for node, verdict in judged]


def _shadowed(
    answer: Mapping[str, Any], pod: Pod, asked: int, kept: int, refused: Mapping[Code, int]
) -> ExtenderAnswer:
    """Answer that every node fits, and keep the real verdict for the log."""
    return ExtenderAnswer(_filter_body(answer, NO_NODES, NO_NODES), pod, asked, kept, refused)


def _filter_body(answer: Mapping[str, Any], failed: Mapping[str, str], unresolvable: Mapping[str, str]) -> bytes:
    return encode({**answer, "FailedNodes": failed, "FailedAndUnresolvableNodes": unresolvable, "Error": ""})


def prioritize(body: bytes, core: Core) -> ExtenderAnswer:
    """Answer prioritize in one step; see `prioritize_steps`."""
    return finish(prioritize_steps(body, core))


def prioritize_steps(body: bytes, core: Core, other_pods: bool = False) -> Generator[None, None, ExtenderAnswer]:
    """Answer prioritize: an integer 0..10 per node, 10 for the best; all 0 while the state is not synced.

    Of `other_pods` those with claims get 0 for each node of a shortlist, among which kube-scheduler chooses by itself.
    Raises WireError 400 and 413.
    """
    args = _read_args(body, core)
    pod, _ = read_asked(args.Pod)
    demand = asked_demand(pod, core)
    if other_pods and (by_first_extender(pod, core) or (demand.requests_gpus and core.settings.filter_answer != "all")):
        unscored = [HostPriority(name, 0) for name in args.NodeNames or ()]
        return ExtenderAnswer(encode(unscored), pod, len(unscored), len(unscored), decided=False)
    if args.NodeNames is not None:
        names: Sequence[str] = args.NodeNames
        totals = core.verdicts(demand).totals(names)
    else:
        nodes = (yield from _full_nodes(args, core))[1]
        names, totals = [node.name for node in nodes], []
        for index, node in enumerate(nodes, 1):
            totals.append(total(demand, node))
            if index % NODES_AT_ONCE == 0:
                yield
    if core.cache_problem() is not None or core.settings.shadow or not names:
        scores = [0] * len(names)
    else:
        scores = demand_scores(demand, names, totals, one_best=place_is_promised(pod, demand))
        if demand.requests_gpus:
            core.promise(pod, demand, names[scores.index(HIGHEST)])
    return ExtenderAnswer(encode(list(map(HostPriority, names, scores))), pod, len(names), len(names))


def _read_args(body: bytes, core: Core) -> ExtenderArgs:
    """Read the body of filter or prioritize, and check the number of names against the fleet.

    Raises WireError 400 and 413.
    """
    check_bulk(body, len(core.nodes))
    args = decode_extender_args(body)
    most = max(MOST_NAMES, 2 * len(core.nodes))
    if args.NodeNames is not None and len(args.NodeNames) > most:
        raise WireError(413, f"NodeNames: got {len(args.NodeNames)}, wants at most {most}")
    return args


def _full_nodes(args: ExtenderArgs, core: Core) -> Generator[None, None, tuple[list[msgspec.Raw], list[Node]]]:
    """Read whole nodes: labels and amounts from the body, and what else is known of them from the state."""
    raws = (args.Nodes.items if args.Nodes else None) or []
    knowledge = core.state.knowledge
    nodes = []
    for index, raw in enumerate(raws):
        try:
            node = node_of(decode_node(raw), knowledge)
        except BadInput as error:
            raise WireError(400, f"Nodes.items[{index}]: {error}") from error
        nodes.append(core.state.add_known_facts(node))
        if index % NODES_AT_ONCE == NODES_AT_ONCE - 1:
            yield
    return raws, nodes


def asked_demand(pod: Pod, core: Core) -> Demand:
    """Compile what a Pod needs, and note that it was asked about."""
    demand = core.demand(pod)
    core.note_scheduler_request(pod, demand)
    return demand
