# SPDX-License-Identifier: Apache-2.0
"""Partial types of Kubernetes objects: only their fields are decoded from JSON, and the decoder skips all others.

Partial decoding takes a tenth of the CPU and memory of whole objects (docs/reference/measurements.md#decoding). The
decoder returns plain dicts, so that the same readers also take objects from a snapshot file, which are decoded whole.
"""

from typing import Any, NotRequired, Required, TypedDict


class _Metadata(TypedDict, total=False):
    """Metadata that identifies an object."""

    name: str
    namespace: str
    uid: str
    resourceVersion: str


PodLabels = TypedDict(
    "PodLabels",
    {
        "jobset.sigs.k8s.io/jobset-name": str,
        "leaderworkerset.sigs.k8s.io/name": str,
        "training.kubeflow.org/job-name": str,
        "ray.io/cluster": str,
        "batch.kubernetes.io/job-name": str,
        "scheduling.x-k8s.io/pod-group": str,
        "kueue.x-k8s.io/pod-group-name": str,
        "leaderworkerset.sigs.k8s.io/group-key": str,
        "volcano.sh/job-name": str,
    },
    total=False,
)
"""Labels by which controllers mark the pods of one workload (GROUP_LABELS in pods.py) or of one gang (gangs.py)."""
PodAnnotations = TypedDict(
    "PodAnnotations",
    {
        "gpu-usher.io/gpu-memory": str,
        "gpu-usher.io/products": str,
        "gpu-usher.io/workload-class": str,
        "scheduling.k8s.io/group-name": str,
        "pod-group-name": str,
    },
    total=False,
)
"""The annotations of an existing pod that are read: the memory that it declares to use of a shared GPU, what limits
the products on which it can run, and its gang (gangs.py)."""


class PartialOwner(TypedDict, total=False):
    """An owner of an object, which may be its controller."""

    apiVersion: str
    kind: str
    name: str
    uid: str
    controller: bool | None


class PodMetadata(_Metadata, total=False):
    """Metadata of a pod: the labels, annotations and owners that are read, and when it was created."""

    creationTimestamp: str | None
    ownerReferences: list[PartialOwner] | None
    labels: PodLabels | None
    annotations: PodAnnotations | None


class PartialResources(TypedDict, total=False):
    """Quantities by resource; they may be any JSON, so that one malformed quantity does not fail the whole pod."""

    requests: dict[str, Any] | None
    limits: dict[str, Any] | None


class PartialContainer(TypedDict, total=False):
    """The fields of a container that are read."""

    restartPolicy: str
    resources: PartialResources


class PartialClaimReference(TypedDict, total=False):
    """One entry of a pod's resourceClaims: the claim or the template that it names."""

    name: str
    resourceClaimName: str
    resourceClaimTemplateName: str


class PartialSchedulingGroup(TypedDict, total=False):
    """The PodGroup to which a pod belongs (k8s.io/api core/v1 PodSchedulingGroup)."""

    podGroupName: str | None


class PodSpec(TypedDict, total=False):
    """The fields of a Pod's spec that are read."""

    nodeName: str
    schedulingGroup: PartialSchedulingGroup | None
    priority: int | None
    overhead: dict[str, Any] | None
    resources: PartialResources | None
    containers: list[PartialContainer] | None
    initContainers: list[PartialContainer] | None
    resourceClaims: list[PartialClaimReference] | None


class PodStatus(TypedDict, total=False):
    """The fields of a Pod's status that are read."""

    phase: str
    reason: str
    message: str
    nominatedNodeName: str


class PartialPod(TypedDict):
    """A Pod with the fields that say which GPUs it holds or waits for."""

    metadata: PodMetadata
    spec: NotRequired[PodSpec]
    status: NotRequired[PodStatus]


class PartialPort(TypedDict, total=False):
    """A container port with the fields that say whether it occupies a port of the node."""

    hostPort: int
    hostIP: str
    protocol: str


class ExistingPodContainer(PartialContainer, total=False):
    """A container of an existing pod, with its ports."""

    ports: list[PartialPort] | None


class PartialAffinity(TypedDict, total=False):
    """The rule of a pod's affinity that constrains other pods: its anti-affinity."""

    podAntiAffinity: dict[str, Any] | None


class ExistingPodMetadata(_Metadata, total=False):
    """Metadata of an existing pod, with all labels, since the selectors of other pods may match any of them."""

    labels: dict[str, str] | None
    annotations: PodAnnotations | None
    deletionTimestamp: str | None
    ownerReferences: list[PartialOwner] | None


class ExistingPodStatus(PodStatus, total=False):
    """The status of an existing pod, with what says that it is restarted again and again."""

    containerStatuses: list[dict[str, Any]] | None


class ExistingPodSpec(TypedDict, total=False):
    """The spec of an existing pod with the fields that constrain other pods."""

    nodeName: str
    priority: int | None
    overhead: dict[str, Any] | None
    resources: PartialResources | None
    affinity: PartialAffinity | None
    containers: list[ExistingPodContainer] | None
    initContainers: list[ExistingPodContainer] | None


class PartialExistingPod(TypedDict):
    """An existing Pod with the fields that say which GPUs it holds and how it constrains where other pods may run."""

    metadata: ExistingPodMetadata
    spec: NotRequired[ExistingPodSpec]
    status: NotRequired[ExistingPodStatus]


class PartialTopology(TypedDict, total=False):
    """A NodeResourceTopology, whose members numa_zones.py declares."""

    metadata: Required[_Metadata]
    topologyPolicies: Any
    attributes: Any
    zones: Any
