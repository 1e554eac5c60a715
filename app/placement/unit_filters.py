# SPDX-License-Identifier: Apache-2.0
"""Class filters for the unit of a GPU resource: its memory, sharing, MIG profile, interconnect and form factor."""

from app.knowledge.mig_profiles import SliceSize, nominal_size, profile_of
from app.nodes.model import REPLICAS, SHARES, UNSHARED, NodeClass, Sharing
from app.policy.demand import Demand
from app.policy.schema_placement import SharingWish
from app.values.reasons import Code, Reason, join_with_or, reason

MEMORY_TOLERANCE = 0.93
"""The share of the needed memory that a node must report at least: an 80 GB H100 reports 81,559 MiB, and GDDR cards
with ECC report 0.9375 of the nominal size (docs/reference/sharing-and-memory.md#memory;
app/knowledge/gpu_products.yaml, conventions)."""


def memory_large_enough(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse GPUs, MIG slices or shares with less memory than the pod needs."""
    if not demand.memory_mib:
        return None
    wants = f">= {demand.memory_mib} MiB per GPU"
    unit = memory_per_unit(demand, node)
    if unit is None and node.memory_at_most is not None and node.memory_at_most < MEMORY_TOLERANCE * demand.memory_mib:
        return reason(Code.GPUMemoryTooSmall, "GPU memory too small", wants)
    if unit is None:
        return reason(Code.GPUFactsMissing, "GPU memory unknown", wants) if demand.refuse_unknown else None
    if unit >= MEMORY_TOLERANCE * demand.memory_mib:
        return None
    return reason(Code.GPUMemoryTooSmall, "GPU memory too small", wants)


def memory_per_unit(demand: Demand, node: NodeClass) -> float | None:
    """Give the memory of one requested unit in MiB: that of a MIG slice, of an MPS share, or else of the GPU."""
    sizes = [_slice_mib(node, profile) for name, _ in demand.resources if (profile := profile_of(name))]
    if sizes:
        return min((size for size in sizes if size is not None), default=None)
    mps = any(node.unit(name) is Sharing.MPS for name, _ in demand.resources)
    return node.memory_mib / node.replicas if mps and node.memory_mib is not None else node.memory_mib


def _slice_mib(node: NodeClass, profile: str) -> int | None:
    """Give the memory of a MIG slice in MiB, by GFD's label or else by its name.

    The label is less than the nominal size in the name: 9,856 MiB for a 1g.10gb.
    """
    size = nominal_size(profile)
    return node.slice_mib(profile) or (size.memory_mib if size else None)


def sharing_allowed(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse shares for a pod that wants whole GPUs, and whole GPUs for one that wants shares.

    A MIG slice that is requested by name counts as exclusive.
    """
    if demand.sharing is SharingWish.Any:
        return None
    for resource, _ in demand.resources:
        unit = node.unit(resource)
        if unit is Sharing.Unknown:
            if demand.refuse_unknown:
                wants = "a whole GPU" if demand.sharing is SharingWish.Exclusive else "a share of a GPU"
                return reason(Code.GPUFactsMissing, "GPU sharing unknown", wants)
            continue
        if demand.sharing is SharingWish.Exclusive and unit is not Sharing.Exclusive:
            return reason(Code.SharingNotAllowed, "GPU is shared or sliced on this node", "a whole GPU")
        if demand.sharing is SharingWish.Shared and unit not in SHARES:
            return reason(Code.SharingNotAllowed, "GPU is not shared on this node", "a share of a GPU")
    return None


def several_units_allowed(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a container that requests several units of a shared GPU, where the device plugin or a policy refuses them.

    The kubelet fails a pod that the plugin refuses (docs/reference/sharing-and-memory.md#units). HAMi gives each unit
    from another GPU, so that request_within_node judges it.
    """
    for resource, amount in demand.max_per_container:
        unit = node.unit(resource)
        if amount < 2 or unit not in REPLICAS:
            continue
        if node.refuses_several:
            return reason(Code.SharedReplicasAskedAsGPUs, "the device plugin refuses several units", ONE_UNIT)
        if demand.several_units is False:
            return reason(Code.SharedReplicasAskedAsGPUs, "the policy denies several units", ONE_UNIT)
        if unit is Sharing.MPS and node.refuses_several is None and not demand.several_units:
            return reason(
                Code.SharedReplicasAskedAsGPUs,
                "only one share of an MPS GPU can be requested",
                "1 a container, or policy sharedReplicas: Leave",
            )
    return None


ONE_UNIT = "1 unit of a shared GPU a container"


def mig_profile_offered(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse nodes without the MIG profile of the annotation, for a pod that requests no MIG resource by name."""
    if demand.mig_profile is None or any(profile_of(name) for name, _ in demand.resources):
        return None
    profile, at_least = demand.mig_profile
    size = nominal_size(profile)
    if not demand.resources and _dra_offers_profile(node, profile, at_least):
        return None
    if at_least and size is not None and _unit_covers(demand, node, size):
        unknown = node.mig_profile is None and (node.memory_mib is None or node.sharing is Sharing.Unknown)
        if not (unknown and demand.refuse_unknown):
            return None
        return reason(Code.GPUFactsMissing, "GPU memory or sharing unknown", f">= {size.memory_mib} MiB per GPU")
    if not at_least and node.mig_profile == profile:
        return None
    return reason(Code.MIGProfileAbsent, "MIG profile not on this node", f"{'>= ' if at_least else ''}{profile}")


def _dra_offers_profile(node: NodeClass, profile: str, at_least: bool) -> bool:
    """Tell whether DRA offers such a slice, for a pod that claims devices and requests no GPU resource."""
    sizes = map(nominal_size, node.dra_profiles) if at_least else ()
    size = nominal_size(profile)
    return profile in node.dra_profiles or any(other.covers(size) for other in sizes if other and size)


def _unit_covers(demand: Demand, node: NodeClass, requested: SliceSize) -> bool:
    """Tell whether one unit is at least as large as a slice: a slice under MIG strategy single, or a whole GPU.

    See docs/reference/sharing-and-memory.md#mig-at-least.
    """
    if node.mig_profile:
        slice_size = nominal_size(node.mig_profile)
        return slice_size is not None and slice_size.covers(requested)
    units = {node.unit(resource) for resource, _ in demand.resources} or {node.sharing}
    whole = units <= UNSHARED and demand.sharing is not SharingWish.Shared
    most = node.memory_mib if node.memory_mib is not None else node.memory_at_most
    return whole and (most is None or most >= MEMORY_TOLERANCE * requested.memory_mib)


def interconnect_present(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse nodes whose GPUs NVLink does not join all-to-all, if the pod needs that; MIG slices have no NVLink."""
    if not demand.nvlink:
        return None
    sliced = node.sharing is Sharing.MIG or node.mig_profile is not None
    sliced = sliced or any(profile_of(name) for name, _ in demand.resources)
    if node.nvlink is None and not sliced:
        return reason(Code.GPUFactsMissing, "GPU interconnect unknown", "NVLink") if demand.refuse_unknown else None
    if node.nvlink and not sliced:
        return None
    return reason(Code.InterconnectAbsent, "GPUs are not joined all-to-all", "NVLink")


def form_factor_allowed(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse GPUs of a form factor that the pod does not allow."""
    if demand.form_factors is None:
        return None
    wants = join_with_or(sorted(form_factor.value for form_factor in demand.form_factors))
    if node.form_factor is None:
        return reason(Code.GPUFactsMissing, "GPU form factor unknown", wants) if demand.refuse_unknown else None
    if node.form_factor in {form_factor.value for form_factor in demand.form_factors}:
        return None
    return reason(Code.FormFactorNotAllowed, "GPU form factor not allowed", wants)
