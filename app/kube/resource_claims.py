# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims as kube-scheduler's allocator reads them: requests, constraints, and what is allocated.

The API versions resource.k8s.io/v1 and v1beta2 write a request under `exactly`, v1beta1 writes it directly, and all of
them write alternatives under `firstAvailable` (k8s.io/api resource/v1 types.go DeviceRequest; KEP-4816).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from sys import intern
from typing import Any

from app.kube.devices import DeviceID, NodeSelection
from app.kube.node_selectors import read_terms
from app.kube.slice_reading import MOST_ENTRIES, quantity
from app.values.errors import OversizedPod
from app.values.json_members import member, objects

ALL = "All"
EXACT_COUNT = "ExactCount"
MOST_RESULTS = 32
"""Devices that can be allocated to one claim (k8s.io/api resource/v1 types.go AllocationResultsMaxSize)."""


@dataclass(frozen=True, slots=True)
class DeviceToleration:
    """A toleration of device taints; empty fields match everything, and so does the operator Exists any value."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A request for devices of one DeviceClass: a whole request, or one alternative of `firstAvailable`.

    `name` is that of the request, or request/alternative. `selectors` are CEL expressions that must all hold. `mode` is
    ALL or EXACT_COUNT, of which only the latter has a `count`. `capacity` is what it requests of each device, by the
    name as written.
    """

    name: str
    device_class: str
    selectors: tuple[str, ...] = ()
    mode: str = EXACT_COUNT
    count: int = 1
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: Mapping[str, Fraction] | None = None
    admin_access: bool = False

    @property
    def parent(self) -> str:
        """The name of the request that an alternative belongs to, and of any other request its own."""
        return self.name.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint on the devices of some requests, or of all if it names none.

    The value of `attribute` is the same for all these devices, or with `distinct` another for each request.
    """

    attribute: str
    requests: tuple[str, ...] = ()
    distinct: bool = False

    def covers(self, request: DeviceRequest) -> bool:
        """Tell whether devices of the request are constrained."""
        return not self.requests or request.name in self.requests or request.parent in self.requests


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """What a claim asks: alternatives for each request, most often one, and constraints over all of them."""

    requests: tuple[tuple[DeviceRequest, ...], ...]
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """One device that is allocated to a claim.

    `consumed` is the capacity that this share of the device consumes; None where the claim has the device alone. With
    `admin_access` others can still have it. `waits_for` are its binding conditions that are not true, until which
    kube-scheduler does not bind the pod, and `failed` its binding failure conditions that are.
    """

    request: str
    device: DeviceID
    admin_access: bool = False
    consumed: Mapping[str, Fraction] | None = None
    waits_for: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Allocation:
    """The devices allocated to a claim, and the nodes from which all of them can be reached; None for all nodes."""

    results: tuple[Result, ...]
    nodes: NodeSelection | None = None


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A ResourceClaim, or a ResourceClaimTemplate without state; `key` is namespace/name.

    `allocation` is None while it has no devices. `reserved_for` are the kinds and names of the pods and PodGroups that
    use it. A claim
    that is `deleted` goes when they end, and no other pod can use it. kube-scheduler made one for the `extended`
    resources of a pod.
    """

    key: str
    spec: ClaimSpec
    allocation: Allocation | None = None
    reserved_for: tuple[tuple[str, str], ...] = ()
    deleted: bool = False
    extended: bool = False


EXTENDED = "resource.kubernetes.io/extended-resource-claim"
"""The annotation of such a claim (k8s.io/api resource/v1 types.go ExtendedResourceClaimAnnotation)."""
MOST_REQUESTS = 32
"""Requests of a claim, constraints of a claim, selectors of a request or class (k8s.io/api resource/v1 types.go
DeviceRequestsMaxSize, DeviceConstraintsMaxSize, DeviceSelectorsMaxSize)."""
MOST_ALTERNATIVES = 8
MOST_TOLERATIONS = 16
LONGEST_EXPRESSION = 10 << 10
"""The same file: FirstAvailableDeviceRequestMaxSize, DeviceTolerationsMaxLength, CELSelectorExpressionMaxLength."""
MOST_RESERVED = 256
POD = "pod"
POD_GROUP = "PodGroup"
CONSUMERS = {"pods": POD, "podgroups": POD_GROUP}
"""What uses a claim, by the resource of a consumer; a claim of a PodGroup serves all its members
(kubernetes gate DRAWorkloadResourceClaims; resourceclaim.go BindTo)."""


