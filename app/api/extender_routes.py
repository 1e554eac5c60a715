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
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

from app.api.wire import ExtenderArgs, HostPriority, decode_node, encode, read_extender_request
from app.cluster.core import AskedPod, Core
from app.kube.pods import Pod
from app.nodes.model import Node
from app.nodes.reading import node_of
from app.placement.engine import judge, total
from app.placement.ranking import HIGHEST, best_in_turn, best_of_each, best_position, demand_scores
from app.values.errors import BadInput, WireError
from app.values.reasons import Code, Reason, reason

NODES_AT_ONCE = 32
"""Whole nodes read and judged between two rests of the event loop; they take 1 ms (measured)."""
PODS_KEPT = 1024
"""Pods whose lists are kept; a scheduler retries within minutes. At 16 names of 100 bytes they are 2 MB."""
NO_NODES: Mapping[str, str] = {}
NOT_OFFERED: frozenset[str] = frozenset()
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


@dataclass(frozen=True, slots=True)
class JudgedNodes:
    """The nodes of a request, each list in its order: those that fit with their totals, and those that do not (`lost`).

    `failed` and `unresolvable` have the messages of nodes that do not fit, by name; a node that neither has is not
    known. `codes` is the reason code by message. `behind` holds the names of nodes that fit only by kube-scheduler's
    count. `node` gives a node by its name, and `totals_of` gives totals.
    """

    names: Sequence[str]
    kept: Sequence[str]
    totals: Sequence[float]
    lost: Sequence[str]
    failed: Mapping[str, str]
    unresolvable: Mapping[str, str]
    codes: Mapping[str, Code]
    behind: AbstractSet[str]
    node: Callable[[str], Node]
    totals_of: Callable[[Sequence[str]], Sequence[float]]

    def without(self, excluded: frozenset[str]) -> "JudgedNodes":
        """Return these without nodes that fit; the same object if none would be left."""
        left = [name not in excluded for name in self.kept]
        kept = list(compress(self.kept, left))
        return replace(self, kept=kept, totals=list(compress(self.totals, left))) if kept else self


def filter_nodes(body: bytes, core: Core, other_pods: bool = False) -> Generator[None, None, ExtenderAnswer]:
    """Answer filter: which nodes fit, and why the others do not. Names take one step, whole nodes many.

    Raises WireError 400 and 413.
    """
    args, pod, soft = read_extender_request(body, len(core.nodes))
    elsewhere = other_pods and by_first_extender(pod, core)
    if elsewhere or requests_no_devices(pod):
        return _all_nodes(args, pod, decided=not elsewhere)
    if (problem := core.cache_problem()) is not None:
        return ExtenderAnswer(encode({"Error": problem}), pod, error=problem)
    asked = core.ask(pod, soft)
    if not asked.demand.requests_gpus:
        return _all_nodes(args, pod)
    if args.NodeNames is not None:
        judged = judge_names(args.NodeNames, asked, core)
    else:
        judged = yield from judge_nodes(args, asked, core)
    if asked.beside_groups:
        judged = beside_groups(judged, asked, core)
    named = judged.kept
    if core.settings.filter_answer != "all" and named:
        named = chosen(judged, asked, core)
    if len(named) == 1 and not core.settings.shadow:  # the scheduler takes a single node without asking prioritize
        core.promise(asked, named[0])
    elif pod.nominated_node_name and not (named or pod.pod_group):  # the victims there are still terminating
        core.promise(asked, pod.nominated_node_name)
    return _filter_answer(args, judged, named, asked, core)


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


def judge_names(names: Sequence[str], asked: AskedPod, core: Core) -> JudgedNodes:
    """Judge nodes given by name, by the cached verdicts."""
    table = core.verdicts.of(asked.demand)
    kept, totals, lost = table.fitting(names)
    return JudgedNodes(
        names,
        kept,
        totals,
        lost,
        table.failed,
        table.unresolvable,
        table.codes,
        table.behind,
        core.nodes.__getitem__,
        table.totals,
    )


