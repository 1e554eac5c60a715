# SPDX-License-Identifier: Apache-2.0
"""The smallest changes of a claim, or of what is allocated, with which a pod's claims get devices.

Each change is proven by the allocator on a node that has nothing else against the pod.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from functools import partial
from itertools import islice

from msgspec.structs import replace

from app.dra.allocator import Outcome, allocate
from app.dra.cel_comparisons import Comparison
from app.dra.cluster_devices import ClusterDevices, holder_names
from app.dra.pod_judge import ClaimJudge, reads_of, requests_of
from app.dra.selectors import ClaimError, NotJudged, SelectorPart
from app.dra.stages import DeviceStage, NodeDevices, StageKind, bottleneck, stages_of
from app.dra.words import condition, failing_parts, gap, name_of, show_value, value_of
from app.explain.claim_funnel import is_of_claims
from app.explain.counterfactual import MOST_FIXES, NODES_JUDGED_AT_ONCE, Fix, FixStep, few_of_a_kind
from app.explain.survey import Groups
from app.kube.device_classes import DeviceClass
from app.kube.device_models import GPU_DRIVER, SemanticVersion
from app.kube.devices import Device, show_taint
from app.kube.resource_claims import ALL, EXACT_COUNT, DeviceRequest, DeviceToleration, Expressions, ResourceClaim
from app.nodes.model import Node

NODES_TRIED = 8
"""Nodes for which changes are thought of, of each group of nodes with the same cause."""
MOST_CLAIM_PROOFS = 200
"""Proofs, about 0.1 ms each on a node with eight devices."""
OTHER_VALUES = 3
"""Values of an attribute that are proposed in place of one that no device has."""
MOST_CLASSES = 3
"""Other DeviceClasses that are tried for one request."""
OTHER_CLASS = "change-class"
"""The kind of a change that asks for another DeviceClass, the devices of which other nodes may have."""
CLAIM_KINDS: Mapping[str, str] = {
    "change-class": "another DeviceClass",
    "loosen-selector": "a looser condition",
    "drop-selector": "one condition less",
    "ask-fewer": "fewer devices",
    "ask-less-capacity": "less capacity",
    "tolerate-device-taint": "a toleration of a device taint",
    "drop-constraint": "no constraint",
    "drop-claim": "no claim of another device",
    "free-devices": "ending pods",
    "name-claim": "another claim",
    "create-template": "a new template",
    "label-namespace": "a label of the namespace",
}
"""Each kind of change, and what an explanation calls it where none of its kind helps."""

Claims = tuple[ResourceClaim, ...]
Alter = Callable[[DeviceRequest], DeviceRequest]
"""Changes one request; a request that the change is not for comes back as it is."""


@dataclass(frozen=True, slots=True)
class ClaimChange:
    """One change; `weight` orders changes, the smallest first. `of` is what it changes: claim, pod or fleet.

    `alter` changes the claims, and `frees` is the key of an allocated claim that it deletes. `about` is the key of the
    taint that it tolerates.
    """

    kind: str
    text: str
    weight: float
    alter: Callable[[Claims], Claims] = tuple
    of: str = "claim"
    about: str = ""
    frees: str = ""

    def apply(self, claims: Claims, cluster: ClusterDevices) -> tuple[Claims, ClusterDevices]:
        """Change the claims of a pod, or what is allocated."""
        if self.frees:
            cluster = dataclasses.replace(cluster, allocated=cluster.allocated.without([self.frees]))
        return self.alter(claims), cluster


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """One request of the claims for which a pod has no devices yet."""

    claims: Claims
    claim: ResourceClaim
    request: DeviceRequest

    def change(self, kind: str, text: str, weight: float, alter: Alter, about: str = "") -> Iterator[ClaimChange]:
        """Change this request; and with it, as another change, all requests of the pod that have the same need.

        These are of the same DeviceClass, and the change is for them too.
        """
        same = [
            (one.claim.key, one.request.name)
            for one in _asked_by(self.claims)
            if one.request.device_class == self.request.device_class and alter(one.request) != one.request
        ]
        chosen = (self.claim.key, self.request.name)
        for targets in ([chosen], same) if len(same) > 1 else ([chosen],):
            names = [name if len(self.claims) < 2 else f"{name} of claim {key}" for key, name in targets]
            words = f"request{'s' * (len(names) > 1)} {', '.join(names)}: {text}"
            apply = partial(_altered, frozenset(targets), alter)
            yield ClaimChange(kind, words, weight + 0.001 * (len(targets) - 1), apply, "claim", about)


def _asked_by(claims: Claims) -> list[AskedRequest]:
    """List the requests of claims, with each alternative."""
    return [
        AskedRequest(claims, one, request) for one in claims for choices in one.spec.requests for request in choices
    ]


def _altered(targets: Collection[tuple[str, str]], alter: Alter, claims: Claims) -> Claims:
    def requests(claim: ResourceClaim) -> Iterator[tuple[DeviceRequest, ...]]:
        for choices in claim.spec.requests:
            yield tuple(alter(one) if (claim.key, one.name) in targets else one for one in choices)

    return tuple(replace(claim, spec=replace(claim.spec, requests=tuple(requests(claim)))) for claim in claims)


def _reworded(selector: str, old: str, new: str, request: DeviceRequest) -> DeviceRequest:
    """Write one condition of a selector anew, in a request that has this selector."""
    changed = " ".join(selector.split()).replace(old, new, 1)
    return replace(request, selectors=Expressions(changed if one == selector else one for one in request.selectors))


def claim_fixes(
    judge: ClaimJudge, groups: Groups, nodes: Mapping[str, Node], is_fault: Callable[[str], bool]
) -> Generator[None, None, tuple[tuple[Fix, ...], tuple[str, ...]]]:
    """Search for changes on the nodes that only the claims keep the pod from: (fixes, kinds of changes tried).

    `is_fault` tells of the key of a taint whether it says that a device is faulty; such a taint is not tolerated.
    """
    near = [names for objections, names in groups.items() if objections and all(map(is_of_claims, objections))]
    candidates = [nodes[name] for names in near for name in names]
    proven: dict[tuple[str, str], tuple[ClaimChange, str]] = {}
    refuted: set[tuple[str, str]] = set()
    tried = [node for names in near for node in _of_each_kind(judge, [nodes[name] for name in names])]
    kinds: dict[str, None] = {}
    proposals = ((node, change) for node in tried for change in _proposals(judge, node) if not is_fault(change.about))
    for node, change in islice(proposals, MOST_CLAIM_PROOFS):
        kinds[change.kind] = None
        key = (change.kind, change.text)
        if key not in proven and key not in refuted:
            # a class that fails on one node keeps the pod from the others, so that these are asked as well
            elsewhere = tried if change.kind == OTHER_CLASS else ()
            serving = (one for one in (node, *elsewhere) if _outcome(judge, change, one) is Outcome.ALLOCATED)
            if (served := next(serving, None)) is not None:
                proven[key] = change, served.name
            elif elsewhere:
                refuted.add(key)
        yield
    fixes = yield from _fixes(judge, sorted(proven.values(), key=lambda entry: entry[0].weight), candidates)
    return fixes, tuple(kinds)


def _of_each_kind(judge: ClaimJudge, nodes: Sequence[Node]) -> list[Node]:
    """Choose nodes for which changes are thought of: no two that are alike, as far as that is known."""
    kinds: dict[Hashable, Node] = {}
    for node in nodes:
        kinds.setdefault(judge.alike.key(node) or node.name, node)
        if len(kinds) == NODES_TRIED:
            break
    return list(kinds.values())


def _fixes(
    judge: ClaimJudge, changes: Sequence[tuple[ClaimChange, str]], candidates: Sequence[Node]
) -> Generator[None, None, tuple[Fix, ...]]:
    shown: list[Fix] = []
    for change, node_name in few_of_a_kind(changes, lambda entry: entry[0].kind):
        if len(shown) == MOST_FIXES:
            break
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
        if index % NODES_JUDGED_AT_ONCE == 0:
            yield
    return outcomes


def _outcome(judge: ClaimJudge, change: ClaimChange, node: Node) -> Outcome:
    claims, cluster = change.apply(judge.pod_claims.on(node), judge.cluster)
    return allocate(claims, node, cluster, judge.selection).outcome


def _proposals(judge: ClaimJudge, node: Node) -> Iterator[ClaimChange]:
    """Propose changes for each request that is stuck on a node, and for constraints where none is by itself."""
    if obstacles := judge.pod_claims.obstacles:
        for repair in obstacles[0].repairs if len(obstacles) == 1 else ():
            added = () if repair.adds is None else (repair.adds,)
            yield ClaimChange(repair.kind, repair.text, 5, partial(_with, added), repair.of)
        return
    devices = NodeDevices(node, judge.cluster, judge.selection)
    claims = judge.pod_claims.on(node)
    stuck = False
    for asked in _asked_by(claims):
        try:
            stops = list(devices.stops(asked.request))
        except (ClaimError, NotJudged):
            yield from _of_other_classes(asked, judge.cluster.classes)
            return
        index = bottleneck(asked.request, [stop for _, stop in stops])
        if index is not None:
            stuck = True
            yield from _for_request(judge, devices, asked, stops, index)
    if not stuck:
        yield from _without_constraint(claims)
        for asked in _asked_by(claims):
            yield from _fewer(asked, asked.request.count - 1)
        yield from _freeing(judge, devices)
    yield from _left_out(claims, judge.cluster)


def _left_out(claims: Claims, cluster: ClusterDevices) -> Iterator[ClaimChange]:
    """Leave out a claim whose devices are no GPUs, by the drivers that its DeviceClasses name."""
    for claim in claims:
        names = [choice.device_class for choices in claim.spec.requests for choice in choices]
        drivers = [cluster.classes[name].driver if name in cluster.classes else None for name in names]
        if drivers and all(driver is not None and not driver.startswith(GPU_DRIVER) for driver in drivers):
            text = f"leave out the claim {claim.key} of {names[0]}, if the pod works without it"
            yield ClaimChange("drop-claim", text, 60, partial(_without, claim.key), "pod")


def _with(added: Claims, claims: Claims) -> Claims:
    return (*claims, *added)


def _without(key: str, claims: Claims) -> Claims:
    return tuple(claim for claim in claims if claim.key != key)


def _for_request(
    judge: ClaimJudge, devices: NodeDevices, asked: AskedRequest, stops: Sequence[tuple[Device, int]], index: int
) -> Iterator[ClaimChange]:
    request = asked.request
    stage = stages_of(request)[index]
    stopped = [device for device, stop in stops if stop == index]
    left = sum(stop > index for _, stop in stops)
    after_all = sum(stop == len(stages_of(request)) for _, stop in stops)
    for count in dict.fromkeys((left, after_all)):
        yield from _fewer(asked, count)
    if stage.kind in (StageKind.CLASS, StageKind.SELECTOR):
        yield from _of_other_classes(asked, judge.cluster.classes)
    missing = max(1, request.count - left)
    if stage.kind is StageKind.SELECTOR:
        yield from _looser(asked, stage, stopped, missing)
    elif stage.kind is StageKind.TAINT:
        yield from _tolerating(asked, devices, stopped)
    elif stage.kind is StageKind.CAPACITY:
        yield from _less_capacity(asked, judge, stopped, missing)
        yield from _freeing(judge, devices)
    elif stage.kind in (StageKind.ALLOCATED, StageKind.COUNTERS):
        yield from _freeing(judge, devices)


def _of_other_classes(asked: AskedRequest, classes: Mapping[str, DeviceClass]) -> Iterator[ClaimChange]:
    """Propose another DeviceClass that keeps all conditions: of a similar name, where there is none of that name."""
    wanted = asked.request.device_class
    if wanted in classes and not asked.request.selectors:
        return
    close = get_close_matches(wanted, classes, MOST_CLASSES)
    others = close if close and wanted not in classes else sorted(classes)
    for name in [name for name in others if name != wanted][:MOST_CLASSES]:
        text = f"ask for DeviceClass {name} instead of {wanted}"
        yield from asked.change(OTHER_CLASS, text, 15, partial(replace, device_class=name))


def _fewer(asked: AskedRequest, count: int) -> Iterator[ClaimChange]:
    """Ask for as many devices as there are."""
    request = asked.request
    if count > 0 and (request.mode == ALL or count < request.count):

        def fewer(one: DeviceRequest) -> DeviceRequest:
            same = (one.mode, one.count) == (request.mode, request.count)
            return replace(one, mode=EXACT_COUNT, count=count) if same else one

        text = f"ask for {count} instead of {'all' if request.mode == ALL else request.count}"
        yield from asked.change("ask-fewer", text, 30 + (0 if request.mode == ALL else request.count - count), fewer)


def _looser(asked: AskedRequest, stage: DeviceStage, devices: Sequence[Device], missing: int) -> Iterator[ClaimChange]:
    """Ask for what devices have in place of one condition that they do not meet, or leave the condition out."""
    failing = [(device, failing_parts(stage.selector, device)) for device in devices]
    single = [(parts[0], device) for device, parts in failing if len(parts) == 1]
    for text in dict.fromkeys(part.text for part, _ in single):
        parts = [part for part, _ in single if part.text == text]
        for comparison, value in _values(parts, missing):
            new, met = _met_by(comparison, value)
            words = f"ask for {name_of(comparison.fact)} {met} instead of {comparison}"
            weight = 20 + min(0.99, gap(parts[0], value))
            yield from asked.change("loosen-selector", words, weight, partial(_reworded, stage.selector, text, new))
        words = f"leave out {condition(parts[0])}"
        yield from asked.change("drop-selector", words, 45, partial(_reworded, stage.selector, text, "true"))


def _values(parts: Sequence[SelectorPart], missing: int) -> Iterator[tuple[Comparison, object]]:
    """List the values to ask for: of numbers the one that enough devices reach, of others the most frequent.

    With each is the comparison that it is for.
    """
    comparison = parts[0].comparison
    values = [value for value in map(value_of, parts) if value is not None]
    if comparison is None or not values:
        return
    if comparison.operator in (">=", "<=", ">", "<"):
        ordered = sorted(values, key=_sort_key, reverse=comparison.operator in (">=", ">"))
        yield comparison, ordered[min(missing, len(ordered)) - 1]
    elif comparison.operator in ("==", "in"):
        others = sorted(set(values), key=lambda value: (-values.count(value), str(value)))
        yield from ((comparison, value) for value in others[:OTHER_VALUES])


def _sort_key(value: object) -> tuple[object, ...]:
    if isinstance(value, SemanticVersion):
        return tuple(int(field) if field.isdecimal() else -1 for field in value.text.partition("-")[0].split("."))
    return (value if isinstance(value, int | Fraction) else str(value),)


def _met_by(comparison: Comparison, value: object) -> tuple[str, str]:
    """Write a condition that a value meets: as CEL, and as a person reads it.

    Equality is enough where an order is asked; amounts of equal products are rarely round, so that more of one will do.
    """
    amount = isinstance(value, Fraction)
    operator = "==" if comparison.operator in ("==", "in") else f"{comparison.operator[0]}="
    operator = ">=" if amount and operator == "==" else operator
    fact, shown = comparison.fact, show_value(value)
    domain, _, name = fact.name.partition("/")
    path = f"device.{fact.group}['{domain}'].{name}" if name else f"device.{fact.group}"
    words = f"{operator} {shown.strip(chr(39))}"
    if amount or isinstance(value, SemanticVersion):
        return f"{path}.compareTo({'quantity' if amount else 'semver'}('{shown}')) {operator} 0", words
    return f"{path} {operator} {shown}", words


def _less_capacity(
    asked: AskedRequest, judge: ClaimJudge, devices: Sequence[Device], missing: int
) -> Iterator[ClaimChange]:
    """Request as much of a capacity as is left of devices, and as their policy allows."""
    for name, amount in (asked.request.capacity or {}).items():
        lefts = [_left(device, name, judge) for device in devices]
        ordered = sorted((left for left in lefts if left is not None and 0 < left < amount), reverse=True)
        if ordered:
            left = ordered[min(missing, len(ordered)) - 1]
            words = f"request capacity {name} {show_value(left)} instead of {show_value(amount)}"
            weight = 25 + float((amount - left) / amount) * 0.99
            yield from asked.change("ask-less-capacity", words, weight, partial(_with_capacity, name, amount, left))


def _left(device: Device, name: str, judge: ClaimJudge) -> Fraction | None:
    """Give the largest amount of a capacity that one more allocation can have; None for a device without it."""
    if name not in device.amounts:
        return None
    left = device.amounts[name] - judge.cluster.allocated.used(device.id).get(name, 0)
    policy = device.amounts.policies.get(name)
    if policy is None:
        return left
    limits = policy.valid_range
    left = min(left, limits.max) if limits.max is not None else left
    if policy.valid_values:
        return max((value for value in policy.valid_values if value <= left), default=None)
    if limits.step and left >= (limits.min or 0):
        minimum = limits.min or Fraction(0)
        return minimum + (left - minimum) // limits.step * limits.step
    return left


def _with_capacity(name: str, asked: Fraction, left: Fraction, request: DeviceRequest) -> DeviceRequest:
    return request.with_capacity(name, left) if (request.capacity or {}).get(name) == asked else request


def _tolerating(asked: AskedRequest, devices: NodeDevices, stopped: Sequence[Device]) -> Iterator[ClaimChange]:
    """Tolerate a taint of the devices."""
    taints = dict.fromkeys(devices.taint(asked.request, device) for device in stopped)
    for taint in (taint for taint in taints if taint is not None):
        tolerated = partial(_with_toleration, DeviceToleration(taint.key, "Equal", taint.value, taint.effect))
        words = f"tolerate {show_taint(taint)}, if such a device is acceptable"
        yield from asked.change("tolerate-device-taint", words, 40, tolerated, taint.key)


def _with_toleration(toleration: DeviceToleration, request: DeviceRequest) -> DeviceRequest:
    return replace(request, tolerations=(*request.tolerations, toleration))


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
        if (claim := judge.cluster.allocated.claim(key)) is not None and claim.deleted:
            gone = " and ".join(f"{kind} {name}" for kind, name in claim.reserved_for)
            text = f"take {gone}, if gone, out of reservedFor of claim {key}, which is being deleted and has {names}"
        yield ClaimChange("free-devices", text, 50 + len(held), of="fleet", frees=key)


def _without_constraint(claims: Claims) -> Iterator[ClaimChange]:
    """Leave out one constraint."""
    for claim in claims:
        for constraint in claim.spec.constraints:
            others = tuple(one for one in claim.spec.constraints if one is not constraint)
            changed = replace(claim, spec=replace(claim.spec, constraints=others))
            name = "distinctAttribute" if constraint.distinct else "matchAttribute"
            text = f"claim {claim.key}: leave out {name} {constraint.attribute}"
            yield ClaimChange("drop-constraint", text, 35, partial(_with_claim, changed))


def _with_claim(changed: ResourceClaim, claims: Claims) -> Claims:
    return tuple(changed if one.key == changed.key else one for one in claims)
