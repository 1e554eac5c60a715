# SPDX-License-Identifier: Apache-2.0
"""Fragmentation of MIG nodes as one number: how much of what is free the next pod is expected not to be able to use.

By memory slices, and by the mix of what pods ask: F of Weng et al., "Beware of Fragmentation" (USENIX ATC '23, section
3), with slices instead of GPU shares.
"""

from collections.abc import Iterable, Mapping

from app.knowledge.geometry import Geometry
from app.knowledge.mig_profiles import RESOURCE_PREFIX, profile_of
from app.knowledge.tables import Knowledge
from app.nodes.model import Node, NodeClass, Sharing
from app.placement.mig_headroom import shapes, usable

WHOLE = "nvidia.com/gpu"


def fragmentation(nodes: Iterable[Node], asked: Mapping[str, int], knowledge: Knowledge) -> float:
    """Give the expected share of the free memory slices that the next unit asked cannot have, in [0, 1].

    0: whatever is asked next can have any of it; 1: nothing of it, or, where nothing is free, 0. `asked`: units by
    resource, the mix that is expected; empty: each profile of the nodes' products as often as any other. A slice that a
    device plugin offers serves its own profile alone; of a GPU that DRA carves, what instances of the profile could
    still take. Nodes whose geometry is not known do not count.
    """
    known = [(node, geometry) for node in nodes if (geometry := _geometry(node, knowledge))]
    weights = asked or {f"{RESOURCE_PREFIX}{slot.profile}": 1 for _, geometry in known for slot in shapes(geometry)}
    free = sum(_free(node, geometry) for node, geometry in known)
    total = sum(weights.values())
    if not free or not total:
        return 0.0
    can = sum(weight * _usable(node, geometry, name) for name, weight in weights.items() for node, geometry in known)
    return 1.0 - can / (free * total)


def _geometry(node: Node, knowledge: Knowledge) -> Geometry | None:
    return knowledge.geometry.get(node.node_class.product or "")


def _free(node: Node, geometry: Geometry) -> int:
    if node.free.layouts is not None:
        rooms = (layout.geometry.room(layout.taken) for layout in node.free.layouts)
        return sum(geometry.memory_total - room.memory.bit_count() for room in rooms)
    return sum(_offered(node, geometry, name) for name in node.free.units)


def _usable(node: Node, geometry: Geometry, resource: str) -> int:
    """Count the free memory slices that units of a resource could have."""
    if node.free.layouts is None:
        return _offered(node, geometry, resource)
    slot = geometry.slots.get(profile_of(resource) or "")
    rooms = (layout.geometry.room(layout.taken) for layout in node.free.layouts)
    if resource == WHOLE:
        return sum(geometry.memory_total for room in rooms if not room.memory)
    return sum(usable(slot, room.memory, room.compute) for room in rooms) if slot else 0


def _offered(node: Node, geometry: Geometry, resource: str) -> int:
    return max(0, node.free.units.get(resource, 0)) * _size(node.node_class, geometry, resource)


def _size(known: NodeClass, geometry: Geometry, resource: str) -> int:
    """Give the memory slices of one unit; 0 for what is no GPU and no slice, as shares are."""
    single = known.mig_profile if resource == WHOLE and known.sharing is Sharing.MIG else None
    slot = geometry.slots.get(single or profile_of(resource) or "")
    if slot is not None and not resource.endswith(".shared"):
        return slot.length
    return geometry.memory_total if resource == WHOLE and known.sharing in (Sharing.Exclusive, Sharing.Unknown) else 0
