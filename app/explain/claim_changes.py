# SPDX-License-Identifier: Apache-2.0
"""The smallest changes of a claim, or of what is allocated, with which a pod's claims get devices (F84, S13).

Each change is proven by the allocator on a node that has nothing else against the pod.
"""

from collections import Counter
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice

from app.dra.alike_nodes import reads_of, requests_of
from app.dra.allocator import Outcome, allocate
from app.dra.attributes import SemanticVersion
from app.dra.claims import ALL, EXACT_COUNT, Constraint, DeviceRequest, DeviceToleration, ResourceClaim
from app.dra.cluster_devices import ClusterDevices
from app.dra.devices import Device
from app.dra.pod_judge import ClaimJudge
from app.dra.selection import ClaimError, NotJudged
from app.dra.selectors import Part
from app.dra.stages import NodeDevices, Stage, StageKind, bottleneck, stages_of
from app.dra.words import condition, failing_parts, name_of, show_value, value_of
from app.explain.claim_edits import Apply, ChangeKind, ClaimChange, Claims, changed, reworded
from app.explain.claim_funnel import holder_names, show_taint
from app.explain.claim_objections import is_of_claims
from app.explain.claim_repairs import of_other_classes, repairs_of_pod, repairs_of_request
from app.explain.counterfactual import MOST_FIXES, MOST_FIXES_OF_A_KIND, NODES_AT_ONCE, Fix, FixStep
from app.explain.selector_rewrites import path_of
from app.explain.survey import Groups
from app.nodes.model import Node

NODES_TRIED = 8
"""Nodes for which changes are thought of, of each group of nodes with the same cause."""
MOST_PROOFS = 200
"""Proofs, about 0.1 ms each on a node with eight devices."""
OTHER_VALUES = 3
"""Values of an attribute that are proposed in place of one that no device has."""


def claim_fixes(judge: ClaimJudge, groups: Groups, nodes: Mapping[str, Node]) -> Generator[None, None, tuple[Fix, ...]]:
    """Search for changes on the nodes that only the claims keep the pod from."""
    near = [names for objections, names in groups.items() if objections and all(map(is_of_claims, objections))]
    candidates = [nodes[name] for names in near for name in names]
    proven: dict[tuple[str, str], tuple[ClaimChange, str]] = {}
    tried = (nodes[name] for names in near for name in names[:NODES_TRIED])
    proposals = ((node, change) for node in tried for change in _proposals(judge, node))
    for node, change in islice(proposals, MOST_PROOFS):
        if (change.kind, change.text) not in proven and _outcome(judge, change, node) is Outcome.ALLOCATED:
            proven[change.kind, change.text] = change, node.name
        yield
    return (yield from _fixes(judge, sorted(proven.values(), key=lambda entry: entry[0].weight), candidates))


def _fixes(
    judge: ClaimJudge, changes: Sequence[tuple[ClaimChange, str]], candidates: Sequence[Node]
) -> Generator[None, None, tuple[Fix, ...]]:
    shown: list[Fix] = []
    kinds: dict[str, int] = {}
    for change, node_name in changes:
        kinds[change.kind] = kinds.get(change.kind, 0) + 1
        if len(shown) == MOST_FIXES or kinds[change.kind] > MOST_FIXES_OF_A_KIND:
            continue
        outcomes = yield from _outcomes(judge, change, candidates)
        if not outcomes[Outcome.ERROR]:  # with which kube-scheduler would still give up on the pod
            opens = outcomes[Outcome.ALLOCATED]
            shown.append(Fix((FixStep(change.kind, change.of, change.text),), node_name, opens))
    return tuple(shown)


def _outcomes(
    judge: ClaimJudge, change: ClaimChange, candidates: Sequence[Node]
) -> Generator[None, None, Counter[Outcome]]:
    """Count what becomes of nodes with a change; of nodes that are alike one is asked."""
    claims, cluster = change.apply(judge.pod_claims.to_allocate, judge.cluster)
    reads = reads_of(claims, cluster) if cluster is judge.cluster else None
    comparable = reads is not None and reads <= (judge.alike.reads or frozenset())
    known: dict[Hashable, Outcome] = {}
    outcomes: Counter[Outcome] = Counter()
    for index, node in enumerate(candidates):
        alike = judge.alike.key(node) if comparable else None
        key = node.name if alike is None else (alike, requests_of(judge.pod_claims.on(node)))
        if key not in known:
            known[key] = _outcome(judge, change, node)
        outcomes[known[key]] += 1
        if index % NODES_AT_ONCE == 0:
            yield
    return outcomes


