# SPDX-License-Identifier: Apache-2.0
"""The GPUs that a pod claims through DRA, by ResourceClaims, templates and extended resources of DeviceClasses.

A pod only names its ResourceClaims and ResourceClaimTemplates; their requests are in those objects.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from app.knowledge.gpu_resources import Family
from app.kube.pods import Pod
from app.kube.resource_claims import ALL, ClaimSpec, DeviceRequest


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """A number of devices of one DeviceClass; `count` is None for all devices of a node (allocationMode All).

    `selectors` are CEL expressions that must all hold, without those of the class; they are left out, which selects
    more, where they have more than LONGEST_SELECTORS characters. `tolerations` of device taints are (key, operator,
    value, effect). `capacity` is what it requests of each device, by the name as written. `counted` is False if the pod
    holds nothing by it: with adminAccess, and for an extended resource, of which it holds the units.
    """

    device_class: str
    count: int | None
    selectors: tuple[str, ...] = ()
    tolerations: tuple[tuple[str, str, str, str], ...] = ()
    capacity: tuple[tuple[str, Fraction], ...] = ()
    counted: bool = True


DeviceChoices = tuple[DeviceChoice, ...]
"""The choices of one request: one, or alternatives of which kube-scheduler takes the first that it can."""
LONGEST_SELECTORS = 4096
"""Characters of the selectors of one choice that are kept for filters; those of published examples have 600 at most.
They are part of the key by which demands are cached. The allocator reads them whole (app/kube/resource_claims.py)."""


def choice_of(request: DeviceRequest) -> DeviceChoice:
    """Return what filters read of a request, which can be the key of a cache."""
    tolerations = tuple((one.key, one.operator, one.value, one.effect) for one in request.tolerations)
    selectors = request.selectors if sum(map(len, request.selectors)) <= LONGEST_SELECTORS else ()
    count = None if request.mode == ALL else request.count
    capacity = tuple(sorted(request.capacity.items())) if request.capacity else ()
    return DeviceChoice(request.device_class, count, selectors, tolerations, capacity, not request.admin_access)


@dataclass(frozen=True, slots=True)
class PublishedShares:
    """How a claim gets a share of a GPU: the capacities of which it can request a part, on some node of the fleet.

    `by_default` says that a claim which requests no capacity gets a share of some GPU.
    """

    capacities: frozenset[str] = frozenset()
    by_default: bool = False


NO_SHARES = PublishedShares()


@dataclass(frozen=True, slots=True)
class ClaimedDevices:
    """The GPUs that a pod claims through DRA.

    `classes` are pairs of DeviceClass and number of devices (None for all devices of a node), sorted; of the
    alternatives of a request the largest of each class counts. `most` is the largest number of GPUs that the pod can
    get, None where a request is for all devices of a node. `families` are the GPU families of these classes, by name.
    `container_families` are pairs of container and family for the containers that may use the devices, in the order of
    the spec. `unknown` are the claims and templates that the pod names and that are not in the cluster state yet.
    `requests` are the requests that give GPUs, and one for each extended resource that DRA serves.
    """

    classes: tuple[tuple[str, int | None], ...] = ()
    most: int | None = 0
    families: tuple[Family, ...] = ()
    container_families: tuple[tuple[str, str], ...] = ()
    unknown: tuple[str, ...] = ()
    requests: tuple[DeviceChoices, ...] = ()

    @property
    def containers(self) -> tuple[str, ...]:
        """Name the containers that may use the devices, in the order of the spec."""
        return tuple(dict.fromkeys(name for name, _ in self.container_families))


NO_CLAIMED_DEVICES = ClaimedDevices()


ClaimLookup = Callable[[str], ClaimSpec | None]
"""A function from namespace/name of a claim or template to what it asks; None if it is not known."""
FamilyOf = Callable[[str], Family | None]
"""A function from the name of a DeviceClass to the family of the GPUs that it gives; None if it gives no GPUs."""

ClassOf = Callable[[str], str | None]
"""A function from an extended resource to the DeviceClass that serves it; None if no DeviceClass serves it."""


@dataclass(frozen=True, slots=True)
class _ClaimReference:
    """One entry of a pod's `resourceClaims`.

    `name` is the name of the entry, `key` is the kind and namespace/name of the claim or template, and `spec` is
    what it asks, None if the object is not known.
    """

    name: str
    key: str
    spec: ClaimSpec | None


def claimed_devices(
    pod: Pod,
    claims: ClaimLookup,
    templates: ClaimLookup,
    family_of: FamilyOf,
    class_of: ClassOf = lambda _resource: None,
) -> ClaimedDevices:
    """Work out the GPUs that a pod claims by ResourceClaims, by templates, and by extended resources that DRA serves.

    For an extended resource that a DeviceClass serves, kube-scheduler creates a claim itself.
    """
    resources = {name for container in pod.containers for name in (*container.requests, *container.limits)}
    served = {name: class_name for name in sorted(resources) if (class_name := class_of(name))}
    if not (pod.claims or served):
        return NO_CLAIMED_DEVICES
    family_of = cache(family_of)
    references = tuple(_claim_references(pod, claims, templates))
    amounts: dict[str, int | None] = {}
    most: int | None = 0
    device_requests = [
        tuple(map(choice_of, request))
        for request in _requests_of(references)
        if all(family_of(choice.device_class) is not None for choice in request)  # GPUs by whatever alternative
    ]
    for resource, device_class in served.items():
        count = -int(-pod.amount(resource) // 1)
        if count > 0 and family_of(device_class) is not None:
            amounts[device_class], most = _sum((amounts.get(device_class, 0), count)), _sum((most, count))
            device_requests.append((DeviceChoice(device_class, count, counted=False),))
    for request in _requests_of(references):
        choices = [choice for choice in map(choice_of, request) if family_of(choice.device_class) is not None]
        for name in dict.fromkeys(choice.device_class for choice in choices):
            largest = _largest(choice.count for choice in choices if choice.device_class == name)
            amounts[name] = _sum((amounts.get(name, 0), largest))
        most = _sum((most, _largest(choice.count for choice in choices)))
    families = {family.name: family for name in amounts if (family := family_of(name)) is not None}
    return ClaimedDevices(
        classes=tuple(sorted(amounts.items(), key=lambda item: item[0])),
        most=most,
        families=tuple(families[name] for name in sorted(families)),
        container_families=tuple(_container_families(pod, references, family_of, served)),
        unknown=tuple(dict.fromkeys(reference.key for reference in references if reference.spec is None)),
        requests=tuple(device_requests),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    """Add numbers of devices; None, all devices of a node, stays None."""
    known = list(counts)
    return None if None in known else sum(filter(None, known))


def _largest(counts: Iterable[int | None]) -> int | None:
    """Give the number of devices of the largest alternative; None, all devices of a node, is more than any number."""
    known = list(counts)
    return None if None in known else max(filter(None, known), default=0)


def _claim_references(pod: Pod, claims: ClaimLookup, templates: ClaimLookup) -> Iterator[_ClaimReference]:
    for name, claim, template in pod.claims:
        if claim:
            key = f"{pod.namespace}/{claim}"
            yield _ClaimReference(name, f"ResourceClaim {key}", claims(key))
        elif template:
            key = f"{pod.namespace}/{template}"
            yield _ClaimReference(name, f"ResourceClaimTemplate {key}", templates(key))


def _requests_of(references: tuple[_ClaimReference, ...]) -> Iterator[tuple[DeviceRequest, ...]]:
    return (request for reference in references for request in (reference.spec.requests if reference.spec else ()))


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
        for choice in (choice for request in (reference.spec.requests if reference.spec else ()) for choice in request):
            if (family := family_of(choice.device_class)) is not None:
                yield (reference.name, ""), family
                yield (reference.name, choice.parent), family
