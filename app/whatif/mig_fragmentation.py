# SPDX-License-Identifier: Apache-2.0
"""Fragmentation of MIG nodes as one number: the expected share of free capacity that the next pod cannot use.

Capacity is in memory slices, and the next pod follows the mix of demands: F of Weng et al., "Beware of Fragmentation"
(USENIX ATC '23, section 3), with slices instead of GPU shares.
"""

from collections.abc import Iterable, Mapping

from app.knowledge.mig_geometry import Geometry
from app.knowledge.mig_profiles import profile_of
from app.knowledge.tables import Knowledge
from app.nodes.model import Node, NodeClass, Sharing
from app.placement.mig_slices import distinct_profiles, usable_memory


def fragmented_share(nodes: Iterable[Node], mix: Mapping[str, int], knowledge: Knowledge) -> float:
    """Return the expected share of the free memory slices that the next requested unit cannot use, in [0, 1].

    0 means that any next unit can use all free slices, and is also the value where nothing is free; 1 means that it can
    use none. `mix` is the expected mix, as units by resource; where it is empty, each profile of the nodes' products
    is expected equally often. A slice that a device plugin offers serves its own profile only; on a GPU with DRA, what
    instances of the profile could still be created counts. Nodes of unknown geometry do not count.
    """
    nodes_with_geometry = [(node, geometry) for node in nodes if (geometry := _geometry(node, knowledge))]
    whole, mig_prefix = knowledge.families.mig_gpu, knowledge.families.mig_prefix
    weights = mix or {
        f"{mig_prefix}{slot.profile}": 1 for _, geometry in nodes_with_geometry for slot in distinct_profiles(geometry)
    }
    free = sum(_free(node, geometry, whole) for node, geometry in nodes_with_geometry)
    total = sum(weights.values())
    if not free or not total:
        return 0.0
    usable_slices = sum(
        weight * _usable(node, geometry, name, whole)
        for name, weight in weights.items()
        for node, geometry in nodes_with_geometry
    )
    return 1.0 - usable_slices / (free * total)


def _geometry(node: Node, knowledge: Knowledge) -> Geometry | None:
    return knowledge.geometry.get(node.node_class.product or "")


def _free(node: Node, geometry: Geometry, whole: str) -> int:
    if node.free.layouts is not None:
        occupied = (layout.geometry.occupancy(layout.taken) for layout in node.free.layouts)
        return sum(geometry.memory_total - gpu.taken_memory.bit_count() for gpu in occupied)
    return sum(_offered(node, geometry, name, whole) for name in node.free.units)


def _usable(node: Node, geometry: Geometry, resource: str, whole: str) -> int:
    """Count the free memory slices that units of a resource could use; `whole` is the resource of whole GPUs."""
    if node.free.layouts is None:
        return _offered(node, geometry, resource, whole)
    slot = geometry.slots.get(profile_of(resource) or "")
    occupied = (layout.geometry.occupancy(layout.taken) for layout in node.free.layouts)
    if resource == whole:
        return sum(geometry.memory_total for gpu in occupied if not gpu.taken_memory)
    return sum(usable_memory(slot, gpu.taken_memory, gpu.free_compute) for gpu in occupied) if slot else 0


def _offered(node: Node, geometry: Geometry, resource: str, whole: str) -> int:
    return max(0, node.free.units.get(resource, 0)) * _size(node.node_class, geometry, resource, whole)


def _size(node_class: NodeClass, geometry: Geometry, resource: str, whole: str) -> int:
    """Return the memory slices of one unit; 0 for a resource that is neither GPU nor slice, such as a share."""
    single = node_class.mig_profile if resource == whole and node_class.sharing is Sharing.MIG else None
    slot = geometry.slots.get(single or profile_of(resource) or "")
    if slot is not None and not resource.endswith(".shared"):
        return slot.length
    is_whole_gpu = resource == whole and node_class.sharing in (Sharing.Exclusive, Sharing.Unknown)
    return geometry.memory_total if is_whole_gpu else 0
