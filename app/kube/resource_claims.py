# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims as kube-scheduler's allocator reads them: requests, constraints, and what is allocated.

The API versions resource.k8s.io/v1 and v1beta2 write a request under `exactly`, v1beta1 writes it directly, and all of
them write alternatives under `firstAvailable`. All give equal requests. Source of types and bounds, such as
DeviceRequestsMaxSize, is k8s.io/api resource/v1 types.go; KEP-4816.
"""

from collections.abc import Mapping
from fractions import Fraction
from sys import intern
from typing import Annotated, Any

from msgspec import Meta, field
from msgspec.structs import force_setattr, replace

from app.kube.device_models import NOTHING, Amounts
from app.kube.devices import DeviceID
from app.kube.node_selectors import NodeSelector
from app.kube.records import KubeObject, Metadata, Record, nested

ALL = "All"
EXACT_COUNT = "ExactCount"
MOST_RESULTS = 32
"""Devices that can be allocated to one claim (AllocationResultsMaxSize)."""
POD = "pod"
POD_GROUP = "PodGroup"
CONSUMERS = {"pods": POD, "podgroups": POD_GROUP}
"""What uses a claim, by the resource of a consumer; a claim of a PodGroup serves all its members
(kubernetes gate DRAWorkloadResourceClaims; resourceclaim.go BindTo)."""
EXTENDED = "resource.kubernetes.io/extended-resource-claim"
"""The annotation of a claim that kube-scheduler made for extended resources (ExtendedResourceClaimAnnotation)."""


class _CEL(Record, frozen=True):
    expression: Annotated[str, Meta(max_length=10 << 10)] = ""


class _Selector(Record, frozen=True):
    cel: _CEL = _CEL()


class Expressions(tuple[str, ...]):
    """CEL expressions that all hold for a device; in JSON a list of `{cel: {expression: …}}`."""

    __slots__ = ()

    @classmethod
    def from_json(cls, items: object) -> "Expressions":
        """Read selectors. Raises ValueError."""
        return cls(intern(one.cel.expression) for one in nested(_SELECTORS, items) or ())


_SELECTORS: Any = Annotated[tuple[_Selector, ...], Meta(max_length=32)] | None


class DeviceToleration(Record, frozen=True):
    """A toleration of device taints; empty fields match everything, and so does the operator Exists any value."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class RequestedCapacity(Record, frozen=True):
    """What a request wants of each capacity of a device, by the name as written."""

    requests: Amounts = NOTHING


class DeviceRequest(Record, frozen=True):
    """A request for devices of one DeviceClass: a whole request, or one alternative of `firstAvailable`.

    `name` is that of the request, or request/alternative. `selectors` must all hold. `mode` is ALL or EXACT_COUNT, of
    which only the latter has a `count`.
    """

    name: str = ""
    device_class: str = field(name="deviceClassName", default="")
    selectors: Expressions = Expressions()
    mode: str = field(name="allocationMode", default=EXACT_COUNT)
    count: int = 1
    tolerations: Annotated[tuple[DeviceToleration, ...], Meta(max_length=16)] = ()
    requested: RequestedCapacity | None = field(name="capacity", default=None)
    admin_access: bool = False

    @property
    def capacity(self) -> Mapping[str, Fraction] | None:
        """What it requests of each device; None where it says nothing about capacity."""
        return None if self.requested is None else self.requested.requests

    def with_capacity(self, name: str, amount: Fraction) -> "DeviceRequest":
        """Request another amount of a capacity."""
        amounts = {**(self.capacity or {}), name: amount}
        return replace(self, requested=RequestedCapacity(Amounts(tuple((*one, None) for one in amounts.items()))))

    @property
    def parent(self) -> str:
        """The name of the request that an alternative belongs to, and of any other request its own."""
        return self.name.partition("/")[0]


