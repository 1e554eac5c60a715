# SPDX-License-Identifier: Apache-2.0
"""The model of a node: its class, which are the facts that many nodes share, and its own free resources."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from app.knowledge.mig_placements import GPULayout
from app.knowledge.mig_profiles import profile_of
from app.knowledge.nvidia_require import HostFacts
from app.values.hashing import HashedOnce
from app.values.versions import Version


class Sharing(Enum):
    """What one `nvidia.com/gpu` is on a node; Unknown if no label says whether it is a GPU or a share of one."""

    Exclusive = "a whole GPU"
    TimeSlicing = "a time-slice"
    MPS = "an MPS share"
    HAMi = "a HAMi vGPU"
    MIG = "a MIG slice"
    Unknown = "a GPU or share"


SHARES = frozenset({Sharing.TimeSlicing, Sharing.MPS, Sharing.HAMi})
"""Kinds of units by which several pods use the same GPU, or MIG slice, at once."""
REPLICAS = frozenset({Sharing.TimeSlicing, Sharing.MPS})
"""Shares of NVIDIA's device plugin: several units may be of one GPU, while HAMi gives as many GPUs as units."""


@dataclass(frozen=True, slots=True)
class NodeClass(HashedOnce):
    """The facts about a node that evicting pods cannot change; nodes of one kind share one object. None is unknown.

    `product` is in normal form; `possible_products` are the candidates if it is unknown. `several_models` says that the
    GPUs are of several products while the labels name one, so that it is unknown which of them a pod gets.
    `cuda` is the highest CUDA version of the driver.
    `memory_mib` is the memory of one unshared unit of the whole-GPU resource, in MiB: that of a GPU, or that of a slice
    under MIG strategy single. `memory_at_most` is its upper bound if it is unknown. `slice_memory` is the labelled
    memory of MIG slices in MiB, by profile.
    `sharing` is what one unit of the whole-GPU resource is, and `renamed_sharing` what one unit of a `.shared` resource
    is. `shared_slices` are the MIG profiles whose plain resource is a share. `replicas` is the number of units of a
    shared GPU; `shares` is the same by resource, also for MIG slices, where it is more than one. `hami_gpus` is the
    number of GPUs that HAMi shares.
    `labelled_gpus` is the GPU count of the labels, and `stale` says that they contradict the node's capacity.
    `offered` are the allocatable units of GPU resources, sorted. `unhealthy_units` are the units by which capacity
    exceeds them, of devices that their plugin withdrew; `withdrawn` is the number of these GPUs (or MIG slices).
    `budgets` is the total memory of the GPUs of each shared resource, in MiB. `ill` and `ailing` are the numbers of
    such GPUs by the metrics of GPU health (`gpu_health.Health`).
    `dra_resources` are the resources that DRA serves, whose free units only kube-scheduler counts. `dra_profiles` are
    the MIG profiles of the DRA devices, existing or created on demand. `device_variants` is the class with the facts
    (DEVICE_FACTS) of each kind of DRA device, if there are several kinds.
    `labels` are the labels on which a demand has requirements, None where they are not evaluated.
    """

    product: str | None = None
    possible_products: frozenset[str] = frozenset()
    several_models: bool = False
    driver: Version | None = None
    cuda: Version | None = None
    compute_capability: Version | None = None
    memory_mib: int | None = None
    memory_at_most: int | None = None
    slice_memory: tuple[tuple[str, int], ...] = ()
    sharing: Sharing = Sharing.Exclusive
    renamed_sharing: Sharing = Sharing.TimeSlicing
    shared_slices: frozenset[str] = frozenset()
    replicas: int = 1
    shares: tuple[tuple[str, int], ...] = ()
    hami_gpus: int = 0
    mig_strategy: str | None = None
    mig_profile: str | None = None
    mig_invalid: bool = False
    mig_state: str | None = None
    upgrade_state: str | None = None
    nvlink: bool | None = None
    form_factor: str | None = None
    datacenter: bool | None = None
    labelled_gpus: int = 0
    stale: bool = False
    offered: tuple[tuple[str, int], ...] = ()
    unhealthy_units: tuple[tuple[str, int], ...] = ()
    withdrawn: int = 0
    budgets: tuple[tuple[str, int], ...] = ()
    ill: int = 0
    ailing: int = 0
    dra_resources: frozenset[str] = frozenset()
    dra_profiles: frozenset[str] = frozenset()
    device_variants: tuple["NodeClass", ...] = ()
    labels: tuple[tuple[str, str], ...] | None = None
    __hash__ = HashedOnce.__hash__

    @property
    def host(self) -> HostFacts:
        """The facts by which the requirement of a container image is evaluated."""
        return HostFacts(self.driver, self.cuda, self.compute_capability, self.datacenter)

    def by_device_variant(self) -> tuple["NodeClass", ...]:
        """Give the class as it would be with devices of each kind alone; only itself if they are of one kind."""
        if not self.device_variants:
            return (self,)
        facts = ({name: getattr(variant, name) for name in DEVICE_FACTS} for variant in self.device_variants)
        return tuple(replace(self, device_variants=(), **values) for values in facts)

    @property
    def uses_device_plugin(self) -> bool:
        """Tell whether a device plugin offers the GPUs, so that allocatable counts them."""
        return not self.dra_resources and any(amount > 0 for _, amount in self.offered)

    def allocatable(self, resource: str) -> int:
        """Give the allocatable units of a resource."""
        for name, amount in self.offered:
            if name == resource:
                return amount
        return 0

    def capacity(self, resource: str) -> int:
        """Give the units of a resource that the node would have if all its devices were healthy."""
        unhealthy = next((units for name, units in self.unhealthy_units if name == resource), 0)
        return self.allocatable(resource) + unhealthy

    def unit(self, resource: str) -> Sharing:
        """Give what one unit of a resource is. A unit of a MIG resource is a slice, which is exclusive unless shared.

        MPS is not available on MIG (NVIDIA/k8s-device-plugin README.md), so that shares of slices are time-slices.
        """
        if profile := profile_of(resource):
            shared = resource.endswith(".shared") or profile in self.shared_slices
            return Sharing.TimeSlicing if shared else Sharing.Exclusive
        return self.renamed_sharing if resource.endswith(".shared") else self.sharing

    def replicas_of(self, resource: str) -> int:
        """Give the number of units of a resource for one GPU, or for one MIG slice; 1 if it is not shared."""
        return next((units for name, units in self.shares if name == resource), 1)

    def gpus(self, resource: str, units: int) -> int:
        """Give the number of GPUs, or MIG slices, for a number of units of a resource, rounded up."""
        return -(-units // self.replicas_of(resource))

    def slice_mib(self, profile: str) -> int | None:
        """Give the labelled memory of a MIG slice in MiB; None if no label has it."""
        return next((mib for name, mib in self.slice_memory if name == profile), None)


DEVICE_FACTS = (
    "product", "driver", "cuda", "compute_capability", "memory_mib", "memory_at_most", "mig_profile", "nvlink",
    "form_factor", "datacenter",
)  # fmt: skip
"""The facts in which DRA devices of different kinds on one node may differ."""


@dataclass(frozen=True, slots=True)
class FreeResources:
    """The resources of a node that are free now.

    `units` are the free units by GPU resource. `gpus` is the free capacity of each GPU in thousandths, largest first;
    None on nodes of a device plugin. `uncounted` are the resources that DRA serves, whose free units only
    kube-scheduler knows. `memory` is the memory of shared GPUs that no pod has declared to use, in MiB by shared
    resource; it is negative if pods in flight exceed it. `layouts` are the GPUs on which MIG devices are created on
    demand, without those that are allocated whole; None if there are none, or if their geometry is unknown.
    `cpu_milli` is the CPU that no pod has requested, None where it is not computed.
    """

    units: Mapping[str, int]
    gpus: tuple[int, ...] | None = None
    uncounted: frozenset[str] = frozenset()
    memory: Mapping[str, int] = field(default_factory=dict)
    layouts: tuple[GPULayout, ...] | None = None
    cpu_milli: int | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One node. Admission reads its `labels` and its `taints`, which are (key, value, effect).

    `allocatable` holds every resource as the API server writes it, and `unschedulable` says that the node is cordoned.
    Only explain reads these two, so that they do not count in comparisons, and a change of them invalidates no cache.
    """

    name: str
    node_class: NodeClass
    free: FreeResources
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)
    taints: tuple[tuple[str, str, str], ...] = ()
    allocatable: Mapping[str, Any] = field(default_factory=dict, compare=False)
    unschedulable: bool = field(default=False, compare=False)

    @property
    def clique(self) -> str:
        """The NVLink domain of its GPUs, which nodes of one clique share (GFD, from v0.17.0); empty for none."""
        return self.labels.get("nvidia.com/gpu.clique", "")

    @property
    def has_gpus(self) -> bool:
        """Tell whether the node offers GPUs, or its labels say that it has some."""
        facts = self.node_class
        offers = facts.offered or facts.dra_resources or self.free.gpus
        return bool(offers or facts.labelled_gpus or facts.product or facts.possible_products)
