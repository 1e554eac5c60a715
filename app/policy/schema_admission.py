# SPDX-License-Identifier: Apache-2.0
"""The `admission` block of a GPUPolicy: what admission changes in a GPU pod, and what it refuses."""

from typing import Annotated, Literal

from pydantic import Field

from app.policy.fields import HistoryText, Merge, QuantityText, StrictMapping, described


class ExtendedResources(StrictMapping):
    """Repair or refusal of GPU amounts that the API server would refuse, in pods and in templates of workloads."""

    requests_only: Literal["CopyToLimits", "Deny", "Leave"] | None = described(
        Merge.Strictest, "GPUs in requests without limits", "CopyToLimits", "Deny"
    )
    mismatch: Literal["UseLimits", "Deny", "Leave"] | None = described(
        Merge.Strictest, "GPUs in requests other than in limits", "UseLimits", "Deny"
    )
    fractional: Literal["Deny", "Leave"] | None = described(
        Merge.Strictest, "fractions of a GPU, such as 0.5", "Deny", "Leave"
    )


MOST_KEYS = 64
"""Taint keys that a policy adds. A guess; each is compared with each taint of the cluster."""


class Tolerations(StrictMapping):
    """The taints that a GPU pod tolerates: only those whose key is listed, so that dedicated pools stay dedicated.

    Listed are the names of the requested resources, the GPU taints of clouds, and `keys`.
    """

    from_node_taints: bool | None = described(
        Merge.Single,
        "add tolerations for taints of nodes that fit, if the taint key is a requested resource, a cloud's GPU taint "
        "or in keys",
        True,
        False,
    )
    keys: tuple[str, ...] = described(
        Merge.Union,
        "more taint keys",
        ["example.com/gpu-pool"],
        ["example.com/lab"],
        default=(),
        strict=False,
        max_length=MOST_KEYS,
    )


class Affinity(StrictMapping):
    """Node affinity for the needs that node labels can express."""

    mode: Literal["Required", "Preferred", "Off"] | None = described(
        Merge.Single, "required, preferred or no affinity", "Required", "Preferred"
    )
    keys: tuple[Literal["GFD", "Karpenter", "GKE", "AKS"], ...] | None = described(
        Merge.Single,
        "whose node labels the affinity uses, one node selector term each; absent: GFD, and those of the cluster's "
        "nodes",
        ["GFD", "Karpenter"],
        ["GFD"],
        strict=False,
    )


class Defaults(StrictMapping):
    """Values for GPU containers that do not set them themselves."""

    cpu_per_gpu: QuantityText | None = described(
        Merge.Single, "requests.cpu for each requested GPU", "4", "8", alias="cpuPerGPU"
    )
    memory_per_gpu: QuantityText | None = described(
        Merge.Single, "requests.memory for each requested GPU", "32Gi", "64Gi", alias="memoryPerGPU"
    )
    shared_memory: QuantityText | None = described(
        Merge.Single, "size of /dev/shm in pods of several GPUs", "16Gi", "64Gi"
    )
    driver_capabilities: Annotated[str, Field(pattern=r"^[a-z0-9]+(,[a-z0-9]+)*$")] | None = described(
        Merge.Single, "NVIDIA_DRIVER_CAPABILITIES", "compute,utility", "all"
    )


IDLE_BELOW = 0.01
"""The activity, as a share of one, up to which a GPU counts as idle: measurements of an idle GPU are exactly zero, and
one percent allows for a process that only asks for its state. A guess."""


class Idle(StrictMapping):
    """Refusal of new GPU pods of a namespace that holds idle GPUs, by the last poll. Unknown use is never idle."""

    after: HistoryText | None = described(Merge.Single, "how long a GPU must be idle to count; absent: 4h", "4h", "24h")
    below: Annotated[float, Field(ge=0, le=100)] | None = described(
        Merge.Single, "percent of activity that an idle GPU never exceeds; absent: 1", 1.0, 5.0
    )
    gpus: Annotated[int, Field(ge=1)] | None = described(
        Merge.Single, "idle GPUs or slices at which new pods are refused; absent: 1", 1, 4
    )


class PerGPU(StrictMapping):
    """Bounds of what a pod requests for each GPU, MIG slice or share of it. A pod without a request is below any."""

    min_cpu: QuantityText | None = described(Merge.Highest, "CPU, at least", "2", "4", alias="minCPU")
    max_cpu: QuantityText | None = described(Merge.Lowest, "CPU, at most", "16", "12", alias="maxCPU")
    min_memory: QuantityText | None = described(Merge.Highest, "memory, at least", "8Gi", "16Gi")
    max_memory: QuantityText | None = described(Merge.Lowest, "memory, at most", "128Gi", "64Gi")


