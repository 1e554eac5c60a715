# SPDX-License-Identifier: Apache-2.0
"""The model of a node: its class, which are the facts that many nodes share, and its own free resources."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

from app.knowledge.cuda_compatibility import HostFacts
from app.knowledge.dcgm import GPUCondition
from app.knowledge.gpu_evidence import GPUPromise
from app.knowledge.mig_geometry import GPULayout
from app.knowledge.mig_profiles import nominal_size, profile_of
from app.knowledge.products import WHOLE_MILLI as WHOLE_MILLI
from app.kube.claimed_devices import DeviceChoices
from app.kube.numa_zones import NUMAZones
from app.nodes.conditions import CLIQUE, BadCondition, NotReady
from app.values.computations import HashedOnce
from app.values.versions import Version


class Sharing(Enum):
    """What one `nvidia.com/gpu` is on a node.

    It is a Share where counts prove that GPUs are shared and no label says how, and Unknown if nothing says whether it
    is a GPU or a share of one.
    """

    Exclusive = "a whole GPU"
    TimeSlicing = "a time-slice"
    MPS = "an MPS share"
    HAMi = "a HAMi vGPU"
    MIG = "a MIG slice"
    Part = "a part of a GPU"
    """A vGPU type with a part of its board's memory (knowledge/products.py); the host shares the GPU with others."""
    Share = "a share of a GPU"
    Unknown = "a GPU or share"


class CountDoubt(Enum):
    """How a node's capacity differs from what its labels count (nodes/sharing.py)."""

    UnlabelledShares = "more units than GPUs, and the machine has as many GPUs as labelled: the units are shares"
    MoreThanLabelled = "more units than labelled, and the machine has more GPUs than labelled"
    SeveralCauses = "more units than labelled, for one of several causes"
    Fewer = "fewer units than labelled"
    Slices = "other slices than labelled"


SHARES = frozenset({Sharing.TimeSlicing, Sharing.MPS, Sharing.HAMi, Sharing.Share})
"""Kinds of units by which several pods use the same GPU, or MIG slice, at once."""
UNSHARED = frozenset({Sharing.Exclusive, Sharing.Part, Sharing.Unknown})
"""Kinds of units that are devices of the node, which a pod has alone as far as labels tell."""
SHARED_UNITS = frozenset({Sharing.TimeSlicing, Sharing.MPS, Sharing.Share})
"""Shares of NVIDIA's device plugin: several units may be of one GPU, while HAMi gives as many GPUs as units."""


