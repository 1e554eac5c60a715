# SPDX-License-Identifier: Apache-2.0
"""Whether a whole gang, or all pods of a workload, fit: they are placed in turn, as kube-scheduler places a PodGroup.

A pod that fits by itself may wait because others of its gang do not. Each pod takes the best node that fits and what it
requests there; nodes are judged once for each template, and again when a pod was placed on them. With a topology key
all must be on nodes of one value (kubernetes pkg/scheduler/framework/plugins/topologyaware). The proposed change is
proven by placing all pods again. Claims get their devices from the allocator (gang_claims.py). Constraints between the
pods count where the existing pods are known: after each pod they are counted anew, and all nodes are judged again.
"""

import json
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.dra.pod_claims import generated_claims
from app.explain.explanation import GangVerdict
from app.explain.funnel import Objection
from app.explain.gang_claims import GangDevices, shared_claims, with_devices_of_copies
from app.explain.pending_cause import causes
from app.explain.survey import NodeJudge, ScheduledPod, existing_pod_constraints, read_scheduled_pod
from app.intree.api_server import api_server_refusals, counted_in_quotas
from app.intree.inter_pod_constraints import InterPodConstraints
from app.kube.existing_pods import ExistingPod
from app.kube.gangs import MOST_MEMBERS, Gang, gang_words
from app.kube.pod_requests import PODS
from app.nodes.model import Node
from app.placement.engine import total
from app.placement.ranking import ranking_key
from app.values.json_members import object_if_any
from app.values.reasons import counted
from app.world.world import World

NODES_TRIED_AT_ONCE = 64
MOST_KINDS, MOST_ADDED, MOST_TRIES = 16, 256, 8
"""Kinds of nodes that are tried as further nodes, how many of them, and how many numbers above the first one tried."""


@dataclass(frozen=True, slots=True)
class _Template:
    """What pods of a gang that are alike need, and what the existing pods demand of them.

    `shared` are the claims that serve other pods too, as `shared_claims` names them.
    """

    pod: ScheduledPod
    constraints: InterPodConstraints | None
    shared: Mapping[str, str]


@dataclass(slots=True)
class _Placing:
    """A fleet that pods fill in turn.

    `seen` are the nodes that fit each template, with their totals, and `left` the templates of pods that found none.
    `placed` are the pods that have found one, where some of them constrain others.
    """

    snapshot: World
    nodes: dict[str, Node]
    used: dict[str, Mapping[str, int]]
    devices: GangDevices
    seen: dict[str, dict[str, float]] = field(default_factory=dict)
    judges: dict[str, NodeJudge] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    placed: list[ExistingPod] = field(default_factory=list)


FIRST_POD_DECIDES = "the node that its first pod gets, of several equal ones, decides which pods reach shared devices"

BESIDE_EACH_OTHER = "they must run beside each other, so that the node of the first one decides"


def gang_verdict(gang: Gang, snapshot: World, live: bool) -> Generator[None, None, GangVerdict | None]:
    """Place the waiting pods of a gang in turn; None for a gang of one pod."""
    number, words = len(gang.waiting), gang_words(gang.key)
    if number + gang.bound < 2 and gang.least is None:
        return None
    specs = [object_if_any(document, "spec") for document in gang.waiting]
    schedulers = sorted({str(spec.get("schedulerName") or "default-scheduler") for spec in specs})
    if len(schedulers) > 1 and "PodGroup" in words:
        lacks = f"one scheduler: they name {' and '.join(schedulers)}, of which each waits for the pods of the other"
        return GangVerdict(words, number, 0, gang.bound, False, lacks)
    if number > MOST_MEMBERS:
        return GangVerdict(words, number, 0, gang.bound, True, unjudged=f"it has more than {MOST_MEMBERS} pods")
    templates: dict[str, _Template] = {}
    order: list[str] = []
    objects, refused = snapshot.admission_objects, ""
    for document in gang.waiting:
        metadata = object_if_any(document, "metadata")
        keys = (f"{metadata.get('namespace') or 'default'}/{name}" for name in generated_claims(document).values())
        allocated = [key for key in keys if snapshot.devices.allocated.claim(key) is not None]
        read = [metadata.get("labels"), metadata.get("annotations"), document.get("spec"), allocated]
        template = json.dumps(read, sort_keys=True)
        if template not in templates:
            pod = read_scheduled_pod(document, snapshot, admit=not live)
            templates[template] = _Template(pod, existing_pod_constraints(pod, snapshot), shared_claims(pod, gang))
            yield
        new = templates[template].pod.new_pod
        if new is not None and not metadata.get("uid"):  # one that exists is counted in quotas already
            new = replace(new, objects=objects)
            if refusals := api_server_refusals(new):
                refused = f"admission by the API server ({refusals[0].message})"
                continue
            objects = counted_in_quotas(new)
        order.append(template)
    best, placing = 0, _placing(snapshot, snapshot.nodes)
    for nodes in _domains(gang.topology, snapshot.nodes):
        here = _placing(snapshot, nodes)
        fits = yield from _place_all(order, templates, here)
        if fits >= best:
            best, placing = fits, here
    least = number + gang.bound if gang.least is None else gang.least
    enough = best + gang.bound >= least
    if unjudged := placing.devices.not_judged:
        return GangVerdict(words, number, best, gang.bound, True, unjudged=f"devices of its claims: {unjudged}")
    verdict = GangVerdict(words, number, best, gang.bound, enough)
    if best == number:
        return verdict
    if any(_constrains(template) and template.pod.pod_among_others.affinity for template in templates.values()):
        return replace(verdict, enough=True, unjudged=BESIDE_EACH_OTHER)
    verdict = replace(verdict, lacks=_lacks(order, placing) if best < len(order) else "")
    if refused:
        return replace(verdict, lacks="; ".join(filter(None, (verdict.lacks, refused))))
    if enough or (yield from _preempts(gang, least, order, templates, snapshot)):
        return replace(verdict, preempts=not enough)
    if placing.devices.first_pod_decides:
        return GangVerdict(words, number, best, gang.bound, True, unjudged=FIRST_POD_DECIDES)
    return replace(verdict, change=(yield from _change(gang, least, best, order, templates, placing, snapshot)))