def read_resource_claim(document: Mapping[str, Any]) -> ResourceClaim:
    """Read a ResourceClaim.

    Raises MalformedPod, OversizedPod, QuantityError.
    """
    metadata = member(document, "metadata", dict, "") or {}
    status = member(document, "status", dict, "") or {}
    consumers = (item for _, item in objects(status, "reservedFor", "status.", MOST_RESERVED))
    return ResourceClaim(
        key=_key(document),
        spec=_spec(member(document, "spec", dict, "") or {}, "spec."),
        allocation=_allocation(member(status, "allocation", dict, "status."), status),
        reserved_for=tuple(
            (CONSUMERS.get(resource := str(item.get("resource") or "pods"), resource), str(item.get("name") or ""))
            for item in consumers
        ),
        deleted=metadata.get("deletionTimestamp") is not None,
        extended=EXTENDED in (member(metadata, "annotations", dict, "metadata.") or {}),
    )


def read_resource_claim_template(document: Mapping[str, Any]) -> ResourceClaim:
    """Read a ResourceClaimTemplate, which has the spec of the claim inside its own spec.

    Raises MalformedPod, OversizedPod, QuantityError.
    """
    spec = member(document, "spec", dict, "") or {}
    return ResourceClaim(_key(document), _spec(member(spec, "spec", dict, "spec.") or {}, "spec.spec."))


def _key(document: Mapping[str, Any]) -> str:
    metadata = member(document, "metadata", dict, "") or {}
    name = member(metadata, "name", str, "metadata.") or ""
    return f"{member(metadata, 'namespace', str, 'metadata.') or 'default'}/{name}"


def _spec(spec: Mapping[str, Any], where: str) -> ClaimSpec:
    devices = member(spec, "devices", dict, where) or {}
    where += "devices."
    requests = objects(devices, "requests", where, MOST_REQUESTS)
    constraints = objects(devices, "constraints", where, MOST_REQUESTS)
    return ClaimSpec(
        tuple(tuple(_choices(item, f"{where}requests[{index}].")) for index, item in requests),
        tuple(_constraint(item, f"{where}constraints[{index}].") for index, item in constraints),
    )


def _choices(item: Mapping[str, Any], where: str) -> Iterator[DeviceRequest]:
    """Read the alternatives of a request in their order, or the one request that it is."""
    name = member(item, "name", str, where) or ""
    alternatives = list(objects(item, "firstAvailable", where, MOST_ALTERNATIVES))
    for index, choice in alternatives:
        inside = f"{where}firstAvailable[{index}]."
        yield _request(choice, f"{name}/{member(choice, 'name', str, inside) or ''}", inside)
    if not alternatives:
        exactly = member(item, "exactly", dict, where)
        yield _request(item, name, where) if exactly is None else _request(exactly, name, f"{where}exactly.")


def _request(item: Mapping[str, Any], name: str, where: str) -> DeviceRequest:
    """Read one request; the API server writes the defaults ExactCount and 1 where they are left out."""
    count = member(item, "count", int, where)
    capacity = member(item, "capacity", dict, where)
    tolerations = objects(item, "tolerations", where, MOST_TOLERATIONS)
    return DeviceRequest(
        name=name,
        device_class=intern(member(item, "deviceClassName", str, where) or ""),
        selectors=tuple(read_selectors(item, where)),
        mode=member(item, "allocationMode", str, where) or EXACT_COUNT,
        count=1 if count is None else count,
        tolerations=tuple(_toleration(toleration) for _, toleration in tolerations),
        capacity=None if capacity is None else _requested_capacity(capacity, f"{where}capacity."),
        admin_access=member(item, "adminAccess", bool, where) or False,
    )


