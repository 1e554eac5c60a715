# SPDX-License-Identifier: Apache-2.0
"""Whether a whole gang fits: all its waiting pods are placed in turn, as kube-scheduler places those of a PodGroup.

A pod that fits by itself may wait because others of its gang do not. Each pod takes the best node that fits and what it
requests there; nodes are judged once for each template, and again when a pod was placed on them. With a topology key
all must be on nodes of one value (kubernetes pkg/scheduler/framework/plugins/topologyaware). The proposed change is
proven by placing all pods again. Devices of claims and constraints between pods of the gang are left aside.
"""

import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.explain.explanation import GangVerdict
from app.explain.funnel import Objection
from app.explain.pending_cause import primary_reason
from app.explain.survey import ClusterSnapshot, NodeJudge, ScheduledPod, existing_pod_constraints, read_scheduled_pod
from app.kube.gangs import Gang, gang_words
from app.kube.pod_requests import PODS
from app.nodes.model import Node
from app.placement.engine import total
from app.placement.ranking import ranking_key
from app.values.json_members import object_if_any
from app.values.reasons import counted

NODES_AT_ONCE = 64
MOST_MEMBERS = 256
"""Members that are placed; of a larger gang no more is said."""
MOST_KINDS, MOST_ADDED = 16, 256
"""Kinds of nodes that are tried as further nodes, and how many of them."""


@dataclass(slots=True)
class _Placing:
    """A fleet that pods fill in turn; `seen` are the nodes that fit each template, with their totals."""

    nodes: dict[str, Node]
    used: dict[str, Mapping[str, int]]
    seen: dict[str, dict[str, float]] = field(default_factory=dict)
    judges: dict[str, NodeJudge] = field(default_factory=dict)


def gang_verdict(gang: Gang, snapshot: ClusterSnapshot, live: bool) -> Generator[None, None, GangVerdict | None]:
    """Place the waiting pods of a gang in turn; None for a gang of one pod, a huge one, or one that claims devices."""
    number = len(gang.waiting)
    if number > MOST_MEMBERS or (number + gang.bound < 2 and gang.least is None):
        return None
    templates: dict[str, ScheduledPod] = {}
    order: list[str] = []
    for document in gang.waiting:
        template = _template(document)
        order.append(template)
        if template not in templates:
            templates[template] = read_scheduled_pod(document, snapshot, admit=not live)
            yield
    if any(pod.claims is not None for pod in templates.values()):
        return None
    best, placing = 0, _placing(snapshot, snapshot.nodes)
    for nodes in _domains(gang.topology, snapshot.nodes):
        here = _placing(snapshot, nodes)
        fits = yield from _place_all(order, templates, here, snapshot)
        if fits >= best:
            best, placing = fits, here
    least = number + gang.bound if gang.least is None else gang.least
    enough = best + gang.bound >= least
    verdict = GangVerdict(gang_words(gang.key), number, best, gang.bound, enough)
    if best == number:
        return verdict
    lacks = _lacks(order, placing)
    change = "" if enough else (yield from _change(gang, least, best, order, templates, placing, snapshot))
    return replace(verdict, lacks=lacks, change=change)


def _template(document: Mapping[str, Any]) -> str:
    """Give a key of what placement reads of a pod."""
    metadata = object_if_any(document, "metadata")
    return json.dumps([metadata.get("labels"), metadata.get("annotations"), document.get("spec")], sort_keys=True)


def _domains(key: str, nodes: Mapping[str, Node]) -> Iterable[Mapping[str, Node]]:
    """Divide nodes by the value of a label; all are one domain without a label, those without a value in none."""
    if not key:
        return [nodes]
    domains: dict[str, dict[str, Node]] = {}
    for name, node in nodes.items():
        if key in node.labels:
            domains.setdefault(node.labels[key], {})[name] = node
    return domains.values()


def _placing(snapshot: ClusterSnapshot, nodes: Mapping[str, Node]) -> _Placing:
    return _Placing(dict(nodes), dict(snapshot.used))