@dataclass(frozen=True, slots=True)
class NodeClass(HashedOnce):
    """The facts about a node that evicting pods cannot change; nodes of one kind share one object. None is unknown.

    Facts about the GPUs hold for every GPU of the node. nodes/labels.py reads them from labels and fills the gaps from
    the tables of knowledge/; nodes/reading.py replaces them by the attributes of DRA devices.
    """

    vendor: str = ""
    """The resource family (knowledge/gpu_resources.py) of the GPUs, by what the node offers, its labels or its devices;
    empty if nothing tells it."""
    runs_cuda: bool = True
    """Whether the GPUs run CUDA, by their vendor; a vendor that nothing tells counts as one whose GPUs do."""
    architecture: str | None = None
    """The architecture of the CPU, such as amd64 or arm64 (label kubernetes.io/arch)."""
    product: str | None = None
    """The GPU product in normal form (knowledge/products.py)."""
    possible_products: frozenset[str] = frozenset()
    """The candidates in normal form if the product is unknown, such as those of a cloud's machine type."""
    driver: Version | None = None
    """The version of the GPU driver; only that of a family with CUDA is compared with what CUDA needs."""
    cuda: Version | None = None
    """The highest CUDA version that the driver supports."""
    compute_capability: Version | None = None
    """The CUDA compute capability of the GPUs, such as (8, 0) for an A100."""
    memory_mib: int | None = None
    """The memory in MiB of one unit of the whole-GPU resource before it is shared: that of a GPU, or that of a slice
    under MIG strategy single."""
    memory_at_most: int | None = None
    """An upper bound of `memory_mib` where that is unknown."""
    slice_memory: tuple[tuple[str, int], ...] = ()
    """The memory of MIG slices in MiB as labels have it, as pairs of profile and memory."""
    sharing: Sharing = Sharing.Exclusive
    """What one unit of the whole-GPU resource is."""
    by_claim: bool = False
    """Whether the facts are those of the devices that a claim gets; `sharing` is then what it gets of each."""
    renamed_sharing: Sharing = Sharing.TimeSlicing
    """What one unit of a resource with the suffix `.shared` is."""
    shared_slices: frozenset[str] = frozenset()
    """The MIG profiles whose plain resource, without the suffix `.shared`, is a share of a slice."""
    replicas: int = 1
    """The number of units of one shared GPU, by its label."""
    shares: tuple[tuple[str, int], ...] = ()
    """Pairs of a shared resource and the number of its units for one GPU, or one MIG slice, where that is more than
    one."""
    refuses_several: bool | None = None
    """Whether the device plugin refuses a container that asks for several units of a shared GPU. None where its setting
    decides, which the node does not show (knowledge/clouds.yaml, `sharing_labels`)."""
    hami_gpus: int = 0
    """The number of GPUs that HAMi shares."""
    mig_strategy: str | None = None
    """The MIG strategy of the device plugin: `none`, `single` or `mixed` (label nvidia.com/mig.strategy)."""
    mig_profile: str | None = None
    """The profile of which every unit of the whole-GPU resource is a slice, under MIG strategy single. For the variant
    of a DRA device, the profile of that device."""
    mig_invalid: bool = False
    """Whether the product label ends in -MIG-INVALID, by which GPU Feature Discovery (GFD) marks a layout that the MIG
    strategy does not allow."""
    mig_state: str | None = None
    """The state of MIG Manager, such as `success`, `pending` or `failed` (label nvidia.com/mig.config.state); None
    without the label."""
    mig_layout_failed: str | None = None
    """The layout that MIG Manager failed to make (label nvidia.com/mig.config)."""
    upgrade_state: str | None = None
    """The state of the driver upgrade by the GPU Operator (label nvidia.com/gpu-driver-upgrade-state); None without
    the label."""
    nvlink: bool | None = None
    """Whether NVLink connects all GPUs of the node with each other."""
    form_factor: str | None = None
    """The form factor of the GPUs: SXM, PCIe, superchip or SoC (gpu_products.yaml)."""
    datacenter: bool | None = None
    """Whether the GPUs are not of a consumer brand (GeForce, TITAN), on which the driver rules of images depend."""
    facts: tuple[tuple[str, str], ...] = ()
    """The labels FACT_LABELS that the node has, as pairs of key and value."""
    labelled_gpus: int = 0
    """The number of GPUs by the label nvidia.com/gpu.count; 0 without the label."""
    promises: tuple[GPUPromise, ...] = ()
    """What labels say about the GPUs of each family that the node has, whether or not it offers them."""
    count_doubt: CountDoubt | None = None
    """How the capacity differs from what the labels count; None where they agree."""
    offered: tuple[tuple[str, int], ...] = ()
    """Pairs of a GPU resource and its allocatable units, sorted."""
    unhealthy_units: tuple[tuple[str, int], ...] = ()
    """Pairs of a GPU resource and the units by which capacity exceeds allocatable. They are of devices that their
    device plugin has withdrawn."""
    withdrawn: int = 0
    """The number of GPUs, or MIG slices, of `unhealthy_units`."""
    withdrawn_elsewhere: tuple[tuple[str, int, int], ...] = ()
    """Resources by which others give GPUs (knowledge/families.yaml) whose device plugin has withdrawn units: resource,
    units and capacity."""
    budgets: tuple[tuple[str, int], ...] = ()
    """Pairs of a shared resource and the total memory of its GPUs, or MIG slices, in MiB."""
    ill: int = 0
    """The number of GPUs that are to be drained now, by the metrics of GPU health (nodes/gpu_health.py)."""
    ailing: int = 0
    """The number of other GPUs that pods had better avoid, by the same metrics."""
    bad_conditions: tuple[tuple[str, GPUCondition], ...] = ()
    """Pairs of a condition of the node that reports a fault, such as `GPUMissing=True`, and its severity."""
    dra_resources: frozenset[str] = frozenset()
    """The resources that DRA serves, whose free units only kube-scheduler counts."""
    claims_only: str = ""
    """The domain of the vendor's resources with its slash, such as `nvidia.com/`, where a DRA driver publishes the GPUs
    and no device plugin offers any; else empty."""
    dra_profiles: frozenset[str] = frozenset()
    """The MIG profiles of the DRA devices, existing or created on demand."""
    device_variants: tuple["NodeClass", ...] = ()
    """The class with the facts (DEVICE_FACTS) of each kind of DRA device, if there are several kinds."""
    claimable: tuple[tuple["ClaimableDevices", ...], ...] = ()
    """For each device request of a demand that is known to select devices of the node, the alternatives of it. Empty
    except in a class that was made for one demand (placement/engine.py class_for_demand)."""
    runtime_handlers: frozenset[str] | None = None
    """The handlers of the container runtime, of which "" is the default; None where the node does not list them."""
    runtime_class_unneeded: str | None = None
    """Why pods need no RuntimeClass to get GPUs (knowledge/runtimes.yaml); None if nothing is known."""
    numa: NUMAZones | None = None
    """The devices by NUMA node, all of them free, and the policy of the kubelet's topology manager; None where no
    NodeResourceTopology says it."""
    labels: tuple[tuple[str, str], ...] | None = None
    """The labels on which a demand has requirements, as pairs of key and value; None where they are not evaluated."""
    __hash__ = HashedOnce.__hash__

    def fact(self, key: str) -> str | None:
        """Give the value of one of FACT_LABELS; None without the label."""
        return next((value for name, value in self.facts if name == key), None)

    @property
    def candidates(self) -> Collection[str]:
        """The product, or all that it may be, in normal form; none where nothing is known."""
        return self.possible_products if self.product is None else (self.product,)

    @property
    def host(self) -> HostFacts:
        """The facts by which the requirement of a container image is evaluated."""
        capability, datacenter = self.compute_capability, self.datacenter
        return HostFacts(self.driver, self.cuda, capability, datacenter, self.product, self.architecture)

    def by_device_variant(self) -> tuple["NodeClass", ...]:
        """Give the class as it would be with devices of each kind alone; only itself if they are of one kind."""
        if not self.device_variants:
            return (self,)
        facts = ({name: getattr(variant, name) for name in DIFFERING_DEVICE_FACTS} for variant in self.device_variants)
        return tuple(replace(self, device_variants=(), **values) for values in facts)

    @property
    def faulty(self) -> bool:
        """Tell whether a condition of the node says that no new pod should go to its GPUs."""
        return any(severity is GPUCondition.Ill for _, severity in self.bad_conditions)

    @property
    def several_models(self) -> bool:
        """Tell whether the GPUs may be of several products while the labels name one, so that none is known."""
        return self.count_doubt is CountDoubt.SeveralCauses

    @property
    def stale(self) -> bool:
        """Tell whether the labels contradict the node's capacity, so that they may be old in other ways too."""
        return self.count_doubt in (CountDoubt.Fewer, CountDoubt.Slices, CountDoubt.MoreThanLabelled)

    @property
    def absent(self) -> tuple[GPUPromise, ...]:
        """The promises of families of which the node offers no unit, withdrawn ones included, and DRA serves none."""
        if self.mig_invalid or not self.promises:
            return ()
        units = (*self.offered, *self.unhealthy_units, *((name, 1) for name in self.dra_resources))
        named = [name for name, amount in units if amount > 0]
        return tuple(promise for promise in self.promises if not any(map(promise.concerns, named)))

    @property
    def uses_device_plugin(self) -> bool:
        """Tell whether a device plugin offers the GPUs, so that allocatable counts them."""
        return any(amount > 0 for _, amount in self.offered)

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

    def unit_words(self, resource: str) -> str:
        """Write what a pod gets with one unit of a resource; a slice that is asked by name is no whole GPU."""
        unit = self.unit(resource)
        if profile_of(resource):
            return Sharing.MIG.value if unit is Sharing.Exclusive else f"{unit.value} of a MIG slice"
        return unit.value

    def replicas_of(self, resource: str) -> int:
        """Give the number of units of a resource for one GPU, or for one MIG slice; 1 if it is not shared."""
        return next((units for name, units in self.shares if name == resource), 1)

    def gpus(self, resource: str, units: int) -> int:
        """Give the number of GPUs, or MIG slices, for a number of units of a resource, rounded up."""
        return -(-units // self.replicas_of(resource))

    def slice_mib(self, profile: str) -> int | None:
        """Give the labelled memory of a MIG slice in MiB; None if no label has it."""
        return next((mib for name, mib in self.slice_memory if name == profile), None)

    def memory_of(self, resources: Collection[str]) -> float | None:
        """Give the memory of one requested unit in MiB: that of a MIG slice, of an MPS share, or else of the GPU.

        GFD's label of a slice is less than the nominal size in its name: 9,856 MiB for a 1g.10gb.
        """
        if slices := list(filter(None, map(profile_of, resources))):
            nominal = ((profile, nominal_size(profile)) for profile in slices)
            sizes = (self.slice_mib(profile) or (size.memory_mib if size else None) for profile, size in nominal)
            return min((size for size in sizes if size is not None), default=None)
        mps = any(self.unit(name) is Sharing.MPS for name in resources)
        return self.memory_mib / self.replicas if mps and self.memory_mib is not None else self.memory_mib


@dataclass(frozen=True, slots=True)
class ClaimableDevices:
    """The devices of a node that one alternative of a device request can get, whether or not they are free.

    `count` is the number of devices that it requests; None for all of them. `makes` are the classes that the node would
    have with devices of one kind alone, each with the number of these devices, in the order of the allocator.
    """

    count: int | None
    makes: tuple[tuple[NodeClass, int], ...]


class DevicesOnNode(Protocol):
    """The DRA devices of a node, as far as demands need them (app/dra/device_kinds.py).

    Nodes with devices of the same kinds share one object; `serial`, by which verdicts are cached, is never used again.
    """

    serial: int

    def claimable(
        self, node_class: NodeClass, requests: tuple[DeviceChoices, ...]
    ) -> tuple[tuple[ClaimableDevices, ...], ...]:
        """Select devices for each request."""

    def next_make(
        self, node_class: NodeClass, requests: tuple[DeviceChoices, ...], order: tuple[int, ...] | None
    ) -> NodeClass | None:
        """Give the class of the node with devices alone of the kind that the first request gets now."""


DIFFERING_DEVICE_FACTS = (
    "product", "driver", "cuda", "compute_capability", "memory_mib", "memory_at_most", "mig_profile", "nvlink",
    "form_factor", "datacenter",
)  # fmt: skip
"""The facts in which DRA devices of different kinds on one node may differ."""


@dataclass(frozen=True, slots=True)
class ServedTwice:
    """The GPUs of a node that a device plugin and a DRA driver both give away, so that one GPU can be given twice.

    `by_plugin` are the resources of the plugin, and `by_claims` the DeviceClasses and resources of the driver.
    `not_by_plugin` are those of `by_plugin` that may give a GPU which a claim has. `not_by_claims` is true where a
    claim may get a GPU that a pod has by the plugin.
    """

    by_plugin: frozenset[str]
    by_claims: frozenset[str]
    not_by_plugin: frozenset[str] = frozenset()
    not_by_claims: bool = False


@dataclass(frozen=True, slots=True)
class FreeResources:
    """The resources of a node that are free now."""

    units: Mapping[str, int]
    """The free units by GPU resource. A number is negative if pods hold more than is allocatable."""
    gpus: tuple[int, ...] | None = None
    """The free capacity of each GPU in thousandths, largest first; None on nodes of a device plugin, which does not say
    on which GPU a pod runs."""
    uncounted: frozenset[str] = frozenset()
    """The resources that DRA serves, whose free units only kube-scheduler knows."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """The memory of shared GPUs that no pod has declared to use, in MiB by shared resource. It is negative if pods in
    flight exceed it."""
    layouts: tuple[GPULayout, ...] | None = None
    """The GPUs on which MIG devices are created on demand, without those that are allocated whole. None if there are
    none, or if their geometry is unknown."""
    kinds: tuple[int, ...] | None = None
    """The kinds of DRA devices of which some are free, in the order of their first free device; None where all devices
    are of one kind, or where there are none."""
    twice: ServedTwice | None = None
    """Who holds GPUs of a node that a device plugin and a DRA driver both serve; None for other nodes."""
    numa: NUMAZones | None = None
    """The devices by NUMA node that are free at most; None where no NodeResourceTopology says it."""

    def with_units(self, amounts: Iterable[tuple[str, int]], memory_mib: int = 0, sign: int = 1) -> "FreeResources":
        """Return them with units given back (`sign` 1) or taken (-1), each with `memory_mib` of declared memory."""
        units, memory = dict(self.units), dict(self.memory)
        for resource, amount in amounts:
            if resource in units:
                units[resource] += sign * amount
            if resource in memory:
                memory[resource] += sign * amount * memory_mib
        return replace(self, units=units, memory=memory)


@dataclass(frozen=True, slots=True)
class Node:
    """One node: its class, what is free on it, and what else admission and explain read of it.

    `free_cpu_milli` is the CPU that no pod has requested, in thousandths of a core; None where it is not computed. Only
    scorers read it. It stands beside `free`, so that nodes with equal free GPUs share one FreeResources object, and so
    that a pod without GPUs changes neither.

    Admission reads its `labels` and its `taints`, which are triples of key, value and effect. `allocatable` holds every
    resource as the API server writes it, and `unschedulable` says that the node is cordoned. Only explain reads these
    two, so that they do not count in comparisons, and a change of them invalidates no cache.

    `devices` are its DRA devices, None for a node without any. `container_runtime` is the runtime with its version,
    such as `containerd://1.7.27`. `conditions` are those that report a fault of its
    GPUs, with the words of their publishers. `not_ready` is None for a node that is Ready.
    """

    name: str
    node_class: NodeClass
    free: FreeResources
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)
    taints: tuple[tuple[str, str, str], ...] = ()
    allocatable: Mapping[str, Any] = field(default_factory=dict, compare=False)
    unschedulable: bool = field(default=False, compare=False)
    free_cpu_milli: int | None = None
    devices: DevicesOnNode | None = field(default=None, compare=False)
    container_runtime: str = field(default="", compare=False)
    conditions: tuple[BadCondition, ...] = field(default=(), compare=False)
    not_ready: NotReady | None = None

    def with_free(
        self, free: FreeResources, free_cpu_milli: int | None, devices: "DevicesOnNode | None" = None
    ) -> "Node":
        """Give the node with other free resources, and devices, in a third of the time of `dataclasses.replace`."""
        return Node(
            self.name,
            self.node_class,
            free,
            self.labels,
            self.taints,
            self.allocatable,
            self.unschedulable,
            free_cpu_milli,
            devices or self.devices,
            self.container_runtime,
            self.conditions,
            self.not_ready,
        )

    @property
    def clique(self) -> str:
        """The NVLink domain of its GPUs, which nodes of one clique share (GFD, from v0.17.0); empty for none."""
        return self.labels.get(CLIQUE, "")

    @property
    def has_gpus(self) -> bool:
        """Tell whether the node offers GPUs, or its labels say that it has some."""
        facts = self.node_class
        offers = facts.offered or facts.dra_resources or self.free.gpus
        told = facts.vendor or facts.promises or facts.labelled_gpus
        return bool(offers or told or facts.product or facts.possible_products)