class _RequestObject(DeviceRequest, frozen=True):
    """A request as it is written: itself, or what it asks exactly, or alternatives in their order."""

    exactly: DeviceRequest | None = None
    first_available: Annotated[tuple[DeviceRequest, ...], Meta(max_length=8)] = ()

    def choices(self) -> tuple[DeviceRequest, ...]:
        if self.first_available:
            return tuple(replace(one, name=f"{self.name}/{one.name}") for one in self.first_available)
        written = self.exactly or self
        names = DeviceRequest.__struct_fields__[1:]
        return (DeviceRequest(self.name, *(getattr(written, name) for name in names)),)


class Constraint(Record, frozen=True):
    """A constraint on the devices of some requests, or of all if it names none.

    The value of `attribute` is the same for all these devices, or with `distinct` another for each request.
    """

    match_attribute: str = ""
    requests: tuple[str, ...] = ()
    distinct_attribute: str | None = None

    @property
    def attribute(self) -> str:
        """The attribute that is compared."""
        return self.distinct_attribute or self.match_attribute

    @property
    def distinct(self) -> bool:
        """Whether the values must differ."""
        return self.distinct_attribute is not None

    def covers(self, request: DeviceRequest) -> bool:
        """Tell whether devices of the request are constrained."""
        return not self.requests or request.name in self.requests or request.parent in self.requests


class _ClaimDevices(Record, frozen=True):
    requests: Annotated[tuple[_RequestObject, ...], Meta(max_length=32)] | None = None
    constraints: Annotated[tuple[Constraint, ...], Meta(max_length=32)] | None = None


class ClaimSpec(Record, frozen=True):
    """What a claim asks: alternatives for each request, most often one, and constraints over all of them.

    In JSON both are inside `devices`, which is empty once the spec is read.
    """

    requests: tuple[tuple[DeviceRequest, ...], ...] = field(name="/requests", default=())
    constraints: tuple[Constraint, ...] = field(name="/constraints", default=())
    devices: _ClaimDevices | None = None

    def __post_init__(self) -> None:
        if (devices := self.devices) is not None:
            force_setattr(self, "requests", tuple(one.choices() for one in devices.requests or ()))
            force_setattr(self, "constraints", devices.constraints or ())
            force_setattr(self, "devices", None)


class Result(Record, frozen=True):
    """One device that is allocated to a claim.

    With `admin_access` others can still have it. It is shared if it has a share ID, whether or not it consumes
    capacity.
    """

    request: str = ""
    driver: str = ""
    pool: str = ""
    name: str = field(name="device", default="")
    admin_access: bool | None = None
    share: str | None = field(name="shareID", default=None)
    consumed_capacity: Amounts = NOTHING
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()

    @property
    def device(self) -> DeviceID:
        """The device in the cluster."""
        return self.driver, self.pool, self.name

    @property
    def consumed(self) -> Mapping[str, Fraction] | None:
        """The capacity that this share of the device consumes; None where the claim has the device alone."""
        return self.consumed_capacity if self.share else None


def result_of(
    request: str, device: DeviceID, consumed: Mapping[str, Fraction] | None = None, admin_access: bool = False
) -> Result:
    """Make an allocation of a device that is only imagined; `consumed` is as in a result."""
    amounts = Amounts(tuple((*one, None) for one in (consumed or {}).items()))
    return Result(request, *device, admin_access, None if consumed is None else "imagined", amounts)


class _AllocatedDevices(Record, frozen=True):
    results: tuple[Result, ...] | None = None


class Allocation(Record, frozen=True):
    """The devices allocated to a claim, and the nodes from which all of them can be reached; None for all nodes."""

    devices: _AllocatedDevices = _AllocatedDevices()
    nodes: NodeSelector | None = field(name="nodeSelector", default=None)

    @classmethod
    def of(cls, results: tuple[Result, ...], nodes: NodeSelector | None = None) -> "Allocation":
        """Make an allocation that is only imagined."""
        return cls(_AllocatedDevices(results), nodes)

    @property
    def results(self) -> tuple[Result, ...]:
        """The devices."""
        return self.devices.results or ()


