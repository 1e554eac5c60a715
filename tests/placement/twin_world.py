# SPDX-License-Identifier: Apache-2.0
"""The twin's input: raw wishes, policies, nodes and bound pods, as their authors wrote them.

Also Kubernetes' arithmetic of a pod's requests in its simplest form (KEP-753, kubernetes
pkg/api/v1/resource/helpers.go).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

GPU = "nvidia.com/gpu"
NVIDIA = "nvidia.com/"
SLICES = "nvidia.com/mig-"
SHARED = ".shared"
HAMI = "hami.io/node-nvidia-register"
FAMILIES = (NVIDIA, "amd.com/", "gpu.intel.com/")


@dataclass(frozen=True)
class Part:
    """One container. `kind` is app, init or sidecar. `require` is the value of NVIDIA_REQUIRE_CUDA. `lifted` means that
    the environment holds NVIDIA_DISABLE_REQUIRE. `claims` means that the container has its GPU by a ResourceClaim and
    requests no resource."""

    resource: str = GPU
    amount: int = 1
    image: str | None = None
    kind: str = "app"
    require: str | None = None
    lifted: bool = False
    claims: bool = False


@dataclass(frozen=True)
class Policy:
    """The placement part of one matching policy; None and () state nothing.

    `labels` and `expressions` (key, operator, values) are its node selector. `forms` are its form factors.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    memory: str | None = None
    capability: str | None = None
    cuda: str | None = None
    sharing: str | None = None
    nvlink: bool = False
    unknown: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    expressions: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    forms: tuple[str, ...] = ()
    ill: str | None = None
    ailing: str | None = None
    unhealthy: str | None = None
    conditions: str | None = None
    action: str = "Enforce"


@dataclass(frozen=True)
class Wish:
    """What a pod asks for, as its author wrote it. `accept` is the policies' cuda.accept. `parts` are the containers;
    without any there is one with `resource`, `amount` and `image`. `broken` are annotations (key, text) that do not
    parse."""

    resource: str = GPU
    amount: int = 1
    products: str | None = None
    cuda: str | None = None
    image: str | None = None
    capability: str | None = None
    memory: str | None = None
    sharing: str = "Any"
    mig_profile: str | None = None
    nvlink: bool = False
    accept: str = "ForwardCompatible"
    parts: tuple[Part, ...] = ()
    policies: tuple[Policy, ...] = ()
    broken: tuple[tuple[str, str], ...] = ()

    @cached_property
    def containers(self) -> tuple[Part, ...]:
        """List the containers."""
        return self.parts or (Part(self.resource, self.amount, self.image),)

    @cached_property
    def rules(self) -> tuple[Policy, ...]:
        """List the policies that refuse; Warn, Audit and Off do not (docs/reference/policy.md#actions)."""
        return tuple(policy for policy in self.policies if policy.action == "Enforce")

    @cached_property
    def refuses_unknown(self) -> bool:
        """Tell whether a policy refuses unknown facts (docs/reference/compatibility.md#unknown-facts)."""
        return any(rule.unknown == "Refuse" for rule in self.rules)

    @cached_property
    def asked(self) -> dict[str, int]:
        """Sum by resource the most that the pod holds at one time, without zeros."""
        requests = {part.resource: peak(self.containers, part.resource) for part in self.containers if not part.claims}
        return {resource: amount for resource, amount in requests.items() if amount}

    @cached_property
    def cuda_parts(self) -> tuple[Part, ...]:
        """List the containers that have an NVIDIA GPU for CUDA."""
        asking = (part for part in self.containers if part.amount or part.claims)
        return tuple(part for part in asking if part.resource.startswith(NVIDIA))

    @cached_property
    def claimed(self) -> bool:
        """Tell whether the pod has its GPUs by claims alone."""
        return any(part.claims for part in self.containers) and not self.asked

    @cached_property
    def minimums(self) -> tuple[str, ...]:
        """List the minimum CUDA versions of the pod and of the policies; none if the pod asks for no NVIDIA GPU."""
        stated = (self.cuda, *(rule.cuda for rule in self.rules))
        return tuple(version for version in stated if version and self.cuda_parts)


def peak(containers: tuple[Part, ...], resource: str) -> int:
    """Compute a pod's request of one resource: the sum of what runs together, or the largest step of its start."""
    starting, sidecars = 0, 0
    for part in containers:
        amount = part.amount if part.resource == resource else 0
        if part.kind == "sidecar":
            sidecars += amount
        if part.kind == "init":
            starting = max(starting, sidecars + amount)
    running = sidecars + sum(
        container.amount for container in containers if container.kind == "app" and container.resource == resource
    )
    return max(running, starting)


@dataclass(frozen=True)
class RawPod:
    """A bound pod: the units that it holds by resource, its gpu-memory annotation, and whether it has ended."""

    holds: tuple[tuple[str, int], ...] = ((GPU, 1),)
    memory: str | None = None
    done: bool = False


@dataclass(frozen=True)
class RawDevice:
    """A GPU as a ResourceSlice shows it. None means that the slice lacks the fact."""

    product: str
    driver: str | None = None
    capability: str | None = None
    memory: int | None = None


@dataclass(frozen=True)
class RawNode:
    """A node as kubectl shows it. `capacity` may lack resources that equal allocatable.

    `devices` are the GPUs of its ResourceSlices. `health` counts the (ill, ailing) GPUs that DCGM reports; None means
    unknown. `hami` is the annotation hami.io/node-nvidia-register. `conditions` are pairs of type and status.
    """

    labels: dict[str, str] = field(default_factory=dict)
    allocatable: dict[str, int] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)
    health: tuple[int, int] | None = None
    hami: str = ""
    devices: tuple[RawDevice, ...] = ()
    conditions: tuple[tuple[str, str], ...] = ()

    def in_all(self, resource: str) -> int:
        """Return how many units there are, healthy or not."""
        return max(self.offers(resource), self.capacity.get(resource, 0))

    def offers(self, resource: str) -> int:
        """Return how many units pods may have."""
        return self.allocatable.get(resource, 0)

    def withdrawn(self, resource: str) -> int:
        """Return how many units the device plugin withdrew as unhealthy (Kubernetes documentation, Device Plugins)."""
        return max(0, self.capacity.get(resource, self.offers(resource)) - self.offers(resource))

    def resources(self) -> Iterator[str]:
        """List the names of the GPU resources."""
        return (resource for resource in {**self.allocatable, **self.capacity} if resource.startswith(FAMILIES))


def without_remembered(node: RawNode) -> RawNode:
    """Leave out names without a unit whose GPUs the node offers by another name: the kubelet only remembers them."""
    given = {gpus_of(name) for name, amount in node.allocatable.items() if amount > 0}
    gone = {name for name, amount in node.allocatable.items() if amount == 0 and gpus_of(name) in given}
    kept = [
        {name: amount for name, amount in amounts.items() if name not in gone}
        for amounts in (node.allocatable, node.capacity)
    ]
    return replace(node, allocatable=kept[0], capacity=kept[1]) if gone else node


def gpus_of(name: str) -> str:
    """Name the GPUs of a resource: shares and AMD's partitions are those of the whole GPU."""
    return re.sub(r"^amd[.]com/[a-z]px_.*", "amd.com/gpu", name).removesuffix(".shared")