AUTO = "Auto"
"""The value of runtimeClassName that leaves the choice to us; no RuntimeClass can have a name with a capital letter."""


class Admission(StrictMapping):
    """What admission changes in a GPU pod, and what it refuses.

    For pods of other schedulers (Volcano, KAI), unless a policy names their scheduler, only extendedResources and the
    guards (visibleDevices, privileged, bypass, sharedReplicas) apply. The shipped guards have the action Warn.
    """

    runtime_class_name: str | None = described(
        Merge.Single,
        "set if the pod names none; Auto: the GPU vendor's class, where a node needs one and all that fit have it",
        "Auto",
        "nvidia-cdi",
    )
    scheduler_name: str | None = described(
        Merge.Single, "set if the pod names none", "gpu-usher-scheduler", "default-scheduler"
    )
    priority_class_name: str | None = described(
        Merge.Single, "set if the pod names none; it must exist", "gpu-batch", "gpu-urgent"
    )
    override: bool = described(
        Merge.Own, "the three names above, and defaults, replace values of the pod", True, default=False
    )
    tolerations: Tolerations | None = Field(default=None, description="GPU taints that the pod tolerates")
    extended_resources: ExtendedResources | None = Field(
        default=None, description="GPU amounts that the API server would refuse"
    )
    affinity: Affinity | None = Field(default=None, description="node affinity from the needs of the pod")
    max_gpus_per_pod: Annotated[int, Field(ge=0)] | None = described(
        Merge.Lowest,
        "a pod that requests more is refused; 0: namespaces that match may have none",
        8,
        4,
        alias="maxGPUsPerPod",
    )
    defaults: Defaults | None = Field(default=None, description="values for GPU containers that do not set them")
    right_sizing: bool | None = described(
        Merge.Single,
        "a pod of one GPU with the annotation gpu-memory gets the smallest sufficient MIG slice, or else prefers the "
        "smallest sufficient product",
        True,
        False,
    )
    mig_fallback: Literal["Enforce", "Warn", "Off"] | None = described(
        Merge.Single,
        "a MIG request with the annotation mig-profile '>=P' becomes the smallest sufficient profile that a node "
        "offers; absent: only if no node has the requested one",
        "Enforce",
        "Warn",
    )
    convert_to_claims: bool | None = described(
        Merge.Single,
        "a pod that requests nvidia.com/gpu or nvidia.com/mig-* claims the devices through DRA, if its namespace has "
        "the ResourceClaimTemplate; else it gets a warning",
        True,
        False,
    )
    queued_templates: Literal["Write", "Leave"] | None = described(
        Merge.Single,
        "required affinity and tolerations also in templates of new jobs that Kueue queues; absent: a warning",
        "Write",
        "Leave",
    )
    memory_requests: Literal["Deny", "UseLimits", "Leave"] | None = described(
        Merge.Strictest, "memory requests other than limits, also of single ones", "UseLimits", "Deny"
    )
    per_gpu: PerGPU | None = Field(
        default=None, alias="perGPU", description="bounds of the CPU and memory that a pod requests per GPU"
    )
    idle: Idle | None = Field(
        default=None, description="idle GPUs that the namespace holds, while the pod asks for more"
    )
    visible_devices: Literal["Deny", "Void", "Strip", "Leave"] | None = described(
        Merge.Strictest,
        "NVIDIA_VISIBLE_DEVICES and similar variables; Strip removes them, Void also sets void in containers without "
        "GPUs",
        "Deny",
        "Strip",
    )
    privileged: Literal["Deny", "Leave"] | None = described(
        Merge.Strictest, "privileged containers of GPU pods, which can use all GPUs of the node", "Deny", "Leave"
    )
    bypass: Literal["Deny", "Leave"] | None = described(
        Merge.Strictest, "a pod with nodeName, or another schedulerName than the policy's", "Deny", "Leave"
    )
    shared_replicas: Literal["Deny", "Leave"] | None = described(
        Merge.Strictest,
        "a request for several replicas of shared GPUs, since all may be of one GPU; filter refuses it too; Leave: for "
        "device plugins with failRequestsGreaterThanOne: false",
        "Deny",
        "Leave",
    )