def _preempts(
    gang: Gang, least: int, order: Sequence[str], templates: Mapping[str, _Template], snapshot: World
) -> Generator[None, None, bool]:
    """Tell whether enough pods fit on nodes without GPU pods of lower priority, which kube-scheduler then preempts.

    Only units of GPUs are given back: of declared memory and of claims nothing is free before the victims are gone
    (docs/decisions/0056-answer-for-groups-by-the-cluster-alone.md).
    """
    priority = gang.priority
    if priority is None:
        return False
    nodes, used = dict(snapshot.nodes), dict(snapshot.used)
    for name, node in snapshot.nodes.items():
        usages = (
            usage for usage in snapshot.state.allocations.bound(name) if usage.bound and usage.priority < priority
        )
        if units := [unit for usage in usages for unit in usage.units]:
            nodes[name] = node.with_free(node.free.with_units(units), node.free_cpu_milli)
            left = dict(used.get(name, {}))
            for resource, amount in units:
                left[resource] = left.get(resource, 0) - amount
            used[name] = left
    if nodes == snapshot.nodes:
        return False
    for domain in _domains(gang.topology, nodes):
        placing = replace(_placing(snapshot, domain), used=dict(used))
        if (yield from _place_all(order, templates, placing)) + gang.bound >= least:
            return True
    return False


def _domains(key: str, nodes: Mapping[str, Node]) -> Iterable[Mapping[str, Node]]:
    """Divide nodes by the value of a label; all are one domain without a label, those without a value in none."""
    if not key:
        return [nodes]
    domains: dict[str, dict[str, Node]] = {}
    for name, node in nodes.items():
        if key in node.labels:
            domains.setdefault(node.labels[key], {})[name] = node
    return domains.values()


def _placing(snapshot: World, nodes: Mapping[str, Node]) -> _Placing:
    return _Placing(snapshot, dict(nodes), dict(snapshot.used), GangDevices(snapshot.devices, snapshot.selection))


def _place_all(
    order: Sequence[str], templates: Mapping[str, _Template], placing: _Placing
) -> Generator[None, None, int]:
    """Place pods in turn on the best node for each, and return how many found one."""
    placed = 0
    for template in order:
        if template not in placing.seen:
            pod = templates[template].pod
            placing.judges[template] = _judge(templates[template], placing)
            placing.seen[template] = {}
            for index, name in enumerate(placing.nodes):
                _judge_again(template, pod, name, placing)
                if index % NODES_TRIED_AT_ONCE == 0:
                    yield
        if _place(template, templates, placing):
            placed += 1
            if templates[template].pod.claims is not None or placing.placed:
                yield
        else:
            placing.left.append(template)
    return placed


def _place(template: str, templates: Mapping[str, _Template], placing: _Placing) -> bool:
    fitting = placing.seen[template]
    if not fitting:
        return False
    name = min(fitting, key=lambda name: ranking_key(fitting[name], name))
    _take(templates[template].pod, name, placing)
    claims = placing.judges[template].scheduled_pod.claims
    node = placing.nodes[name]
    everywhere = claims is not None and placing.devices.take(claims, node, templates[template].shared)
    constrained = any(map(_constrains, templates.values()))
    if constrained:
        placing.placed.append(ExistingPod("", name, templates[template].pod.pod_among_others, terminating=False))
    for other in placing.seen:
        claiming = templates[other].pod.claims is not None
        if constrained or (claims is not None and claiming):
            placing.judges[other] = _judge(templates[other], placing)
        for changed in list(placing.nodes) if constrained or (everywhere and claiming) else (name,):
            _judge_again(other, templates[other].pod, changed, placing)
    return True


