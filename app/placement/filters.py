# SPDX-License-Identifier: Apache-2.0
"""Filters: why a node cannot serve a demand. One small function each; the tuples at the foot are the product.

A class filter judges what evicting pods cannot change, once per NodeClass; a free filter judges what is
free now. Both give None for "fits". Messages name what is wanted, never what a node has (INTERFACES §3).
"""

from collections.abc import Callable

from app.knowledge.cuda import Compatibility, CUDANeed, judge_driver
from app.knowledge.mig import SliceSize, nominal_size, profile_of
from app.nodeclass import Free, NodeClass, Sharing, slice_profiles
from app.placement.layouts import layout_fits
from app.policy.demand import Demand
from app.policy.schema_placement import SharingWish
from app.reasons import Code, Reason, either, reason
from app.versions import show_driver, show_version

MEMORY_TOLERANCE = 0.93
"""A node satisfies X MiB if its label says at least this share of it: an 80 GB H100 reports 81,559 MiB, GDDR cards
with ECC report 0.9375 of nominal (INTERFACES §10, Memory; facts gpu_products.yaml conventions)."""

MIG_STATES_READY = {None, "success"}
"""Any other value of mig.config.state refuses, for whole-GPU pods too (INTERFACES §10)."""

UPGRADE_STATES_REFUSED = frozenset(
    {
        "cordon-required",
        "wait-for-jobs-required",
        "pod-deletion-required",
        "drain-required",
        "node-maintenance-required",
        "post-maintenance-required",
        "pod-restart-required",
        "validation-required",
        "uncordon-required",
        "upgrade-failed",
    }
)
"""NVIDIA/k8s-operator-libs pkg/upgrade/consts.go; upgrade-required alone only scores down (INTERFACES §10)."""

ClassFilter = Callable[[Demand, NodeClass], Reason | None]
FreeFilter = Callable[[Demand, Free], Reason | None]


def annotations_parse(demand: Demand, _node: NodeClass) -> Reason | None:
    """Refuse everywhere what an annotation left unclear: the webhook was down when the pod was made."""
    return demand.invalid


