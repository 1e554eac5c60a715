# SPDX-License-Identifier: Apache-2.0
"""The `admission` block of a GPUPolicy: what is done to, and refused of, a GPU pod at the door."""

from typing import Annotated, Literal

from pydantic import Field

from app.policy.fields import Part, QuantityText


class ExtendedResources(Part):
    """What becomes of GPU amounts that the API server would refuse."""

    requests_only: Literal["CopyToLimits", "Deny", "Leave"] | None = Field(
        default=None, description="requests without limits"
    )
    mismatch: Literal["UseLimits", "Deny", "Leave"] | None = Field(
        default=None, description="requests different from limits"
    )
    fractional: Literal["Deny", "Leave"] | None = Field(default=None, description="0.5, 500m")


class Tolerations(Part):
    """Which taints a GPU pod tolerates."""

    from_node_taints: bool | None = Field(
        default=None, description="those of the GPU nodes that could serve it, allow-listed keys only"
    )
    keys: tuple[str, ...] = Field(default=(), strict=False, description="more allow-listed taint keys")


class Affinity(Part):
    """How needs that labels can express become node affinity."""

    mode: Literal["Required", "Preferred", "Off"] | None = None
    keys: tuple[Literal["GFD", "Karpenter", "GKE", "AKS"], ...] | None = Field(
        default=None,
        strict=False,
        description="whose labels to use, one OR-term each; absent: GFD, and those that the fleet's nodes carry",
    )


class Defaults(Part):
    """What a GPU container gets where it says nothing itself."""

    cpu_per_gpu: QuantityText | None = Field(
        default=None, alias="cpuPerGPU", description="requests.cpu for each GPU it asks"
    )
    memory_per_gpu: QuantityText | None = Field(
        default=None, alias="memoryPerGPU", description="requests.memory for each GPU it asks"
    )
    shared_memory: QuantityText | None = Field(
        default=None, description="size of /dev/shm in pods of two GPUs or more; it counts as the container's memory"
    )
    driver_capabilities: Annotated[str, Field(pattern=r"^[a-z0-9]+(,[a-z0-9]+)*$")] | None = Field(
        default=None, description="NVIDIA_DRIVER_CAPABILITIES, as compute,utility"
    )


class Admission(Part):
    """What is done to a GPU pod at the door."""

    runtime_class_name: str | None = Field(default=None, description="set if the pod names none and the class exists")
    scheduler_name: str | None = Field(default=None, description="set if the pod names none")
    priority_class_name: str | None = Field(default=None, description="set if the pod names none; it must exist")
    override: bool = Field(
        default=False, description="the three names above also replace what the pod names, and defaults what it says"
    )
    tolerations: Tolerations | None = None
    extended_resources: ExtendedResources | None = None
    affinity: Affinity | None = None
    max_gpus_per_pod: Annotated[int, Field(ge=0)] | None = Field(default=None, alias="maxGPUsPerPod")
    defaults: Defaults | None = None
    right_sizing: bool | None = Field(
        default=None,
        description="one GPU with gpu-memory stated: the smallest slice, or else product, that the fleet has for it",
    )
    mig_fallback: Literal["Enforce", "Warn", "Off"] | None = Field(
        default=None,
        description="mig-profile '>=P' beside a slice resource: the smallest sufficient profile instead; "
        "absent: only where no node has the one asked",
    )
    visible_devices: Literal["Deny", "Void", "Strip", "Leave"] | None = Field(
        default=None, description="GPUs taken by NVIDIA_VISIBLE_DEVICES and its like instead of being asked for"
    )
    privileged: Literal["Deny", "Leave"] | None = Field(default=None, description="privileged containers of GPU pods")
    bypass: Literal["Deny", "Leave"] | None = Field(
        default=None, description="nodeName set by the pod, or another schedulerName than the policy's"
    )
    shared_replicas: Literal["Deny", "Leave"] | None = Field(
        default=None, description="several replicas of shared GPUs asked as if they were several GPUs"
    )
