# SPDX-License-Identifier: Apache-2.0
"""Claims as DRA has them: which DeviceClasses a ResourceClaim or a template asks for, and which a pod so claims (S13).

A pod names its claims and templates only; what they ask stands in objects of their own. resource.k8s.io/v1 and
v1beta2 write a request under `exactly`, v1beta1 directly, all of them write alternatives under `firstAvailable`
(k8s.io/api resource/v1 types.go DeviceRequest; KEP-4816).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from app.knowledge.families import Family
from app.kube.pods import Pod
from app.values.json_members import member, objects


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """Devices of one class. `count`: None is all that a node has."""

    device_class: str
    count: int | None


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """One request of a claim: one choice, or alternatives of which the scheduler takes the first that it can."""

    name: str
    choices: tuple[DeviceChoice, ...]


Requests = tuple[ClaimRequest, ...]


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """A device that a claim was given. What it was given for administration alone takes nothing from others."""

    driver: str
    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim or a ResourceClaimTemplate; `key`: namespace/name. `devices`: what it was given, if it was."""

    key: str
    requests: Requests
    devices: tuple[AllocatedDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimedDevices:
    """What a pod claims of GPUs.

    `classes`: (DeviceClass, devices; None is all of a node), sorted; every alternative counts as if it were taken.
    `families`: their families, by name. `users`: (container, family) for the containers that may use the devices, in
    the order of the spec. `unknown`: claims and templates that the pod names and nobody has shown us yet.
    """

    classes: tuple[tuple[str, int | None], ...] = ()
    families: tuple[Family, ...] = ()
    users: tuple[tuple[str, str], ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def containers(self) -> tuple[str, ...]:
        """Name the containers that may use the devices, in the order of the spec."""
        return tuple(dict.fromkeys(name for name, _ in self.users))


NOTHING_CLAIMED = ClaimedDevices()


Lookup = Callable[[str], Requests | None]
"""From namespace/name to what is asked there; None if it is not known."""
FamilyOf = Callable[[str], Family | None]
"""From the name of a DeviceClass to the family of GPUs that it gives; None if it gives none."""

ClassOf = Callable[[str], str | None]
"""From the name of an extended resource to the DeviceClass that serves it; None if a device plugin does, or nobody."""


def read_claim(document: Mapping[str, Any]) -> Claim:
    """Read a ResourceClaim.

    Raises MalformedPod.
    """
    spec = member(document, "spec", dict, "") or {}
    status = member(document, "status", dict, "") or {}
    allocation = member(status, "allocation", dict, "status.") or {}
    return Claim(_key(document), _requests(spec, "spec."), tuple(_allocated(allocation)))


def read_claim_template(document: Mapping[str, Any]) -> Claim:
    """Read a ResourceClaimTemplate, which has the claim's spec in its own.

    Raises MalformedPod.
    """
    spec = member(document, "spec", dict, "") or {}
    return Claim(_key(document), _requests(member(spec, "spec", dict, "spec.") or {}, "spec.spec."))


def _allocated(allocation: Mapping[str, Any]) -> Iterator[AllocatedDevice]:
    where = "status.allocation."
    devices = member(allocation, "devices", dict, where) or {}
    for index, item in objects(devices, "results", f"{where}devices."):
        inside = f"{where}devices.results[{index}]."
        names = (member(item, field, str, inside) or "" for field in ("driver", "pool", "device"))
        if not member(item, "adminAccess", bool, inside):
            yield AllocatedDevice(*names)


def _key(document: Mapping[str, Any]) -> str:
    metadata = member(document, "metadata", dict, "") or {}
    name = member(metadata, "name", str, "metadata.") or ""
    return f"{member(metadata, 'namespace', str, 'metadata.') or 'default'}/{name}"


def _requests(spec: Mapping[str, Any], where: str) -> Requests:
    devices = member(spec, "devices", dict, where) or {}
    where += "devices."
    return tuple(_request(item, f"{where}requests[{index}].") for index, item in objects(devices, "requests", where))


def _request(item: Mapping[str, Any], where: str) -> ClaimRequest:
    choices = [_choice(each, f"{where}firstAvailable[{n}].") for n, each in objects(item, "firstAvailable", where)]
    exactly = member(item, "exactly", dict, where)
    if exactly is not None:
        choices.append(_choice(exactly, f"{where}exactly."))
    if not choices:
        choices.append(_choice(item, where))
    return ClaimRequest(member(item, "name", str, where) or "", tuple(choices))


def _choice(item: Mapping[str, Any], where: str) -> DeviceChoice:
    """Read one choice; the API server writes the defaults ExactCount and 1 where they are left out."""
    everything = member(item, "allocationMode", str, where) == "All"
    count = member(item, "count", int, where)
    name = member(item, "deviceClassName", str, where) or ""
    return DeviceChoice(name, None if everything else 1 if count is None else count)


@dataclass(frozen=True, slots=True)
class _Named:
    """One entry of a pod's `resourceClaims`, looked up; `requests` None: not known."""

    name: str
    key: str
    requests: Requests | None


def claimed_classes(
    pod: Pod,
    claims: Lookup,
    templates: Lookup,
    family_of: FamilyOf,
    class_of: ClassOf = lambda _resource: None,
) -> ClaimedDevices:
    """Say which GPUs a pod claims: by the claims and templates that it names, and by resources that DRA serves.

    Of an extended resource that a DeviceClass serves kube-scheduler makes a claim itself (KEP-5004).
    """
    served = {name: found for each in pod.containers for name in each.resources() if (found := class_of(name))}
    if not (pod.claims or served):
        return NOTHING_CLAIMED
    family_of = cache(family_of)
    named = tuple(_named(pod, claims, templates))
    amounts: dict[str, int | None] = {}
    for resource, device_class in served.items():
        count = -int(-pod.amount(resource) // 1)
        if count > 0 and family_of(device_class) is not None:
            amounts[device_class] = _sum(amounts.get(device_class, 0), count)
    for choice in _choices(named):
        if family_of(choice.device_class) is not None:
            amounts[choice.device_class] = _sum(amounts.get(choice.device_class, 0), choice.count)
    families = {family.name: family for name in amounts if (family := family_of(name)) is not None}
    return ClaimedDevices(
        classes=tuple(sorted(amounts.items(), key=lambda item: item[0])),
        families=tuple(families[name] for name in sorted(families)),
        users=tuple(_users(pod, named, family_of, served)),
        unknown=tuple(dict.fromkeys(each.key for each in named if each.requests is None)),
    )


def _sum(known: int | None, more: int | None) -> int | None:
    return None if known is None or more is None else known + more


def _named(pod: Pod, claims: Lookup, templates: Lookup) -> Iterator[_Named]:
    for name, claim, template in pod.claims:
        if claim:
            key = f"{pod.namespace}/{claim}"
            yield _Named(name, f"ResourceClaim {key}", claims(key))
        elif template:
            key = f"{pod.namespace}/{template}"
            yield _Named(name, f"ResourceClaimTemplate {key}", templates(key))


def _choices(named: tuple[_Named, ...]) -> Iterator[DeviceChoice]:
    for each in named:
        for request in each.requests or ():
            yield from request.choices


def _users(
    pod: Pod, named: tuple[_Named, ...], family_of: FamilyOf, served: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Give (container, family) for every family whose GPUs a container refers to: by a request, a claim, a resource."""
    gpus: dict[tuple[str, str], set[str]] = {}
    for reference, family in _references(named, family_of):
        gpus.setdefault(reference, set()).add(family.name)
    for container in pod.containers:
        families = {name for reference in container.claims for name in gpus.get(reference, ())}
        asked = (family_of(served[name]) for name in container.resources() if name in served and container.names(name))
        families.update(family.name for family in asked if family is not None)
        yield from ((container.name, name) for name in sorted(families))


def _references(named: tuple[_Named, ...], family_of: FamilyOf) -> Iterator[tuple[tuple[str, str], Family]]:
    """List what a container may write to have GPUs: (claim, request), the request empty for the whole claim."""
    for each in named:
        for request in each.requests or ():
            for choice in request.choices:
                if (family := family_of(choice.device_class)) is not None:
                    yield (each.name, ""), family
                    yield (each.name, request.name), family
