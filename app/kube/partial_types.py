# SPDX-License-Identifier: Apache-2.0
"""Shapes: the few fields of Kubernetes objects that are decoded from JSON; all others are skipped unread.

Typed partial decoding takes a tenth of the CPU and memory of whole objects (docs/reference/measurements.md#decoding).
What comes out are plain dicts, so that an object from a snapshot, decoded whole, reads the same.
"""

from typing import Any, NotRequired, TypedDict


class Metadata(TypedDict, total=False):
    """What identifies an object; labels where they matter."""

    name: str
    namespace: str
    uid: str
    resourceVersion: str


class LabelledMetadata(Metadata, total=False):
    """Metadata with labels."""

    labels: dict[str, str] | None


PodLabels = TypedDict(
    "PodLabels",
    {
        "jobset.sigs.k8s.io/jobset-name": str,
        "leaderworkerset.sigs.k8s.io/name": str,
        "training.kubeflow.org/job-name": str,
        "ray.io/cluster": str,
        "batch.kubernetes.io/job-name": str,
    },
    total=False,
)
"""Labels by which controllers mark the pods that work together, the widest first (the projects' own API references)."""
PodAnnotations = TypedDict("PodAnnotations", {"gpu-usher.io/gpu-memory": str}, total=False)
"""The need that counts of a bound pod: what it declares to use of shared GPUs."""


class PodMetadata(Metadata, total=False):
    """Metadata with the few labels and annotations of a bound pod that count; since when one waits."""

    creationTimestamp: str | None
    labels: PodLabels | None
    annotations: PodAnnotations | None


class ResourcesShape(TypedDict, total=False):
    """Amounts by resource; any JSON, because one odd quantity must not hide the others."""

    requests: dict[str, Any] | None
    limits: dict[str, Any] | None


class ContainerShape(TypedDict, total=False):
    """The part of a container that counts."""

    restartPolicy: str
    resources: ResourcesShape


class PodSpec(TypedDict, total=False):
    """The part of a Pod's spec that counts."""

    nodeName: str
    priority: int | None
    overhead: dict[str, Any] | None
    resources: ResourcesShape | None
    containers: list[ContainerShape] | None
    initContainers: list[ContainerShape] | None


class PodStatus(TypedDict, total=False):
    """The part of a Pod's status that counts."""

    phase: str
    nominatedNodeName: str


class PodShape(TypedDict):
    """A Pod, as far as it can hold GPUs."""

    metadata: PodMetadata
    spec: NotRequired[PodSpec]
    status: NotRequired[PodStatus]


class PortShape(TypedDict, total=False):
    """A port of a container, as far as it is one of the node."""

    hostPort: int
    hostIP: str
    protocol: str


class NeighbourContainer(ContainerShape, total=False):
    """A container with its ports."""

    ports: list[PortShape] | None


class AffinityShape(TypedDict, total=False):
    """Whom a pod keeps away."""

    podAntiAffinity: dict[str, Any] | None


class NeighbourMetadata(Metadata, total=False):
    """Metadata with everything that selects a pod."""

    labels: dict[str, str] | None
    annotations: PodAnnotations | None
    deletionTimestamp: str | None


class NeighbourSpec(TypedDict, total=False):
    """A PodSpec with what a pod means to others."""

    nodeName: str
    priority: int | None
    overhead: dict[str, Any] | None
    resources: ResourcesShape | None
    affinity: AffinityShape | None
    containers: list[NeighbourContainer] | None
    initContainers: list[NeighbourContainer] | None


class NeighbourShape(TypedDict):
    """A Pod, as far as it can hold GPUs or stand in another pod's way."""

    metadata: NeighbourMetadata
    spec: NotRequired[NeighbourSpec]
    status: NotRequired[PodStatus]


class NamespaceShape(TypedDict):
    """A Namespace."""

    metadata: LabelledMetadata


class NamedShape(TypedDict):
    """An object of which only the name matters."""

    metadata: Metadata


class SchedulingShape(TypedDict, total=False):
    """What a RuntimeClass adds to its pods."""

    nodeSelector: dict[str, str] | None


class RuntimeClassShape(TypedDict):
    """A RuntimeClass."""

    metadata: Metadata
    scheduling: NotRequired[SchedulingShape | None]


class ConfigMapShape(TypedDict):
    """A ConfigMap of texts."""

    metadata: Metadata
    data: NotRequired[dict[str, str] | None]


class SpecShape(TypedDict):
    """A small object of which the whole spec is read."""

    metadata: Metadata
    spec: NotRequired[dict[str, Any]]


class AllocatedShape(TypedDict, total=False):
    """One device that a claim was given."""

    driver: str
    pool: str
    device: str
    adminAccess: bool | None


class AllocatedDevices(TypedDict, total=False):
    """The devices that a claim was given."""

    results: list[AllocatedShape] | None


class Allocation(TypedDict, total=False):
    """The part of an allocation that is read."""

    devices: AllocatedDevices | None


class ClaimStatus(TypedDict, total=False):
    """The part of a ResourceClaim's status that is read."""

    allocation: Allocation | None


class ClaimShape(SpecShape):
    """A ResourceClaim: what it asks, and what it was given."""

    status: NotRequired[ClaimStatus | None]


class Taint(TypedDict, total=False):
    """One taint."""

    key: str
    value: str | None
    effect: str | None


NodeAnnotations = TypedDict("NodeAnnotations", {"hami.io/node-nvidia-register": str}, total=False)
"""Annotations by which a plugin says that it gives GPUs out in shares (clouds.yaml, sharing_annotations)."""


class NodeMetadata(LabelledMetadata, total=False):
    """Metadata with labels, and the few annotations of a Node that count."""

    annotations: NodeAnnotations | None


class NodeSpec(TypedDict, total=False):
    """The part of a Node's spec that is read."""

    taints: list[Taint] | None
    unschedulable: bool | None


class NodeStatus(TypedDict, total=False):
    """The part of a Node's status that is read."""

    allocatable: dict[str, str | int] | None
    capacity: dict[str, str | int] | None


class NodeShape(TypedDict):
    """A Node, decoded only where it decides: 40 times cheaper than whole (docs/reference/measurements.md#decoding)."""

    metadata: NodeMetadata
    spec: NotRequired[NodeSpec]
    status: NotRequired[NodeStatus]