def _outcome(judge: ClaimJudge, change: ClaimChange, node: Node) -> Outcome:
    claims, cluster = change.apply(judge.pod_claims.on(node), judge.cluster)
    return allocate(claims, node, cluster, judge.selection).outcome


def _proposals(judge: ClaimJudge, node: Node) -> Iterator[ClaimChange]:
    """Propose changes for each request that is stuck on a node, and for constraints where none is by itself."""
    if judge.pod_claims.obstacles:
        yield from repairs_of_pod(judge.pod_claims)
        return
    devices = NodeDevices(node, judge.cluster, judge.selection)
    stuck = False
    for claim in judge.pod_claims.on(node):
        for request in (request for choices in claim.spec.requests for request in choices):
            try:
                stops = list(devices.stops(request))
            except (ClaimError, NotJudged):
                yield from repairs_of_request(claim, request, list(devices.devices), judge.cluster.classes)
                return
            index = bottleneck(request, [stop for _, stop in stops])
            if index is not None:
                stuck = True
                yield from _for_request(judge, devices, claim, request, stops, index)
    if not stuck:
        yield from _without_constraint(judge.pod_claims.on(node))
        for claim in judge.pod_claims.on(node):
            for choices in claim.spec.requests:
                yield from (change for request in choices for change in _fewer(claim, request, request.count - 1))


def _for_request(
    judge: ClaimJudge,
    devices: NodeDevices,
    claim: ResourceClaim,
    request: DeviceRequest,
    stops: Sequence[tuple[Device, int]],
    index: int,
) -> Iterator[ClaimChange]:
    stage = stages_of(request)[index]
    stopped = [device for device, stop in stops if stop == index]
    left = sum(stop > index for _, stop in stops)
    after_all = sum(stop == len(stages_of(request)) for _, stop in stops)
    for count in dict.fromkeys((left, after_all)):
        yield from _fewer(claim, request, count)
    if stage.kind in (StageKind.CLASS, StageKind.SELECTOR):
        yield from of_other_classes(claim, request, judge.cluster.classes)
    if stage.kind is StageKind.SELECTOR:
        yield from _looser(claim, request, stage, stopped, max(1, request.count - left))
    elif stage.kind is StageKind.TAINT:
        yield from _tolerating(devices, claim, request, stopped)
    elif stage.kind in (StageKind.ALLOCATED, StageKind.CAPACITY, StageKind.COUNTERS):
        yield from _freeing(judge, devices)


def _fewer(claim: ResourceClaim, request: DeviceRequest, count: int) -> Iterator[ClaimChange]:
    """Ask for as many devices as there are."""
    asked = "all" if request.mode == ALL else str(request.count)
    if count > 0 and (request.mode == ALL or count < request.count):
        text = f"request {request.name}: ask for {count} instead of {asked}"
        apply = changed(claim, request, replace(request, mode=EXACT_COUNT, count=count))
        yield ClaimChange("ask-fewer", text, 30 + (0 if request.mode == ALL else request.count - count), apply)


def _looser(
    claim: ResourceClaim, request: DeviceRequest, stage: Stage, devices: Sequence[Device], missing: int
) -> Iterator[ClaimChange]:
    """Ask for what devices have in place of one condition that they do not meet, or leave the condition out."""
    failing = [(device, failing_parts(stage.selector, device)) for device in devices]
    single = [(parts[0], device) for device, parts in failing if len(parts) == 1]
    for text in dict.fromkeys(part.text for part, _ in single):
        parts = [part for part, _ in single if part.text == text]
        for value in _values(parts, missing):
            new = _with_value(parts[0], value)
            if new is not None:
                words = f"request {request.name}: ask for {name_of(parts[0].facts[0][0])} {new[1]}"
                words += f" instead of {parts[0].comparison}"
                kind = ChangeKind("loosen-selector", words, 20)
                yield reworded(claim, request, stage.selector, (text, new[0]), kind)
        words = f"request {request.name}: leave out {condition(parts[0])}"
        yield reworded(claim, request, stage.selector, (text, "true"), ChangeKind("drop-selector", words, 45))