def _judge(template: _Template, placing: _Placing) -> NodeJudge:
    """Make the judge of a template's pods by what is used, what devices are left, and where the others are, now."""
    pod, constraints, snapshot = template.pod, template.constraints, placing.snapshot
    if placing.placed and snapshot.existing_pods is not None:
        nodes, pods = {**snapshot.nodes, **placing.nodes}, (*snapshot.existing_pods, *placing.placed)
        constraints = existing_pod_constraints(pod, replace(snapshot, nodes=nodes, existing_pods=pods))
    if pod.claims is not None:
        pod = replace(pod, claims=placing.devices.judge(pod.claims, template.shared))
    return NodeJudge(pod, placing.used, constraints)


def _constrains(template: _Template) -> bool:
    """Tell whether pods of a template constrain where others may run, in a cluster whose existing pods are known."""
    pod = template.pod.pod_among_others
    return template.constraints is not None and bool(pod.ports or pod.affinity or pod.anti_affinity or pod.spread)


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
    first = next(iter(causes(groups, (), placing.nodes)), None)
    return first.sentence if first is not None else "no node is left"


def _change(
    gang: Gang,
    least: int,
    fits: int,
    order: Sequence[str],
    templates: Mapping[str, _Template],
    placing: _Placing,
    snapshot: World,
) -> Generator[None, None, str]:
    """Find the fewest further nodes, like one of the fleet, with which enough pods are placed."""
    kinds = _kinds_of_nodes(placing, any(template.pod.claims is not None for template in templates.values()))
    fleet = {name: snapshot.nodes[name] for name in placing.nodes}
    found = (MOST_ADDED + 1, "")
    for node in kinds[:MOST_KINDS]:
        first = yield from _filled(placing.left, least - gang.bound - fits, node, templates, snapshot)
        proven = 0
        number, last = first, min(first + MOST_TRIES, found[0])
        while 0 < number < last:
            placed = yield from _place_all(order, templates, _with_copies(fleet, node, number, snapshot))
            if placed + gang.bound >= least:
                proven, number, last = number, number - 1, number
            elif proven:
                break
            else:
                number += 1
        if proven:
            found = (proven, node.name)
    number, name = found
    return f"{counted(number, 'more node')} like {name}, with all of it free" if name else ""


def _kinds_of_nodes(placing: _Placing, claiming: bool) -> list[Node]:
    """Give one GPU node of each class, where pods claim devices one of each class and numbers of devices."""
    kinds: dict[Hashable, Node] = {}
    for node in reversed(placing.nodes.values()):
        slices = placing.devices.cluster.pools.slices_on(node.name) if claiming else ()
        if node.has_gpus or slices:
            kinds[node.node_class, tuple((one.driver, len(one.devices)) for one in slices)] = node
    return list(kinds.values())


def _filled(
    left: Sequence[str],
    missing: int,
    node: Node,
    templates: Mapping[str, _Template],
    snapshot: World,
) -> Generator[None, None, int]:
    """Count the copies of a node that pods which found no place fill; more than MOST_ADDED where too few fit on it.

    It is where the search for the fewest begins.
    """
    copies = _with_copies({}, node, 0, snapshot)
    suits: dict[str, bool] = {}
    for template in left:
        if template not in suits:
            suits[template] = bool((yield from _place_all([template], templates, _with_copies({}, node, 1, snapshot))))
        if suits[template] and not (yield from _place_all([template], templates, copies)):
            added = _copies(node, 1, len(copies.nodes))
            copies.nodes |= added
            copies.devices.cluster = with_devices_of_copies(copies.devices.cluster, node, tuple(added))
            for other in copies.seen:
                copies.judges[other] = _judge(templates[other], copies)
                _judge_again(other, templates[other].pod, list(copies.nodes)[-1], copies)
            _place(template, templates, copies)
        missing -= suits[template]
        if not missing:
            return len(copies.nodes)
        if len(copies.nodes) > MOST_ADDED:
            break
    return MOST_ADDED + 1


def _with_copies(nodes: Mapping[str, Node], node: Node, number: int, snapshot: World) -> _Placing:
    added = _copies(node, number)
    devices = with_devices_of_copies(snapshot.devices, node, tuple(added))
    return _Placing(snapshot, {**nodes, **added}, dict(snapshot.used), GangDevices(devices, snapshot.selection))


def _copies(node: Node, number: int, first: int = 0) -> dict[str, Node]:
    """Make copies of a node on which no pod runs."""
    offered, budgets = dict(node.node_class.offered), dict(node.node_class.budgets)
    free = replace(node.free, units=offered, memory=budgets, twice=None)
    names = (f"{node.name}+{index}" for index in range(first, first + number))
    return {name: replace(node, name=name, free=free) for name in names}
