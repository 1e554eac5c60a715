# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims of DRA: which DeviceClasses a claim or template requests, and which GPUs a pod so claims (S13).

A pod only names its ResourceClaims and ResourceClaimTemplates; their requests are in those objects. The API versions
resource.k8s.io/v1 and v1beta2 write a request under `exactly`, and v1beta1 writes it directly. All of them write
alternatives under `firstAvailable` (k8s.io/api resource/v1 types.go DeviceRequest; KEP-4816).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from app.knowledge.gpu_resources import Family
from app.kube.pods import Pod
from app.values.json_members import member, objects


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """A number of devices of one DeviceClass; `count` is None for all devices of a node (allocationMode All).

    `selectors` are CEL expressions that must all hold, without those of the class; they are left out, which selects
    more, where they have more than LONGEST_SELECTORS characters. `tolerations` of device taints are (key, operator,
    value, effect).
    """

    device_class: str
    count: int | None
    selectors: tuple[str, ...] = ()
    tolerations: tuple[tuple[str, str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """One request of a claim: one choice, or alternatives of which kube-scheduler takes the first that it can."""

    name: str
    choices: tuple[DeviceChoice, ...]


Requests = tuple[ClaimRequest, ...]
DeviceRequest = tuple[DeviceChoice, ...]
"""The choices of one request."""
LONGEST_SELECTORS = 4096
"""Characters of the selectors of one choice that are kept for filters; those of published examples have 600 at most.
They are part of the key by which demands are cached. The allocator reads them whole (app/dra/claim_reading.py)."""


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """A device that is allocated to a claim; devices with adminAccess are left out, as others can still have them."""

    driver: str
    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim or ResourceClaimTemplate; `key` is namespace/name, and `devices` are those allocated to it."""

    key: str
    requests: Requests
    devices: tuple[AllocatedDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimedDevices:
    """The GPUs that a pod claims through DRA.

    `classes` are pairs of DeviceClass and number of devices (None for all devices of a node), sorted; every alternative
    counts as if it were taken. `families` are the GPU families of these classes, by name. `container_families` are
    pairs of container and family for the containers that may use the devices, in the order of the spec. `unknown` are
    the claims and templates that the pod names and that are not in the cluster state yet. `requests` are the requests
    that give GPUs, and one for each extended resource that DRA serves.
    """

    classes: tuple[tuple[str, int | None], ...] = ()
    families: tuple[Family, ...] = ()
    container_families: tuple[tuple[str, str], ...] = ()
    unknown: tuple[str, ...] = ()
    requests: tuple[DeviceRequest, ...] = ()

    @property
    def containers(self) -> tuple[str, ...]:
        """Name the containers that may use the devices, in the order of the spec."""
        return tuple(dict.fromkeys(name for name, _ in self.container_families))


NO_CLAIMED_DEVICES = ClaimedDevices()


ClaimLookup = Callable[[str], Requests | None]
"""A function from namespace/name of a claim or template to its requests; None if it is not known."""
FamilyOf = Callable[[str], Family | None]
"""A function from the name of a DeviceClass to the family of the GPUs that it gives; None if it gives no GPUs."""

ClassOf = Callable[[str], str | None]
"""A function from an extended resource to the DeviceClass that serves it; None if no DeviceClass serves it."""


def read_claim(document: Mapping[str, Any]) -> Claim:
    """Read a ResourceClaim.

    Raises MalformedPod.
    """
    spec = member(document, "spec", dict, "") or {}
    status = member(document, "status", dict, "") or {}
    allocation = member(status, "allocation", dict, "status.") or {}
    return Claim(_key(document), _requests(spec, "spec."), tuple(_allocated(allocation)))


def read_claim_template(document: Mapping[str, Any]) -> Claim:
    """Read a ResourceClaimTemplate, which has the spec of the claim inside its own spec.

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
    alternatives = objects(item, "firstAvailable", where)
    choices = [_choice(choice, f"{where}firstAvailable[{index}].") for index, choice in alternatives]
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
    number = None if everything else 1 if count is None else count
    return DeviceChoice(name, number, tuple(_selectors(item, where)), tuple(_tolerations(item, where)))


def _selectors(item: Mapping[str, Any], where: str) -> list[str]:
    expressions = []
    for index, selector in objects(item, "selectors", where):
        inside = f"{where}selectors[{index}]."
        cel = member(selector, "cel", dict, inside) or {}
        expressions.append(member(cel, "expression", str, f"{inside}cel.") or "")
    return expressions if sum(map(len, expressions)) <= LONGEST_SELECTORS else []


def _tolerations(item: Mapping[str, Any], where: str) -> Iterator[tuple[str, str, str, str]]:
    for index, toleration in objects(item, "tolerations", where):
        inside = f"{where}tolerations[{index}]."
        key, value, effect = (member(toleration, name, str, inside) or "" for name in ("key", "value", "effect"))
        yield key, member(toleration, "operator", str, inside) or "Equal", value, effect


@dataclass(frozen=True, slots=True)
class _ClaimReference:
    """One entry of a pod's `resourceClaims`.

    `name` is the name of the entry, `key` is the kind and namespace/name of the claim or template, and `requests` are
    its requests, None if the object is not known.
    """

    name: str
    key: str
    requests: Requests | None


def claimed_devices(
    pod: Pod,
    claims: ClaimLookup,
    templates: ClaimLookup,
    family_of: FamilyOf,
    class_of: ClassOf = lambda _resource: None,
) -> ClaimedDevices:
    """Work out the GPUs that a pod claims by ResourceClaims, by templates, and by extended resources that DRA serves.

    For an extended resource that a DeviceClass serves, kube-scheduler creates a claim itself (KEP-5004).
    """
    resources = {name for container in pod.containers for name in (*container.requests, *container.limits)}
    served = {name: class_name for name in sorted(resources) if (class_name := class_of(name))}
    if not (pod.claims or served):
        return NO_CLAIMED_DEVICES
    family_of = cache(family_of)
    references = tuple(_claim_references(pod, claims, templates))
    amounts: dict[str, int | None] = {}
    device_requests = [request.choices for request in _requests_of(references) if _gives_gpus(request, family_of)]
    for resource, device_class in served.items():
        count = -int(-pod.amount(resource) // 1)
        if count > 0 and family_of(device_class) is not None:
            amounts[device_class] = _add_counts(amounts.get(device_class, 0), count)
            device_requests.append((DeviceChoice(device_class, count),))
    for choice in (choice for request in _requests_of(references) for choice in request.choices):
        if family_of(choice.device_class) is not None:
            amounts[choice.device_class] = _add_counts(amounts.get(choice.device_class, 0), choice.count)
    families = {family.name: family for name in amounts if (family := family_of(name)) is not None}
    return ClaimedDevices(
        classes=tuple(sorted(amounts.items(), key=lambda item: item[0])),
        families=tuple(families[name] for name in sorted(families)),
        container_families=tuple(_container_families(pod, references, family_of, served)),
        unknown=tuple(dict.fromkeys(reference.key for reference in references if reference.requests is None)),
        requests=tuple(device_requests),
    )


def _add_counts(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _claim_references(pod: Pod, claims: ClaimLookup, templates: ClaimLookup) -> Iterator[_ClaimReference]:
    for name, claim, template in pod.claims:
        if claim:
            key = f"{pod.namespace}/{claim}"
            yield _ClaimReference(name, f"ResourceClaim {key}", claims(key))
        elif template:
            key = f"{pod.namespace}/{template}"
            yield _ClaimReference(name, f"ResourceClaimTemplate {key}", templates(key))


def _requests_of(references: tuple[_ClaimReference, ...]) -> Iterator[ClaimRequest]:
    return (request for reference in references for request in reference.requests or ())


def _gives_gpus(request: ClaimRequest, family_of: FamilyOf) -> bool:
    """Tell whether a request gives GPUs, whatever alternative is taken."""
    return all(family_of(choice.device_class) is not None for choice in request.choices)


def _container_families(
    pod: Pod, references: tuple[_ClaimReference, ...], family_of: FamilyOf, served: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Give (container, family) for each GPU family that a container uses, by claim or by extended resource."""
    gpus: dict[tuple[str, str], set[str]] = {}
    for granted, family in _gpu_requests(references, family_of):
        gpus.setdefault(granted, set()).add(family.name)
    for container in pod.containers:
        families = {name for granted in container.claims for name in gpus.get(granted, ())}
        resources = (name for name in container.resources() if name in served and container.has_nonzero(name))
        families.update(owner.name for name in resources if (owner := family_of(served[name])) is not None)
        yield from ((container.name, name) for name in sorted(families))


def _gpu_requests(
    references: tuple[_ClaimReference, ...], family_of: FamilyOf
) -> Iterator[tuple[tuple[str, str], Family]]:
    """List the references by which a container may use GPUs, as (claim, request) with their family.

    The request is empty in a reference to the whole claim.
    """
    for reference in references:
        for request in reference.requests or ():
            for choice in request.choices:
                if (family := family_of(choice.device_class)) is not None:
                    yield (reference.name, ""), family
                    yield (reference.name, request.name), family
