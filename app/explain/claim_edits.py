# SPDX-License-Identifier: Apache-2.0
"""Changes of a pod's claims, or of what is allocated, as an explanation tries them.

Changes that fix what is wrong with a claim: what a selector reads and compares, classes, names.

How a selector that fails would have to be written: another name, another type, `has()` before what some lack.

Each rewriting is a guess from what the devices have; the allocator proves it before a person sees it.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fractions import Fraction
from functools import partial
from typing import NamedTuple

from app.dra.cel_comparisons import Comparison
from app.dra.cel_facts import Read, read_fact
from app.dra.cluster_devices import ClusterDevices
from app.dra.pod_claims import CLOSE_NAMES, PodClaims, Repair
from app.dra.selectors import SelectorPart, written_conditions
from app.dra.words import ORDERED, failing_parts, name_of, number_of
from app.kube.device_classes import DeviceClass
from app.kube.devices import Device, SemanticVersion
from app.kube.resource_claims import DeviceRequest, ResourceClaim

Claims = tuple[ResourceClaim, ...]
Apply = Callable[[Claims, ClusterDevices], tuple[Claims, ClusterDevices]]
Alter = Callable[[DeviceRequest], DeviceRequest]
"""Changes one request; a request that the change is not for comes back as it is."""


class ChangeKind(NamedTuple):
    """The kind of a change, its words, and its weight."""

    kind: str
    text: str
    weight: float


@dataclass(frozen=True, slots=True)
class ClaimChange:
    """One change; `weight` orders changes, the smallest first. `of` is what it changes: claim, pod or fleet.

    `about` is the key of the taint that it tolerates.
    """

    kind: str
    text: str
    weight: float
    apply: Apply
    of: str = "claim"
    about: str = ""


def of_request(
    claims: Claims, claim: ResourceClaim, request: DeviceRequest, kind: ChangeKind, alter: Alter, about: str = ""
) -> Iterator[ClaimChange]:
    """Change one request; and with it, as another change, all requests of the pod that have the same need.

    These are of the same DeviceClass, and the change is for them too.
    """
    same = [
        (one.key, other.name)
        for one in claims
        for choices in one.spec.requests
        for other in choices
        if other.device_class == request.device_class and alter(other) != other
    ]
    chosen = (claim.key, request.name)
    for targets in ([chosen], same) if len(same) > 1 else ([chosen],):
        text = f"{_subject(claims, targets)}: {kind.text}"
        weight = kind.weight + 0.001 * (len(targets) - 1)
        yield ClaimChange(kind.kind, text, weight, partial(_altered, frozenset(targets), alter), "claim", about)


def _subject(claims: Claims, targets: list[tuple[str, str]]) -> str:
    """Name the requests that change, with their claims where the pod has several."""
    names = [name if len(claims) < 2 else f"{name} of claim {key}" for key, name in targets]
    return f"request{'s' * (len(names) > 1)} {', '.join(names)}"


def _altered(
    targets: Collection[tuple[str, str]], alter: Alter, claims: Claims, cluster: ClusterDevices
) -> tuple[Claims, ClusterDevices]:
    return tuple(_with_requests(claim, targets, alter) for claim in claims), cluster


def _with_requests(claim: ResourceClaim, targets: Collection[tuple[str, str]], alter: Alter) -> ResourceClaim:
    requests = tuple(
        tuple(alter(one) if (claim.key, one.name) in targets else one for one in choices)
        for choices in claim.spec.requests
    )
    return replace(claim, spec=replace(claim.spec, requests=requests))


def reworded(selector: str, old: str, new: str) -> Alter:
    """Write one condition of a selector anew, in each request that has this selector."""

    def alter(request: DeviceRequest) -> DeviceRequest:
        selectors = tuple(
            " ".join(expression.split()).replace(old, new, 1) if expression == selector else expression
            for expression in request.selectors
        )
        return replace(request, selectors=selectors)

    return alter


CLAIM_KINDS: Mapping[str, str] = {
    "rewrite-selector": "another spelling of a selector",
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


Rewriting = tuple[str, str, str]
"""A condition as it is written, the condition in its place, and in words what to do."""


def rewritings(expression: str, devices: Sequence[Device]) -> Iterator[Rewriting]:
    """Propose rewritings of the conditions of a selector that fail on some device, or that keep it from compiling."""
    for text, comparison in written_conditions(expression):
        if comparison is not None:
            yield from retyped(text, comparison, devices)
    failed = {
        part.text: part for device in devices for part in failing_parts(expression, device) if part.judgement.error
    }
    for part in failed.values():
        yield from _renamed(part, devices)
        missing = _missing(part)
        if missing:
            guard = " && ".join(f"has({attribute_path_of(read)})" for read in missing)
            names = " and ".join(map(name_of, missing))
            yield part.text, f"{guard} && ({part.text})", f"test {guard} before {names} {_is(missing)} read"
    if len(failed) > 1:
        yield from _all_guarded(expression, failed.values())


def retyped(text: str, comparison: Comparison, devices: Sequence[Device]) -> Iterator[Rewriting]:
    """Write a comparison as the type of the fact needs it: of versions with semver(), of amounts with quantity()."""
    values = (read_fact(device, comparison.fact) for device in devices)
    value = next((value for value in values if value is not None), None)
    literal = typed_literal(value, comparison.wanted)
    if literal is not None and comparison.operator in ORDERED:
        new = f"{attribute_path_of(comparison.fact)}.compareTo({literal}) {comparison.operator} 0"
        if new != text:
            yield text, new, f"compare {name_of(comparison.fact)} as {new}"


def typed_literal(value: object, wanted: object) -> str | None:
    """Write what is wanted in the type of a fact; None where that needs no function, or cannot be."""
    if isinstance(value, SemanticVersion):
        fields = str(wanted).split(".")
        if not 1 <= len(fields) <= 3 or not all(map(str.isdecimal, fields)):
            return None
        return f"semver('{'.'.join(str(int(field)) for field in (*fields, '0', '0')[:3])}')"
    if isinstance(value, Fraction) and number_of(wanted) is not None:
        return f"quantity('{wanted}{GIBIBYTES if isinstance(wanted, int) and wanted < BYTES else ''}')"
    return None


GIBIBYTES, BYTES = "Gi", 1 << 20
"""A bare number this small is meant as gibibytes: no device has less than a megabyte."""


def attribute_path_of(read: Read) -> str:
    """Write a fact as CEL."""
    domain, _, name = read.name.partition("/")
    return f"device.{read.group}['{domain}'].{name}"


def _renamed(part: SelectorPart, devices: Sequence[Device]) -> Iterator[Rewriting]:
    """Read a fact that devices have in place of one that they lack: of another domain, or of a similar name."""
    missing = next((read for read, value in part.facts if value is None and read.name), None)
    if missing is None:
        return
    for other in dict.fromkeys(_similar(missing, devices)):
        new = part.text
        for written in _path_pattern(missing).findall(part.text):
            new = new.replace(written, attribute_path_of(other))
        if new != part.text:
            yield part.text, new, f"read {attribute_path_of(other)} instead of {missing.name}"


def _similar(missing: Read, devices: Sequence[Device]) -> Iterator[Read]:
    name = missing.name.rpartition("/")[2]
    facts = {Read("attributes", key) for device in devices for key in device.attributes}
    facts |= {Read("capacity", key) for device in devices for key in device.capacity}
    yield from sorted(fact for fact in facts if fact.name.rpartition("/")[2].lower() == name.lower())
    of_kind = {fact.name.rpartition("/")[2]: fact for fact in sorted(facts) if fact.group == missing.group}
    yield from (of_kind[close] for close in get_close_matches(name, of_kind, CLOSE_NAMES))


def _path_pattern(read: Read) -> re.Pattern[str]:
    """Match a fact as people write it: with single or double quotes, and its name behind a dot or in brackets."""
    domain, _, name = (re.escape(part) for part in read.name.partition("/"))
    tail = rf"(?:\.{name}\b|\[\s*['\"]{name}['\"]\s*\])"
    return re.compile(rf"device\.{read.group}\[\s*['\"]{domain}['\"]\s*\]{tail}")


def _all_guarded(expression: str, parts: Iterable[SelectorPart]) -> Iterator[Rewriting]:
    """Ask first whether a device has all that several conditions read."""
    missing = sorted({read for part in parts for read in _missing(part)})
    whole = " ".join(expression.split())
    if missing:
        guard = " && ".join(f"has({attribute_path_of(read)})" for read in missing)
        names = " and ".join(map(name_of, missing))
        yield whole, f"{guard} && ({whole})", f"test {guard} before {names} {_is(missing)} read"


def _missing(part: SelectorPart) -> list[Read]:
    return [read for read, value in part.facts if value is None and read.name]


def _is(reads: Sequence[Read]) -> str:
    return "is" if len(reads) == 1 else "are"


MOST_CLASSES = 3
"""Other DeviceClasses that are tried for one request."""
OTHER_CLASS = "change-class"
"""The kind of a change that asks for another DeviceClass, the devices of which other nodes may have."""


def repairs_of_pod(claims: PodClaims) -> Iterator[ClaimChange]:
    """Propose what removes the one obstacle that is in the way of the pod; nothing where there are several."""
    if len(claims.obstacles) == 1:
        for repair in claims.obstacles[0].repairs:
            yield ClaimChange(repair.kind, repair.text, 5, partial(_repaired, repair), repair.of)


def _repaired(repair: Repair, claims: Claims, cluster: ClusterDevices) -> tuple[Claims, ClusterDevices]:
    return (claims if repair.adds is None else (*claims, repair.adds)), cluster


def repairs_of_request(
    claims: Claims,
    claim: ResourceClaim,
    request: DeviceRequest,
    devices: Sequence[Device],
    classes: Mapping[str, DeviceClass],
) -> Iterator[ClaimChange]:
    """Propose other selectors, and other classes, for a request at which kube-scheduler gives up."""
    for expression in request.selectors:
        for position, (old, new, words) in enumerate(rewritings(expression, devices)):
            kind = ChangeKind("rewrite-selector", words, 10 + 0.01 * position)
            yield from of_request(claims, claim, request, kind, reworded(expression, old, new))
    yield from of_other_classes(claims, claim, request, classes)


def of_other_classes(
    claims: Claims, claim: ResourceClaim, request: DeviceRequest, classes: Mapping[str, DeviceClass]
) -> Iterator[ClaimChange]:
    """Propose another DeviceClass that keeps all conditions: of a similar name, where there is none of that name."""
    if request.device_class in classes and not request.selectors:
        return
    close = get_close_matches(request.device_class, classes, MOST_CLASSES)
    others = close if close and request.device_class not in classes else sorted(classes)
    for name in [name for name in others if name != request.device_class][:MOST_CLASSES]:
        kind = ChangeKind(OTHER_CLASS, f"ask for DeviceClass {name} instead of {request.device_class}", 15)
        yield from of_request(claims, claim, request, kind, partial(replace, device_class=name))
