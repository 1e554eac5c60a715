# SPDX-License-Identifier: Apache-2.0
"""Partial types of Kubernetes objects: only their fields are decoded from JSON, and the decoder skips all others.

Partial decoding takes a tenth of the CPU and memory of whole objects (docs/reference/measurements.md#decoding). The
decoder returns plain dicts, so that the same readers also take objects from a snapshot file, which are decoded whole.
"""

from typing import Any, NotRequired, TypedDict


class _Metadata(TypedDict, total=False):
    """Metadata that identifies an object."""

    name: str
    namespace: str
    uid: str
    resourceVersion: str


class PartialObject(TypedDict):
    """An object of which the whole spec is decoded, because it is small."""

    metadata: _Metadata
    spec: NotRequired[dict[str, Any]]


class PartialAllocatedDevice(TypedDict, total=False):
    """One device that is allocated to a claim."""

    driver: str
    pool: str
    device: str
    request: str
    adminAccess: bool | None
    shareID: str | None
    consumedCapacity: dict[str, Any] | None
    bindingConditions: list[str] | None
    bindingFailureConditions: list[str] | None


class PartialAllocatedDevices(TypedDict, total=False):
    """The devices that are allocated to a claim."""

    results: list[PartialAllocatedDevice] | None


class PartialAllocation(TypedDict, total=False):
    """The fields of an allocation that are read."""

    devices: PartialAllocatedDevices | None
    nodeSelector: dict[str, Any] | None


class ClaimConsumer(TypedDict, total=False):
    """A pod or a PodGroup that a claim is reserved for."""

    resource: str
    name: str
    uid: str


class ClaimStatus(TypedDict, total=False):
    """The fields of a ResourceClaim's status that are read."""

    allocation: PartialAllocation | None
    reservedFor: list[ClaimConsumer] | None
    devices: list[dict[str, Any]] | None


ClaimAnnotations = TypedDict("ClaimAnnotations", {"resource.kubernetes.io/extended-resource-claim": str}, total=False)
"""The annotation of a claim that kube-scheduler made for extended resources."""


class ClaimMetadata(_Metadata, total=False):
    """Metadata of a ResourceClaim."""

    deletionTimestamp: str | None
    annotations: ClaimAnnotations | None


class PartialResourceClaim(TypedDict):
    """A ResourceClaim with its requests, its allocation, and the pods that use it."""

    metadata: ClaimMetadata
    spec: NotRequired[dict[str, Any]]
    status: NotRequired[ClaimStatus | None]