def resources_offered(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a node that has none of a resource asked; labels that promise it make it a ghost."""
    for resource, _ in demand.resources:
        if node.allocatable(resource) > 0 or resource in node.by_dra:
            continue
        if profile_of(resource):
            return reason(Code.MIGProfileAbsent, "MIG profile not on this node", profile_of(resource) or "")
        if node.labelled > 0 and not node.mig_invalid and not any(amount for _, amount in node.offered):
            return reason(Code.GhostGPUs, "labels promise GPUs that the device plugin does not offer", resource)
        return reason(Code.ResourceNotOffered, "resource not offered", resource)
    return None


def request_within_node(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a node that has fewer units in all than the pod asks."""
    for resource, amount in demand.resources:
        if amount > node.allocatable(resource) and resource not in node.by_dra:
            return reason(Code.RequestExceedsNode, "asks more than the node has in all", f"{amount} {resource}")
    return None


def product_allowed(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse other products than those asked; an unknown product never fulfils a wish for one."""
    if not demand.products and not demand.denied_products:
        return None
    if node.product is None and not node.offered and not node.by_dra:
        return None  # no GPU node: resources_offered says so
    if node.product is None:
        return reason(Code.GPUFactsMissing, "GPU product unknown", _wanted_products(demand))
    allowed = all(any(pattern.matches(node.product) for pattern in any_of) for any_of in demand.products)
    if allowed and not any(pattern.matches(node.product) for pattern in demand.denied_products):
        return None
    return reason(Code.ProductNotAllowed, "GPU product not allowed", _wanted_products(demand))


def _wanted_products(demand: Demand) -> str:
    shortest = min(demand.products, key=len, default=())
    wanted = either([pattern.text for pattern in shortest])
    denied = either([pattern.text for pattern in demand.denied_products])
    return f"{wanted}, not {denied}" if wanted and denied else wanted or f"not {denied}"


def driver_new_enough(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a driver on which a container's CUDA would not start, by the procedure of knowledge/cuda.py."""
    for need in demand.cuda:
        if node.driver is None:
            if demand.refuse_unknown:
                return reason(Code.DriverUnknown, "CUDA driver unknown", f">= {_floor(demand, need)}")
            continue
        verdict = judge_driver(need, node.host)
        if verdict < demand.accept:
            new_enough = node.driver >= need.floor(demand.accept)  # so it is the image that refuses the branch
            if new_enough or (verdict is Compatibility.RequirementUnmet and need.requirement):
                return _requirement_unmet(need)
            return reason(Code.DriverTooOld, "CUDA driver too old", f">= {_floor(demand, need)}")
    return None


def _requirement_unmet(need: CUDANeed) -> Reason:
    if need.requirement:
        wants = f"CUDA >= {show_version(need.cuda)}, or what else it names"
        return reason(Code.ImageRequirementUnmet, "NVIDIA_REQUIRE_CUDA refuses this driver", wants)
    branches = either([str(branch) for branch, _ in need.alternatives or () if branch != need.native[0]])
    wants = f"driver >= {show_driver(need.native)}, or branch {branches}"
    return reason(Code.ImageRequirementUnmet, "image refuses this driver branch", wants)


def _floor(demand: Demand, need: CUDANeed) -> str:
    return show_driver(need.floor(demand.accept))


def compute_capability_served(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a GPU older than the pod or its image family asks."""
    asked = [demand.compute_capability, *(need.capability_floor for need in demand.cuda)]
    floor = max((each for each in asked if each is not None), default=None)
    if floor is None:
        return None
    if node.compute_capability is None:
        if demand.refuse_unknown:
            return reason(Code.GPUFactsMissing, "compute capability unknown", f">= {show_version(floor)}")
        return None
    if node.compute_capability >= floor:
        return None
    return reason(Code.ComputeCapabilityTooLow, "compute capability too low", f">= {show_version(floor)}")


def toolkit_targets_gpu(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a GPU that the image's CUDA toolkit cannot make code for, too old or too new."""
    if node.compute_capability is None:
        return None
    for need in demand.cuda:
        if node.compute_capability in need.unsupported:
            wants = f"a GPU that CUDA {show_version(need.cuda)} supports"
            return reason(Code.ComputeCapabilityUnsupported, "GPU outside the image's toolkit", wants)
    return None


def memory_large_enough(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse GPUs (slices, shares) with less memory than asked."""
    if not demand.memory_mib:
        return None
    wants = f">= {demand.memory_mib} MiB per GPU"
    unit = _memory_per_unit(demand, node)
    if unit is None:
        return reason(Code.GPUFactsMissing, "GPU memory unknown", wants) if demand.refuse_unknown else None
    if unit >= MEMORY_TOLERANCE * demand.memory_mib:
        return None
    return reason(Code.GPUMemoryTooSmall, "GPU memory too small", wants)


def _memory_per_unit(demand: Demand, node: NodeClass) -> float | None:
    """Give what one asked unit has, in MiB: the named slice's, a share's of an MPS node, else the GPU's."""
    slices = [nominal_size(profile) for name, _ in demand.resources if (profile := profile_of(name))]
    if slices:
        return min((each.memory_mib for each in slices if each), default=None)
    mps = any(_unit(name, node) is Sharing.MPS for name, _ in demand.resources)
    return node.memory_mib / node.replicas if mps and node.memory_mib is not None else node.memory_mib


def sharing_allowed(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a share where a whole GPU is asked, and a whole GPU where a share is; a named slice is exclusive."""
    if demand.sharing is SharingWish.Any:
        return None
    for resource, _ in demand.resources:
        unit = _unit(resource, node)
        if demand.sharing is SharingWish.Exclusive and unit is not Sharing.Exclusive:
            return reason(Code.SharingNotAllowed, "GPU is shared or sliced on this node", "a whole GPU")
        if demand.sharing is SharingWish.Shared and unit not in (Sharing.TimeSlicing, Sharing.MPS):
            return reason(Code.SharingNotAllowed, "GPU is not shared on this node", "a share of a GPU")
    return None


def _unit(resource: str, node: NodeClass) -> Sharing:
    """Say what one unit of a resource is on a node."""
    if resource.endswith(".shared"):
        return node.renamed
    return Sharing.Exclusive if profile_of(resource) else node.sharing


def one_replica_of_mps(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse more than one share of an MPS GPU: the kubelet would reject the pod (facts: gfd_labels sharing)."""
    for resource, amount in demand.resources:
        if amount > 1 and _unit(resource, node) is Sharing.MPS:
            return reason(Code.SharingNotAllowed, "only one share of an MPS GPU can be asked", "1 replica")
    return None


def mig_profile_offered(demand: Demand, node: NodeClass) -> Reason | None:
    """Judge the annotation mig-profile beside a whole-GPU resource; a named slice resource speaks for itself."""
    if demand.mig_profile is None or any(profile_of(name) for name, _ in demand.resources):
        return None
    wanted, at_least = demand.mig_profile
    size = nominal_size(wanted)
    if not demand.resources and _shown(node, wanted, at_least):
        return None
    if at_least and size is not None and _covers(demand, node, size):
        return None
    if not at_least and node.mig_profile == wanted:
        return None
    return reason(Code.MIGProfileAbsent, "MIG profile not on this node", f"{'>= ' if at_least else ''}{wanted}")


def _shown(node: NodeClass, wanted: str, at_least: bool) -> bool:
    """Tell whether DRA shows such a slice, for a pod that claims devices and names no resource."""
    sizes = map(nominal_size, node.dra_profiles) if at_least else ()
    size = nominal_size(wanted)
    return wanted in node.dra_profiles or any(each.covers(size) for each in sizes if each and size)


def _covers(demand: Demand, node: NodeClass, wanted: SliceSize) -> bool:
    """Tell whether one unit is at least that slice: a slice of strategy single, or a whole GPU (INTERFACES §7a)."""
    if node.mig_profile:
        found = nominal_size(node.mig_profile)
        return found is not None and found.covers(wanted)
    whole = node.sharing is Sharing.Exclusive and demand.sharing is not SharingWish.Shared
    return whole and (node.memory_mib is None or node.memory_mib >= MEMORY_TOLERANCE * wanted.memory_mib)


def mig_valid(_demand: Demand, node: NodeClass) -> Reason | None:
    """Quarantine a node whose MIG layout GFD calls invalid."""
    if not node.mig_invalid:
        return None
    return reason(Code.MIGInvalid, "MIG layout of the node is invalid", "one profile on all GPUs, or strategy mixed")


def mig_settled(_demand: Demand, node: NodeClass) -> Reason | None:
    """Keep pods off a node that MIG Manager is changing, or failed to change."""
    if node.mig_state in MIG_STATES_READY:
        return None
    return reason(Code.MIGReconfiguring, "MIG layout of the node is being changed", "mig.config.state success")


def driver_settled(_demand: Demand, node: NodeClass) -> Reason | None:
    """Keep pods off a node whose driver is being replaced."""
    if node.upgrade_state not in UPGRADE_STATES_REFUSED:
        return None
    return reason(Code.DriverUpgrading, "GPU driver of the node is being upgraded", "upgrade-done")


def interconnect_present(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse nodes whose GPUs are not joined all-to-all, where that is asked; a slice has no NVLink."""
    if not demand.nvlink:
        return None
    if node.nvlink is None:
        return reason(Code.GPUFactsMissing, "GPU interconnect unknown", "NVLink") if demand.refuse_unknown else None
    sliced = node.mig_profile is not None or (
        bool(slice_profiles(node)) and any(profile_of(n) for n, _ in demand.resources)
    )
    if node.nvlink and not sliced:
        return None
    return reason(Code.InterconnectAbsent, "GPUs are not joined all-to-all", "NVLink")


def enough_units(demand: Demand, free: Free) -> Reason | None:
    """Refuse a node with fewer free units than asked. kube-scheduler counts these too."""
    for resource, amount in demand.resources:
        if free.units.get(resource, 0) < amount and resource not in free.uncounted:
            return reason(Code.InsufficientGPUs, "not enough free GPUs", f"{amount} {resource}")
    return None


CLASS_FILTERS: tuple[ClassFilter, ...] = (
    annotations_parse,
    product_allowed,
    mig_valid,
    mig_settled,
    driver_settled,
    resources_offered,
    sharing_allowed,
    one_replica_of_mps,
    mig_profile_offered,
    driver_new_enough,
    compute_capability_served,
    toolkit_targets_gpu,
    memory_large_enough,
    interconnect_present,
    request_within_node,
)
"""In this order; the first refusal is the node's reason.

The wrong product comes first, since no waiting mends it; a node in the middle of a change comes before the
resources that it lacks meanwhile.
"""

FREE_FILTERS: tuple[FreeFilter, ...] = (enough_units, layout_fits)
"""In this order."""

COUNTED_IN_TREE: frozenset[FreeFilter] = frozenset({enough_units, layout_fits})
"""Those that repeat kube-scheduler's own count: off in filter behind a live scheduler (INTERFACES §10, Counts)."""
