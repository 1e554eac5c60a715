# SPDX-License-Identifier: Apache-2.0
"""Class filters about what one unit is on a node: a whole GPU, a share or a slice, how large, and how it is joined."""

from app.knowledge.mig_profiles import SliceSize, nominal_size, profile_of
from app.nodes.model import SHARES, NodeClass, Sharing
from app.policy.demand import Demand
from app.policy.schema_placement import SharingWish
from app.values.reasons import Code, Reason, either, reason

MEMORY_TOLERANCE = 0.93
"""A node satisfies X MiB if its label says at least this share of it: an 80 GB H100 reports 81,559 MiB, GDDR cards with
ECC report 0.9375 of nominal (docs/reference/sharing-and-memory.md#memory; app/knowledge/gpu_products.yaml,
conventions)."""


def memory_large_enough(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse GPUs (slices, shares) with less memory than asked."""
    if not demand.memory_mib:
        return None
    wants = f">= {demand.memory_mib} MiB per GPU"
    unit = _memory_per_unit(demand, node)
    if unit is None and node.memory_at_most is not None and node.memory_at_most < MEMORY_TOLERANCE * demand.memory_mib:
        return reason(Code.GPUMemoryTooSmall, "GPU memory too small", wants)
    if unit is None:
        return reason(Code.GPUFactsMissing, "GPU memory unknown", wants) if demand.refuse_unknown else None
    if unit >= MEMORY_TOLERANCE * demand.memory_mib:
        return None
    return reason(Code.GPUMemoryTooSmall, "GPU memory too small", wants)


def _memory_per_unit(demand: Demand, node: NodeClass) -> float | None:
    """Give what one asked unit has, in MiB: the named slice's, a share's of an MPS node, else the GPU's."""
    slices = [_slice_mib(node, profile) for name, _ in demand.resources if (profile := profile_of(name))]
    if slices:
        return min((each for each in slices if each is not None), default=None)
    mps = any(node.unit(name) is Sharing.MPS for name, _ in demand.resources)
    return node.memory_mib / node.replicas if mps and node.memory_mib is not None else node.memory_mib


def _slice_mib(node: NodeClass, profile: str) -> int | None:
    """Give a slice's memory: GFD's label, which is less than the profile's nominal size (9,856 MiB of a 1g.10gb)."""
    size = nominal_size(profile)
    return node.slice_mib(profile) or (size.memory_mib if size else None)


def sharing_allowed(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a share where a whole GPU is asked, and a whole GPU where a share is; a named slice is exclusive."""
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


def one_replica_of_mps(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a container that asks more than one share of an MPS GPU: the kubelet would reject it.

    See docs/reference/sharing-and-memory.md#units.
    """
    for resource, amount in demand.most:
        if amount > 1 and node.unit(resource) is Sharing.MPS:
            return reason(Code.SharedReplicasAskedAsGPUs, "only one share of an MPS GPU can be asked", "1 a container")
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
        unknown = node.mig_profile is None and (node.memory_mib is None or node.sharing is Sharing.Unknown)
        if not (unknown and demand.refuse_unknown):
            return None
        return reason(Code.GPUFactsMissing, "GPU memory or sharing unknown", f">= {size.memory_mib} MiB per GPU")
    if not at_least and node.mig_profile == wanted:
        return None
    return reason(Code.MIGProfileAbsent, "MIG profile not on this node", f"{'>= ' if at_least else ''}{wanted}")


def _shown(node: NodeClass, wanted: str, at_least: bool) -> bool:
    """Tell whether DRA shows such a slice, for a pod that claims devices and names no resource."""
    sizes = map(nominal_size, node.dra_profiles) if at_least else ()
    size = nominal_size(wanted)
    return wanted in node.dra_profiles or any(each.covers(size) for each in sizes if each and size)


def _covers(demand: Demand, node: NodeClass, wanted: SliceSize) -> bool:
    """Tell whether one unit is at least that slice: a slice of strategy single, or a whole GPU.

    See docs/reference/sharing-and-memory.md#mig-at-least.
    """
    if node.mig_profile:
        found = nominal_size(node.mig_profile)
        return found is not None and found.covers(wanted)
    units = {node.unit(resource) for resource, _ in demand.resources} or {node.sharing}
    whole = units <= {Sharing.Exclusive, Sharing.Unknown} and demand.sharing is not SharingWish.Shared
    most = node.memory_mib if node.memory_mib is not None else node.memory_at_most
    return whole and (most is None or most >= MEMORY_TOLERANCE * wanted.memory_mib)


def interconnect_present(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse nodes whose GPUs are not joined all-to-all, where that is asked; a slice has no NVLink."""
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
    """Refuse GPUs that are built in another way than those asked."""
    if demand.form_factors is None:
        return None
    wants = either(sorted(each.value for each in demand.form_factors))
    if node.form_factor is None:
        return reason(Code.GPUFactsMissing, "GPU form factor unknown", wants) if demand.refuse_unknown else None
    if node.form_factor in {each.value for each in demand.form_factors}:
        return None
    return reason(Code.FormFactorNotAllowed, "GPU form factor not allowed", wants)