def judge_nodes(args: ExtenderArgs, asked: AskedPod, core: Core) -> Generator[None, None, JudgedNodes]:
    """Judge whole nodes, each in one go."""
    nodes = yield from _read_nodes(args, core)
    demand, totals_count = asked.demand, core.settings.filter_answer != "all"
    by_name, refusals, totals = {node.name: node for node in nodes}, dict[str, Reason](), dict[str, float]()
    for index, node in enumerate(nodes, 1):
        if (refusal := judge(demand, node, core.settings.recounting)) is not None:
            refusals[node.name] = refusal
        else:
            totals[node.name] = total(demand, node) if totals_count else 0.0
        if index % NODES_AT_ONCE == 0:
            yield
    return JudgedNodes(
        [node.name for node in nodes],
        list(totals),
        list(totals.values()),
        list(refusals),
        {name: refusal.message for name, refusal in refusals.items() if refusal.preemptible},
        {name: refusal.message for name, refusal in refusals.items() if not refusal.preemptible},
        {refusal.message: refusal.code for refusal in refusals.values()},
        frozenset(),
        by_name.__getitem__,
        lambda names: [total(demand, by_name[name]) for name in names],
    )


def beside_groups(judged: JudgedNodes, asked: AskedPod, core: Core) -> JudgedNodes:
    """Judge again by what groups of pods hold: nodes that are closed to a pod, and those refused for its own group."""
    closed = core.groups.closed(asked.pod, asked.demand, time.monotonic())
    regained = core.groups.regained(asked.pod, asked.demand, judged.lost, core.settings.recounting)
    if not (closed or regained):
        return judged
    kept = [name for name in (*judged.kept, *regained) if name not in closed]
    fits = frozenset(kept)
    messages = {name: why.message for name, why in closed.items() if name not in judged.unresolvable}
    return replace(
        judged,
        kept=kept,
        totals=judged.totals_of(kept),
        lost=[name for name in judged.names if name not in fits],
        failed={**messages, **judged.failed},
        codes={**judged.codes, **{why.message: why.code for why in closed.values()}},
    )


def chosen(fitting: JudgedNodes, asked: AskedPod, core: Core) -> list[str]:
    """Return the names of the nodes to name, at least one, best first.

    Pods of a PodGroup do not take turns: a further question about one tells nothing of a binding, and members of one
    template get one answer, so that they fill a node before the next. For others the nodes that were offered before
    are left out, until all were.
    """
    pod, demand, offered_before = asked.pod, asked.demand, NOT_OFFERED
    if not pod.pod_group and (offered_before := core.offered.pop(pod.uid, NOT_OFFERED)):
        fitting = fitting.without(offered_before)
    places = 1 if asked.promised else core.settings.shortlist
    turn = best_position(fitting.kept, fitting.totals) if pod.pod_group else zlib.crc32(pod.uid.encode())
    names = [fitting.kept[position] for position in _shortlist(fitting, asked, turn, places)]
    if (nominated := pod.nominated_node_name) and nominated in fitting.kept:
        names = [nominated, *(name for name in names if name != nominated)][:places]
    if demand.requests_gpus:
        # A node that is served twice is named alone, so that its promise counts for the next pod, or not at all.
        once = [name for name in names if fitting.node(name).free.twice is None]
        names = once if names[0] in once else names[:1]
    if not pod.pod_group:
        offered = frozenset(names)
        core.offered[pod.uid] = offered if offered <= offered_before else offered | offered_before
        if len(core.offered) > PODS_KEPT:
            del core.offered[next(iter(core.offered))]
    return names


def _shortlist(fitting: JudgedNodes, asked: AskedPod, turn: int, most: int) -> list[int]:
    names, totals, soft, ranked = fitting.kept, fitting.totals, asked.soft, asked.demand.ranked
    best = best_in_turn(totals, turn)
    if soft.wants_something or soft.soft_taints(fitting.node(names[best])):
        traits = soft.traits([fitting.node(name) for name in names])
        return best_of_each(totals, traits, turn, most, not ranked)
    return [best] if ranked else best_of_each(totals, (), turn, most, wide=True)