def _requested_capacity(capacity: Mapping[str, Any], where: str) -> Mapping[str, Fraction]:
    requests = member(capacity, "requests", dict, where) or {}
    if len(requests) > MOST_ENTRIES:
        raise OversizedPod(f"{where}requests: got {len(requests)} entries, wants at most {MOST_ENTRIES}")
    return {name: quantity(amount, f"{where}requests[{name[:80]}]") for name, amount in requests.items()}


def read_selectors(parent: Mapping[str, Any], where: str) -> Iterator[str]:
    """Read the CEL expressions of a request or a class. Raises MalformedPod, OversizedPod."""
    for index, selector in objects(parent, "selectors", where, MOST_REQUESTS):
        inside = f"{where}selectors[{index}]."
        cel = member(selector, "cel", dict, inside) or {}
        expression = member(cel, "expression", str, f"{inside}cel.") or ""
        if len(expression) > LONGEST_EXPRESSION:
            raise OversizedPod(f"{inside}cel: got {len(expression)} characters, wants at most {LONGEST_EXPRESSION}")
        yield intern(expression)


def _toleration(item: Mapping[str, Any]) -> DeviceToleration:
    key, operator, value, effect = (
        member(item, name, str, "tolerations.") or "" for name in ("key", "operator", "value", "effect")
    )
    return DeviceToleration(key, operator or "Equal", value, effect)


def _constraint(item: Mapping[str, Any], where: str) -> Constraint:
    names = tuple(map(str, member(item, "requests", list, where) or ()))
    distinct = member(item, "distinctAttribute", str, where)
    return Constraint(distinct or member(item, "matchAttribute", str, where) or "", names, distinct is not None)


def _allocation(allocation: Mapping[str, Any] | None, status: Mapping[str, Any]) -> Allocation | None:
    if allocation is None:
        return None
    conditions = _device_conditions(status)
    where = "status.allocation."
    devices = member(allocation, "devices", dict, where) or {}
    selector = member(allocation, "nodeSelector", dict, where)
    results = objects(devices, "results", f"{where}devices.")
    return Allocation(
        tuple(_result(item, f"{where}devices.results[{index}].", conditions) for index, item in results),
        None if selector is None else NodeSelection(terms=read_terms(selector)),
    )


def _device_conditions(status: Mapping[str, Any]) -> Mapping[DeviceID, frozenset[str]]:
    """Read the conditions that drivers report as true, by device."""
    found = {}
    for index, item in objects(status, "devices", "status."):
        where = f"status.devices[{index}]."
        driver, pool, device = (member(item, name, str, where) or "" for name in ("driver", "pool", "device"))
        conditions = [one for _, one in objects(item, "conditions", where) if one.get("status") == "True"]
        found[driver, pool, device] = frozenset(str(one.get("type")) for one in conditions)
    return found


def _result(item: Mapping[str, Any], where: str, conditions: Mapping[DeviceID, frozenset[str]]) -> Result:
    """Read one device; it is shared if it has a share ID, whether or not it consumes capacity."""
    request, driver, pool, device = (
        intern(member(item, name, str, where) or "") for name in ("request", "driver", "pool", "device")
    )
    consumed = member(item, "consumedCapacity", dict, where) or {}
    amounts = {name: quantity(amount, f"{where}consumedCapacity") for name, amount in consumed.items()}
    admin_access = member(item, "adminAccess", bool, where) or False
    true = conditions.get((driver, pool, device), frozenset())
    names = ("bindingConditions", "bindingFailureConditions")
    waits_for, failed = (tuple(map(str, member(item, name, list, where) or ())) for name in names)
    return Result(
        request,
        (driver, pool, device),
        admin_access,
        amounts if item.get("shareID") else None,
        tuple(name for name in waits_for if name not in true),
        tuple(name for name in failed if name in true),
    )
