# SPDX-License-Identifier: Apache-2.0
"""The units that a fleet offers: whole GPUs, MIG slices and named shares, with their memory and part of a GPU."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.knowledge.mig_profiles import profile_of
from app.knowledge.tables import Knowledge
from app.nodes.model import SHARED_UNITS, SHARES, Node, NodeClass, Sharing
from app.usage.peaks import Peak, compute_part
from app.usage.prices import Prices

MARGIN = 0.2
"""The room above the peak, of memory and of computation, as a share of it. A guess: a peak that was seen is not the
highest one possible, and a slice has a little less memory than its name says."""


@dataclass(frozen=True, slots=True)
class OfferedUnit:
    """One unit of a resource on nodes of one product.

    `memory_mib` is the least memory of it on any of these nodes, `part` its part of the GPU's computation. `shared` is
    true where pods can use memory and time of each other's shares.
    """

    resource: str
    product: str
    memory_mib: int
    part: float
    shared: bool = False


def offered_units(nodes: Iterable[Node], knowledge: Knowledge) -> tuple[OfferedUnit, ...]:
    """List the units that nodes offer; a unit whose product, memory or part of the GPU is unknown is left out."""
    units: dict[tuple[str, str], OfferedUnit] = {}
    for node_class in {node.node_class for node in nodes}:
        for resource, amount in node_class.offered:
            unit = unit_on(node_class, resource, knowledge) if amount > 0 else None
            if unit is not None:
                key = unit.resource, unit.product
                units[key] = min(unit, units.get(key, unit), key=lambda one: (one.memory_mib, one.part))
    return tuple(units[key] for key in sorted(units))


def unit_on(node_class: NodeClass, resource: str, knowledge: Knowledge) -> OfferedUnit | None:
    """Describe a unit of a resource on nodes of a class; None where it is unknown, or no pod could ask for it alone.

    Shares count where they have a name of their own (`.shared`): a pod cannot ask for a share of `nvidia.com/gpu`.
    """
    product, kind = node_class.product, node_class.unit(resource)
    if product is None or node_class.several_models or node_class.stale or kind is Sharing.Unknown:
        return None
    if profile := profile_of(resource):
        size = node_class.slice_mib(profile) or getattr(knowledge.mig.size(product, profile), "memory_mib", None)
        part = compute_part(knowledge.geometry.get(product), profile)
        alone = kind is Sharing.Exclusive
        return OfferedUnit(resource, product, size, part) if size and part and alone else None
    if node_class.mig_profile or not node_class.memory_mib:
        return None
    if kind in SHARES:
        named = kind in SHARED_UNITS and resource.endswith(".shared")
        count = node_class.replicas_of(resource)
        memory = node_class.memory_mib // count
        return OfferedUnit(resource, product, memory, 1 / count, shared=True) if named and count > 1 else None
    return OfferedUnit(resource, product, node_class.memory_mib, 1.0)


def carries(unit: OfferedUnit, peak: Peak, own: OfferedUnit, prices: Prices) -> bool:
    """Tell whether a unit would have carried a peak with a margin; `own` is the unit that the workload has now.

    Products are compared by the operator's speeds alone: a share of one says nothing of another.
    """
    needed = min(own.part, peak.part * (1 + MARGIN))
    speeds = prices.speeds.get(own.product), prices.speeds.get(unit.product)
    if unit.product == own.product:
        enough = unit.part >= needed
    elif speeds[0] and speeds[1]:
        enough = unit.part * speeds[1] >= needed * speeds[0]
    else:
        return False
    return enough and unit.memory_mib >= peak.memory_mib * (1 + MARGIN)


def smaller_units(
    units: Sequence[OfferedUnit], peak: Peak, own: OfferedUnit, prices: Prices
) -> tuple[OfferedUnit, ...]:
    """List the units that carry a peak and are smaller than the workload's own, the smallest first.

    Smaller is cheaper, where all of them have a price; else it is less memory. Of equal ones those that are not shared
    come first.
    """
    carrying = [unit for unit in units if carries(unit, peak, own, prices)]
    costs = {unit: price_of(unit, prices) for unit in (*carrying, own)}
    priced = None not in costs.values()

    def size(unit: OfferedUnit) -> float:
        return (costs[unit] or 0.0) if priced else float(unit.memory_mib)

    smaller = (unit for unit in carrying if size(unit) < size(own))
    return tuple(sorted(smaller, key=lambda unit: (size(unit), unit.shared, unit.resource, unit.product)))


def price_of(unit: OfferedUnit, prices: Prices) -> float | None:
    """Give the price of an hour of a unit; None if it is unknown."""
    profile = profile_of(unit.resource) or ""
    whole = prices.per_hour(unit.product, profile)
    return whole if whole is None or profile else whole * unit.part


def product_labels(units: Iterable[OfferedUnit], knowledge: Knowledge) -> Mapping[str, str]:
    """Map the products of units in normal form to their labels."""
    rows = knowledge.products.by_form
    return {unit.product: rows[unit.product].label if unit.product in rows else unit.product for unit in units}