def _filter_answer(
    args: ExtenderArgs, judged: JudgedNodes, named: Sequence[str], asked: AskedPod, core: Core
) -> ExtenderAnswer:
    """Answer filter with the nodes to name; in shadow with every node, and the real verdict for the log."""
    failed, unresolvable = _messages(judged) if judged.lost else (NO_NODES, NO_NODES)
    counts = Counter([*failed.values(), *unresolvable.values()])
    refused = {judged.codes.get(message, NOT_KNOWN.code): count for message, count in counts.items()}
    if core.settings.shadow:
        return replace(_all_nodes(args, asked.pod), kept=len(named), refused=refused)
    behind = len(judged.behind & frozenset(named)) if judged.behind else 0
    if args.NodeNames is not None:
        answer: Mapping[str, Any] = {"NodeNames": named}
    else:
        raws, kept = (args.Nodes.items if args.Nodes else None) or (), frozenset(named)
        items = [raw for raw, name in zip(raws, judged.names, strict=True) if name in kept]
        answer = {"Nodes": {"metadata": {}, "items": items}}
    body = _filter_body(answer, failed, unresolvable)
    return ExtenderAnswer(body, asked.pod, len(judged.names), len(named), refused, behind=behind)


def _messages(judged: JudgedNodes) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return filter's two maps for the nodes that do not fit; an unknown node is unresolvable."""
    lost, failures = judged.lost, judged.failed
    failed = {name: failures[name] for name in lost if name in failures} if failures else NO_NODES
    others = [name for name in lost if name not in failed] if failed else lost
    return failed, {name: judged.unresolvable.get(name, NOT_KNOWN.message) for name in others}


def _all_nodes(args: ExtenderArgs, pod: Pod, decided: bool = True) -> ExtenderAnswer:
    """Answer filter with every node of the request, in its form."""
    if args.NodeNames is not None:
        answer: Mapping[str, Any] = {"NodeNames": args.NodeNames}
        number = len(args.NodeNames)
    else:
        raws = (args.Nodes.items if args.Nodes else None) or []
        answer, number = {"Nodes": {"metadata": {}, "items": raws}}, len(raws)
    return ExtenderAnswer(_filter_body(answer, NO_NODES, NO_NODES), pod, number, number, decided=decided)


def _filter_body(answer: Mapping[str, Any], failed: Mapping[str, str], unresolvable: Mapping[str, str]) -> bytes:
    return encode({**answer, "FailedNodes": failed, "FailedAndUnresolvableNodes": unresolvable, "Error": ""})


def prioritize(body: bytes, core: Core, other_pods: bool = False) -> Generator[None, None, ExtenderAnswer]:
    """Answer prioritize: an integer 0..10 per node, 10 for the best; all 0 while the state is not synced.

    Of `other_pods` those with claims get 0 for each node of a shortlist, among which kube-scheduler chooses by itself.
    Raises WireError 400 and 413.
    """
    args, pod, soft = read_extender_request(body, len(core.nodes))
    asked = core.ask(pod, soft)
    demand = asked.demand
    if other_pods and (by_first_extender(pod, core) or (demand.requests_gpus and core.settings.filter_answer != "all")):
        unscored = [HostPriority(name, 0) for name in args.NodeNames or ()]
        return ExtenderAnswer(encode(unscored), pod, len(unscored), len(unscored), decided=False)
    if args.NodeNames is not None:
        names: Sequence[str] = args.NodeNames
        totals = core.verdicts.of(demand).totals(names)
    else:
        nodes = yield from _read_nodes(args, core)
        names, totals = [node.name for node in nodes], []
        for index, node in enumerate(nodes, 1):
            totals.append(total(demand, node))
            if index % NODES_AT_ONCE == 0:
                yield
    if core.cache_problem() is not None or core.settings.shadow or not names:
        scores = [0] * len(names)
    else:
        scores = demand_scores(demand, names, totals, one_best=asked.promised)
        if demand.requests_gpus:
            core.promise(asked, names[scores.index(HIGHEST)])
    return ExtenderAnswer(encode(list(map(HostPriority, names, scores))), pod, len(names), len(names))


def _read_nodes(args: ExtenderArgs, core: Core) -> Generator[None, None, list[Node]]:
    """Read whole nodes: labels and amounts from the body, and what else is known of them from the state."""
    nodes = []
    for index, raw in enumerate((args.Nodes.items if args.Nodes else None) or ()):
        try:
            node = node_of(decode_node(raw), core.state.knowledge)
        except BadInput as error:
            raise WireError(400, f"Nodes.items[{index}]: {error}") from error
        nodes.append(core.state.add_known_facts(node))
        if index % NODES_AT_ONCE == NODES_AT_ONCE - 1:
            yield
    return nodes
