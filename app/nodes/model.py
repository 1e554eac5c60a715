# SPDX-License-Identifier: Apache-2.0
"""What is known of a node: facts that many nodes share, and what is free on each."""

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
    """What one `nvidia.com/gpu` means on a node. Unknown: no label tells, so that it may be a GPU or a share of one."""

    Exclusive = "a whole GPU"
    TimeSlicing = "a time-slice"
    MPS = "an MPS share"
    HAMi = "a HAMi vGPU"
    MIG = "a MIG slice"
    Unknown = "a GPU or share"


SHARES = frozenset({Sharing.TimeSlicing, Sharing.MPS, Sharing.HAMi})
"""What a unit is where several pods have the same GPU (slice) at once."""
REPLICAS = frozenset({Sharing.TimeSlicing, Sharing.MPS})
"""Shares that NVIDIA's device plugin makes: several of them may be of one GPU, where HAMi gives as many GPUs."""


@dataclass(frozen=True, slots=True)
class NodeClass(HashedOnce):
    """Facts that evicting pods cannot change; equal for nodes of one make. None is unknown.

    `product`: normal form; `may_be`: where that is unknown, the products of which it must be one. `several_models`: the
    GPUs are of several products of which the labels tell one, so that nobody knows which of them a pod gets.
    `cuda`: highest CUDA of the driver. `memory_mib`: of one unit of the whole-GPU resource, unshared: a GPU's, under
    MIG strategy single a slice's. `memory_at_most`: where that is unknown, what it cannot exceed. `slice_memory`: MiB
    of a MIG slice by its profile, where a label tells.
    `sharing`, `renamed`: what one unit of the whole-GPU resource, and of a `.shared` one, is.
    `shared_slices`: MIG profiles whose plain resource is a share. `replicas`: units as which a shared GPU is given out;
    `shares`: the same by resource, of slices too, where it is more than one. `registered`: GPUs that HAMi shares out.
    `labelled`: GPUs that the labels promise; `stale`: they contradict what the node has.
    `offered`: (resource, allocatable), GPU families only, sorted; `lacking`: what capacity has besides, devices that
    their plugin withdrew; `withdrawn`: the GPUs (slices, on a node of slices) that these are.
    `budgets`: (shared resource, MiB in all). `ill`, `ailing`: GPUs that external health reports.
    `by_dra`: resources that DRA serves, which kube-scheduler counts; `dra_profiles`: MIG profiles that it shows, made
    or to be made on demand; `makes`: the facts (OF_A_MAKE) of each make of device where it shows several.
    `labels`: those that a demand asks about; None: not judged.
    """

    product: str | None = None
    may_be: frozenset[str] = frozenset()
    several_models: bool = False
    driver: Version | None = None
    cuda: Version | None = None
    compute_capability: Version | None = None
    memory_mib: int | None = None
    memory_at_most: int | None = None
    slice_memory: tuple[tuple[str, int], ...] = ()
    sharing: Sharing = Sharing.Exclusive
    renamed: Sharing = Sharing.TimeSlicing
    shared_slices: frozenset[str] = frozenset()
    replicas: int = 1
    shares: tuple[tuple[str, int], ...] = ()
    registered: int = 0
    mig_strategy: str | None = None
    mig_profile: str | None = None
    mig_invalid: bool = False
    mig_state: str | None = None
    upgrade_state: str | None = None
    nvlink: bool | None = None
    form_factor: str | None = None
    datacenter: bool | None = None
    labelled: int = 0
    stale: bool = False
    offered: tuple[tuple[str, int], ...] = ()
    lacking: tuple[tuple[str, int], ...] = ()
    withdrawn: int = 0
    budgets: tuple[tuple[str, int], ...] = ()
    ill: int = 0
    ailing: int = 0
    by_dra: frozenset[str] = frozenset()
    dra_profiles: frozenset[str] = frozenset()
    makes: tuple["NodeClass", ...] = ()
    labels: tuple[tuple[str, str], ...] | None = None
    __hash__ = HashedOnce.__hash__

    @property
    def host(self) -> HostFacts:
        """What the node answers to a container's requirement."""
        return HostFacts(self.driver, self.cuda, self.compute_capability, self.datacenter)

    def by_make(self) -> tuple["NodeClass", ...]:
        """Give the node as it would be with devices of each make alone; itself where they are of one."""
        if not self.makes:
            return (self,)
        return tuple(
            replace(self, makes=(), **{name: getattr(make, name) for name in OF_A_MAKE}) for make in self.makes
        )

    @property
    def plugged(self) -> bool:
        """Tell whether a device plugin offers the GPUs, so that allocatable speaks for them."""
        return not self.by_dra and any(amount > 0 for _, amount in self.offered)

    def allocatable(self, resource: str) -> int:
        """Say how many units of a resource the node has in all."""
        for name, amount in self.offered:
            if name == resource:
                return amount
        return 0

    def capacity(self, resource: str) -> int:
        """Say how many units the node would have if all its devices were healthy."""
        return self.allocatable(resource) + next((amount for name, amount in self.lacking if name == resource), 0)

    def unit(self, resource: str) -> Sharing:
        """Say what one unit of a resource is: a slice asked by name is hardware of its own, unless it is shared.

        MPS and MIG do not go together (NVIDIA/k8s-device-plugin README.md), so that shares of slices are time-slices.
        """
        if profile := profile_of(resource):
            shared = resource.endswith(".shared") or profile in self.shared_slices
            return Sharing.TimeSlicing if shared else Sharing.Exclusive
        return self.renamed if resource.endswith(".shared") else self.sharing

    def sharers(self, resource: str) -> int:
        """Say as how many units of a resource one GPU, or one slice, is given out."""
        return next((units for name, units in self.shares if name == resource), 1)

    def gpus(self, resource: str, units: int) -> int:
        """Say how many GPUs (slices) stand behind so many units of a resource, rounded up."""
        return -(-units // self.sharers(resource))

    def slice_mib(self, profile: str) -> int | None:
        """Give the memory of a MIG slice that a label tells; None if none does."""
        return next((mib for name, mib in self.slice_memory if name == profile), None)


OF_A_MAKE = (
    "product", "driver", "cuda", "compute_capability", "memory_mib", "memory_at_most", "mig_profile", "nvlink",
    "form_factor", "datacenter",
)  # fmt: skip
"""The facts that distinguish the devices of one make from those of another on the same node."""


@dataclass(frozen=True, slots=True)
class FreeResources:
    """What is free now.

    `units`: by GPU resource. `gpus`: free milli per GPU, largest first; None on device-plugin nodes.
    `uncounted`: resources that DRA serves: how many are free is kube-scheduler's to know. `memory`: MiB of shared
    GPUs that no pod has declared yet, by shared resource; negative where in-flight pods overran it.
    `layouts`: the GPUs that are carved into MIG slices on demand and not given away whole; None where there are none
    such, or their geometry is unknown. `cpu_milli`: CPU that no pod has requested; None where nobody looks.
    """

    units: Mapping[str, int]
    gpus: tuple[int, ...] | None = None
    uncounted: frozenset[str] = frozenset()
    memory: Mapping[str, int] = field(default_factory=dict)
    layouts: tuple[GPULayout, ...] | None = None
    cpu_milli: int | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `labels` and `taints` (key, value, effect) are what admission looks at.

    `allocatable`: of every resource, as the API server writes it; `unschedulable`: cordoned. Both are for explaining
    alone, so that a change of them is no change of the node for anything that decides.
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
        """Name the NVLink domain of its GPUs: nodes of one clique share it (GFD, from v0.17.0); empty for none."""
        return self.labels.get("nvidia.com/gpu.clique", "")

    @property
    def has_gpus(self) -> bool:
        """Tell whether the node offers or promises any GPU."""
        known = self.node_class
        return bool(known.offered or known.labelled or known.by_dra or known.product or known.may_be or self.free.gpus)
