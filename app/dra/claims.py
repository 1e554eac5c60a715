# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims as kube-scheduler's allocator reads them: requests, constraints, and what is allocated.

The API versions resource.k8s.io/v1 and v1beta2 write a request under `exactly`, v1beta1 writes it directly, and all of
them write alternatives under `firstAvailable` (k8s.io/api resource/v1 types.go DeviceRequest; KEP-4816).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from app.dra.devices import DeviceID, NodeSelection

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

    def with_request(self, old: DeviceRequest, new: DeviceRequest) -> "ClaimSpec":
        """Return the claim with one request in place of another."""
        swapped = (tuple(new if choice is old else choice for choice in choices) for choices in self.requests)
        return replace(self, requests=tuple(swapped))


@dataclass(frozen=True, slots=True)
class Result:
    """One device that is allocated to a claim.

    `consumed` is the capacity that this share of the device consumes; None where the claim has the device alone. With
    `admin_access` others can still have it. `waits_for` are its binding conditions that are not true, until which
    kube-scheduler does not bind the pod, and `failed` its binding failure conditions that are (KEP-5007).
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

    `allocation` is None while it has no devices. `reserved_for` are the UIDs and names of the pods that use it. A claim
    that is `deleted` goes when they end, and no other pod can use it.
    """

    key: str
    spec: ClaimSpec
    allocation: Allocation | None = None
    reserved_for: tuple[tuple[str, str], ...] = ()
    deleted: bool = False