class _Consumer(Record, frozen=True):
    resource: str = "pods"
    name: str = ""


class _Condition(Record, frozen=True):
    type: str = ""
    status: str = ""


class _AllocatedStatus(Record, frozen=True):
    """What a driver says of a device that is allocated."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    conditions: tuple[_Condition, ...] | None = None


class ClaimStatus(Record, frozen=True):
    """The allocation of a claim, the consumers that it is reserved for, and the drivers' conditions of its devices."""

    allocation: Allocation | None = None
    reserved_for: Annotated[tuple[_Consumer, ...], Meta(max_length=256)] | None = None
    devices: tuple[_AllocatedStatus, ...] | None = None


class _Annotations(Record, frozen=True):
    extended: str | None = field(name=EXTENDED, default=None)


class _ClaimMetadata(Metadata, frozen=True):
    namespace: str = "default"
    deletion_timestamp: str | None = None
    annotations: _Annotations | None = None


class ResourceClaim(KubeObject, frozen=True):
    """A ResourceClaim."""

    metadata: _ClaimMetadata = _ClaimMetadata()
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus | None = None

    @property
    def key(self) -> str:
        """The namespace/name."""
        return f"{self.metadata.namespace}/{self.metadata.name}" if self.metadata.namespace else self.metadata.name

    @property
    def allocation(self) -> Allocation | None:
        """What is allocated; None while the claim has no devices."""
        return self.status.allocation if self.status else None

    @property
    def reserved_for(self) -> tuple[tuple[str, str], ...]:
        """The kinds and names of the pods and PodGroups that use the claim."""
        consumers = (self.status.reserved_for if self.status else None) or ()
        return tuple((CONSUMERS.get(one.resource, one.resource), one.name) for one in consumers)

    @property
    def deleted(self) -> bool:
        """Whether the claim goes when its pods end, so that no other pod can use it."""
        return self.metadata.deletion_timestamp is not None

    @property
    def extended(self) -> bool:
        """Whether kube-scheduler made the claim for extended resources of a pod."""
        return self.metadata.annotations is not None and self.metadata.annotations.extended is not None

    def allocated(self, key: str, allocation: Allocation) -> "ResourceClaim":
        """Return the claim under another namespace/name, with devices."""
        return replace(claim_of(key, self.spec), status=ClaimStatus(allocation))

    def conditions(self, result: Result) -> tuple[list[str], list[str]]:
        """Name the binding conditions of a device that are not true yet, and its failure conditions that are.

        kube-scheduler does not bind the pod until the first are.
        """
        reported = (self.status and self.status.devices) or ()
        of_device = [one for one in reported if (one.driver, one.pool, one.device) == result.device]
        true = {one.type for device in of_device for one in device.conditions or () if one.status == "True"}
        waits_for = [name for name in result.binding_conditions if name not in true]
        return waits_for, [name for name in result.binding_failure_conditions if name in true]


class _TemplateSpec(Record, frozen=True):
    spec: ClaimSpec = ClaimSpec()


class ResourceClaimTemplate(KubeObject, frozen=True):
    """A ResourceClaimTemplate, which has the spec of the claim inside its own spec."""

    metadata: _ClaimMetadata = _ClaimMetadata()
    spec: _TemplateSpec = _TemplateSpec()

    @property
    def claim(self) -> ResourceClaim:
        """A claim as the template makes them, under the template's name."""
        return ResourceClaim(_ClaimMetadata(self.metadata.name, namespace=self.metadata.namespace), self.spec.spec)


def claim_of(key: str, spec: ClaimSpec) -> ResourceClaim:
    """Make a claim of its namespace/name and what it asks."""
    namespace, _, name = key.rpartition("/")
    return ResourceClaim(_ClaimMetadata(name, namespace=namespace), spec)