def _place_all(
    order: Sequence[str], templates: Mapping[str, ScheduledPod], placing: _Placing, snapshot: ClusterSnapshot
) -> Generator[None, None, int]:
    """Place pods in turn on the best node for each, and return how many found one."""
    placed = 0
    for template in order:
        pod = templates[template]
        if template not in placing.seen:
            placing.judges[template] = NodeJudge(pod, placing.used, existing_pod_constraints(pod, snapshot))
            placing.seen[template] = {}
            for index, name in enumerate(placing.nodes):
                _judge_again(template, pod, name, placing)
                if index % NODES_AT_ONCE == 0:
                    yield
        fitting = placing.seen[template]
        if fitting:
            name = min(fitting, key=lambda name: ranking_key(fitting[name], name))
            _take(pod, name, placing)
            placed += 1
            for other in placing.seen:
                _judge_again(other, templates[other], name, placing)
    return placed


def _judge_again(template: str, pod: ScheduledPod, name: str, placing: _Placing) -> None:
    node = placing.nodes[name]
    placing.seen[template].pop(name, None)
    if placing.judges[template].fits(node):
        placing.seen[template][name] = total(pod.demand, node)


def _take(pod: ScheduledPod, name: str, placing: _Placing) -> None:
    """Take what a pod requests from a node."""
    node, used = placing.nodes[name], dict(placing.used.get(name, {}))
    for resource, amount in (*pod.pod_constraints.requests, (PODS, 1)):
        used[resource] = used.get(resource, 0) + amount
    placing.used[name] = used
    free = node.free.with_units(pod.demand.resources, pod.demand.declared_mib, -1)
    placing.nodes[name] = node.with_free(free, node.free_cpu_milli)


def _lacks(order: Sequence[str], placing: _Placing) -> str:
    """Name the reason to look at first of a pod that found no node."""
    template = next((one for one in order if not placing.seen.get(one)), order[-1])
    groups: dict[tuple[Objection, ...], list[str]] = {}
    for name, node in placing.nodes.items():
        groups.setdefault(placing.judges[template].objections(node), []).append(name)
    primary = primary_reason(groups, (), placing.nodes) if placing.nodes else None
    return primary.sentence if primary is not None else "no node is left"


def _change(
    gang: Gang,
    least: int,
    fits: int,
    order: Sequence[str],
    templates: Mapping[str, ScheduledPod],
    placing: _Placing,
    snapshot: ClusterSnapshot,
) -> Generator[None, None, str]:
    """Find the fewest further nodes, like one of the fleet, with which enough pods are placed."""
    missing = least - gang.bound - fits
    kinds = {node.node_class: node for node in reversed(placing.nodes.values()) if node.has_gpus}
    found: list[tuple[int, str]] = []
    for node in list(kinds.values())[:MOST_KINDS]:
        alone = _with_copies({}, node, 1, snapshot)
        each = yield from _place_all(order, templates, alone, snapshot)
        number = -(-missing // each) if each else MOST_ADDED + 1
        while number <= MOST_ADDED and (not found or number < min(found)[0]):
            more = _with_copies({name: snapshot.nodes[name] for name in placing.nodes}, node, number, snapshot)
            if (yield from _place_all(order, templates, more, snapshot)) + gang.bound >= least:
                found.append((number, node.name))
                break
            number += 1
    if not found:
        return ""
    number, name = min(found)
    return f"{counted(number, 'more node')} like {name}, with all of it free"


def _with_copies(nodes: Mapping[str, Node], node: Node, number: int, snapshot: ClusterSnapshot) -> _Placing:
    """Add copies of a node on which no pod runs."""
    offered, budgets = dict(node.node_class.offered), dict(node.node_class.budgets)
    free = replace(node.free, units=offered, memory=budgets, twice=None)
    copies = {f"{node.name}+{index}": replace(node, name=f"{node.name}+{index}", free=free) for index in range(number)}
    return _Placing({**nodes, **copies}, dict(snapshot.used))
