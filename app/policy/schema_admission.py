# SPDX-License-Identifier: Apache-2.0
"""The `admission` block of a GPUPolicy: what is done to, and refused of, a GPU pod at the door."""

from typing import Annotated, Literal

from pydantic import Field

from app.policy.fields import Merge, Part, QuantityText, described


class ExtendedResources(Part):
    """Amounts that the API server would refuse without a useful word: repaired, or refused in words.

    Also in the templates of Deployments, StatefulSets, DaemonSets, ReplicaSets, Jobs and CronJobs.
    """

    requests_only: Literal["CopyToLimits", "Deny", "Leave"] | None = described(
        Merge.Strictest, "GPUs in requests without limits", "CopyToLimits", "Deny", default=None
    )
    mismatch: Literal["UseLimits", "Deny", "Leave"] | None = described(
        Merge.Strictest, "GPUs in requests other than in limits", "UseLimits", "Deny", default=None
    )
    fractional: Literal["Deny", "Leave"] | None = described(
        Merge.Strictest, "0.5 or 500m of a GPU; refused with the alternatives", "Deny", "Leave", default=None
    )


MOST_KEYS = 64
"""Taint keys that a policy adds; guess. Each is compared with for each taint of the fleet."""


class Tolerations(Part):
    """Which taints a GPU pod tolerates; never a key that is not on the list, so that dedicated pools stay dedicated.

    On the list: names of the resource that is asked, the GPU taints of the clouds, and `keys`.
    """

    from_node_taints: bool | None = described(
        Merge.Single, "the taints on the list that GPU nodes which could serve the pod carry", True, False, default=None
    )
    keys: tuple[str, ...] = described(
        Merge.Union,
        "more keys for the list",
        ["example.com/gpu-pool"],
        ["example.com/lab"],
        default=(),
        strict=False,
        max_length=MOST_KEYS,
    )


class Affinity(Part):
    """How needs that labels can say become node affinity; what they cannot say stays with the scheduler extender."""

    mode: Literal["Required", "Preferred", "Off"] | None = described(
        Merge.Single, "required, only preferred, or no affinity", "Required", "Preferred", default=None
    )
    keys: tuple[Literal["GFD", "Karpenter", "GKE", "AKS"], ...] | None = described(
        Merge.Single,
        "whose labels to use, one OR-term each; absent: GFD, and those that the fleet's nodes carry",
        ["GFD", "Karpenter"],
        ["GFD"],
        default=None,
        strict=False,
    )


class Defaults(Part):
    """What a GPU container gets where it says nothing itself."""

    cpu_per_gpu: QuantityText | None = described(
        Merge.Single, "requests.cpu for each GPU it asks", "4", "8", default=None, alias="cpuPerGPU"
    )
    memory_per_gpu: QuantityText | None = described(
        Merge.Single, "requests.memory for each GPU it asks", "32Gi", "64Gi", default=None, alias="memoryPerGPU"
    )
    shared_memory: QuantityText | None = described(
        Merge.Single,
        "size of /dev/shm in pods of two GPUs or more; it counts as the container's memory",
        "16Gi",
        "64Gi",
        default=None,
    )
    driver_capabilities: Annotated[str, Field(pattern=r"^[a-z0-9]+(,[a-z0-9]+)*$")] | None = described(
        Merge.Single, "NVIDIA_DRIVER_CAPABILITIES", "compute,utility", "all", default=None
    )


class Admission(Part):
    """What is done to a GPU pod at the door.

    Pods of other schedulers (Volcano, KAI and so on) get nothing but repaired amounts and the guards (visibleDevices,
    privileged, bypass, sharedReplicas), unless a policy names their scheduler. The guards ship as Warn.
    """

    runtime_class_name: str | None = described(
        Merge.Single, "set if the pod names none and the class exists", "nvidia", "nvidia-cdi", default=None
    )
    scheduler_name: str | None = described(
        Merge.Single, "set if the pod names none", "gpu-usher-scheduler", "default-scheduler", default=None
    )
    priority_class_name: str | None = described(
        Merge.Single, "set if the pod names none; it must exist", "gpu-batch", "gpu-urgent", default=None
    )
    override: bool = described(
        Merge.Own,
        "the three names above also replace what the pod names, and defaults what it says",
        True,
        default=False,
    )
    tolerations: Tolerations | None = Field(default=None, description="GPU taints that the pod tolerates")
    extended_resources: ExtendedResources | None = Field(
        default=None, description="GPU amounts that the API server would refuse"
    )
    affinity: Affinity | None = Field(default=None, description="needs as node affinity")
    max_gpus_per_pod: Annotated[int, Field(ge=0)] | None = described(
        Merge.Lowest, "a pod that asks for more is refused", 8, 4, default=None, alias="maxGPUsPerPod"
    )
    defaults: Defaults | None = Field(default=None, description="for GPU containers that say nothing")
    right_sizing: bool | None = described(
        Merge.Single,
        "a pod of one GPU that states gpu-memory gets the smallest slice that the fleet has for it, or else prefers "
        "the smallest product; with actions: {rightSizing: Warn} it is told",
        True,
        False,
        default=None,
    )
    mig_fallback: Literal["Enforce", "Warn", "Off"] | None = described(
        Merge.Single,
        "annotation mig-profile '>=P' beside a slice resource: the smallest sufficient profile that a node advertises "
        "instead; absent: only where no node has the one asked; Warn tells; Off leaves it",
        "Enforce",
        "Warn",
        default=None,
    )
    visible_devices: Literal["Deny", "Void", "Strip", "Leave"] | None = described(
        Merge.Strictest,
        "GPUs taken by NVIDIA_VISIBLE_DEVICES and its like instead of being asked for; Strip takes the variable away, "
        "Void besides sets it to void in containers that ask for no GPU",
        "Deny",
        "Strip",
        default=None,
    )
    privileged: Literal["Deny", "Leave"] | None = described(
        Merge.Strictest,
        "privileged containers of GPU pods: they see every GPU of the node",
        "Deny",
        "Leave",
        default=None,
    )
    bypass: Literal["Deny", "Leave"] | None = described(
        Merge.Strictest,
        "nodeName set by the pod, or another schedulerName than the policy's",
        "Deny",
        "Leave",
        default=None,
    )
    shared_replicas: Literal["Deny", "Leave"] | None = described(
        Merge.Strictest,
        "several replicas of shared GPUs asked as if they were several GPUs: they may all be of one",
        "Deny",
        "Leave",
        default=None,
    )