def _values(parts: Sequence[Part], missing: int) -> Iterator[object]:
    """List the values to ask for: of numbers the one that enough devices reach, of others the most frequent."""
    comparison = parts[0].comparison
    values = [value for value in map(value_of, parts) if value is not None]
    if comparison is None or not values:
        return
    if comparison.operator in (">=", "<="):
        ordered = sorted(values, key=_sort_key, reverse=comparison.operator == ">=")
        yield ordered[min(missing, len(ordered)) - 1]
    elif comparison.operator in ("==", "in"):
        yield from sorted(set(values), key=lambda value: (-values.count(value), str(value)))[:OTHER_VALUES]


def _sort_key(value: object) -> tuple[object, ...]:
    if isinstance(value, SemanticVersion):
        return tuple(int(field) if field.isdecimal() else -1 for field in value.text.partition("-")[0].split("."))
    return (value if isinstance(value, int | Fraction) else str(value),)


def _with_value(part: Part, value: object) -> tuple[str, str] | None:
    """Write a condition with another value: as CEL, and as a person reads it; None where it cannot be rewritten."""
    comparison = part.comparison
    if comparison is None:
        return None
    shown = show_value(value)
    wanted = comparison.wanted
    if isinstance(value, Fraction) and comparison.operator == "==":  # amounts of equal products are rarely round
        return f"{path_of(comparison.fact)}.compareTo(quantity('{shown}')) >= 0", f">= {shown}"
    if isinstance(wanted, tuple) and "[" in part.text:
        start, _, rest = part.text.partition("[")
        return f"{start}[{shown}]{rest.partition(']')[2]}", f"in [{shown.strip(chr(39))}]"
    plain = shown.strip("'")
    old = str(wanted).lower() if isinstance(wanted, bool) else str(wanted)
    if part.text.count(old) != 1:
        return None
    return part.text.replace(old, plain), f"{comparison.operator} {plain}"


def _tolerating(
    devices: NodeDevices, claim: ResourceClaim, request: DeviceRequest, stopped: Sequence[Device]
) -> Iterator[ClaimChange]:
    """Tolerate a taint of the devices."""
    taints = dict.fromkeys(devices.taint(request, device) for device in stopped)
    for taint in (taint for taint in taints if taint is not None):
        toleration = DeviceToleration(taint.key, "Equal", taint.value, taint.effect)
        new = replace(request, tolerations=(*request.tolerations, toleration))
        text = f"request {request.name}: tolerate {show_taint(taint)}, if the device will do"
        yield ClaimChange("tolerate-device-taint", text, 40, changed(claim, request, new))


def _freeing(judge: ClaimJudge, devices: NodeDevices) -> Iterator[ClaimChange]:
    """End a pod that has devices of the node."""
    holders: dict[str, list[Device]] = {}
    for device in devices.devices:
        for key in judge.cluster.allocated.holders(device.id):
            holders.setdefault(key, []).append(device)
    for key, held in sorted(holders.items(), key=lambda entry: (len(entry[1]), entry[0])):
        pods = [name for name in holder_names(judge.cluster, held[0]) if name.startswith("pod ")]
        names = ", ".join(device.name for device in held)
        text = f"end {' and '.join(pods)}, which has {names}" if pods else f"delete claim {key}, which has {names}"
        yield ClaimChange("free-devices", text, 50 + len(held), _released(key), "fleet")


def _released(key: str) -> Apply:
    def apply(claims: Claims, cluster: ClusterDevices) -> tuple[Claims, ClusterDevices]:
        return claims, replace(cluster, allocated=cluster.allocated.without([key]))

    return apply


def _without_constraint(claims: Claims) -> Iterator[ClaimChange]:
    """Leave out one constraint."""
    for claim in claims:
        for constraint in claim.spec.constraints:
            others = tuple(one for one in claim.spec.constraints if one is not constraint)
            name = "distinctAttribute" if constraint.distinct else "matchAttribute"
            text = f"claim {claim.key}: leave out {name} {constraint.attribute}"
            yield ClaimChange("drop-constraint", text, 35, _constrained(claim, others))


def _constrained(claim: ResourceClaim, constraints: tuple[Constraint, ...]) -> Apply:
    def apply(claims: Claims, cluster: ClusterDevices) -> tuple[Claims, ClusterDevices]:
        changed = replace(claim, spec=replace(claim.spec, constraints=constraints))
        return tuple(changed if one.key == claim.key else one for one in claims), cluster

    return apply
