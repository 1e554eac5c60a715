# SPDX-License-Identifier: Apache-2.0
"""The units that a fleet offers, and the peaks that a smaller unit must carry.

Units are whole GPUs, MIG slices and named shares, with their memory and part of a GPU. A peak is the most memory, and
the largest part of a GPU, that any pod of a workload had in use.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.knowledge.mig_geometry import Geometry
from app.knowledge.mig_profiles import profile_of
from app.knowledge.products import normal_form
from app.knowledge.tables import Knowledge
from app.nodes.model import SHARED_UNITS, SHARES, Node, NodeClass, Sharing
from app.usage.queries import KNOWN_SHARE
from app.usage.table import MINUTE, GPUUse, Hold


def product_form(model: str) -> str:
    """Reduce a product to its normal form; DCGM writes blanks where labels of nodes have hyphens."""
    return normal_form("-".join(model.split()))


LEAST_HOURS = 24.0
"""Hours of known use from which a workload is judged: a day, since use follows the hours of people. A guess."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The peak of a workload over `hours` of known use.

    `memory_mib` is the most memory that one unit had in use. `part` is the largest part of a GPU of `product` (in
    normal form) that computed at a time: the share of its multiprocessors where that is known, else of time, and then
    any moment at full activity counts as the whole unit.
    """

    product: str
    hours: float
    memory_mib: float
    part: float


@dataclass(frozen=True, slots=True)
class Unsized:
    """A workload whose size is left as it is, and why."""

    workload: str
    why: str


def peaks_of(
    use: GPUUse, workload_of: Callable[[str], str | None], geometry: Mapping[str, Geometry]
) -> Mapping[str, Peak | Unsized]:
    """Give the peak of each workload. Its holds must be unshared, of one product, and known nearly all the time."""
    holds: dict[str, list[Hold]] = {}
    for hold in use.holds:
        if name := workload_of(hold.key):
            holds.setdefault(name, []).append(hold)
    return {name: _peak(name, some, geometry) for name, some in holds.items()}


def _peak(workload: str, holds: list[Hold], geometry: Mapping[str, Geometry]) -> Peak | Unsized:
    held, known, memory_known = (
        sum(minutes) / MINUTE
        for minutes in zip(*((hold.held, hold.known, hold.memory_known) for hold in holds), strict=True)
    )
    products = {product_form(hold.model) for hold in holds if hold.model}
    memory = [hold.memory_mib for hold in holds if hold.memory_mib is not None]
    parts = [_part(hold, geometry) for hold in holds]
    if any(hold.shared for hold in holds):
        return Unsized(workload, "it shares a GPU, whose use cannot be attributed to one pod")
    if known < LEAST_HOURS:
        return Unsized(workload, f"its use is known for {known:.1f} h, wants {LEAST_HOURS:.0f} h")
    if min(known, memory_known) < KNOWN_SHARE * held or not memory:
        return Unsized(workload, "too much of its use is unknown")
    if len(products) != 1:
        return Unsized(workload, "it ran on GPUs of several products, or of an unknown one")
    known_parts = [part for part in parts if part is not None]
    if len(known_parts) < len(parts):
        return Unsized(workload, "the part of the GPU that its slice is, or its activity, is unknown")
    return Peak(products.pop(), known, max(memory), max(known_parts))


def _part(hold: Hold, geometry: Mapping[str, Geometry]) -> float | None:
    """Give the largest part of the GPU that a hold used; None where it is unknown."""
    own = compute_part(geometry.get(product_form(hold.model)), hold.profile) if hold.profile else 1.0
    return None if hold.part is None or own is None else hold.part * own


def compute_part(geometry: Geometry | None, profile: str) -> float | None:
    """Give the part of a GPU's compute slices that a MIG profile has; None for an unknown product or profile."""
    slot = geometry.slots.get(profile.replace("+", ".")) if geometry else None
    return slot.compute / geometry.compute_total if geometry and slot else None


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


def smaller_units(units: Sequence[OfferedUnit], peak: Peak, own: OfferedUnit) -> tuple[OfferedUnit, ...]:
    """List the units of the workload's product that carry its peak with a margin in less memory, the smallest first.

    A share of one product says nothing of another. Of equal units those that are not shared come first.
    """
    part, memory_mib = min(own.part, peak.part * (1 + MARGIN)), peak.memory_mib * (1 + MARGIN)
    smaller = (
        unit
        for unit in units
        if unit.product == own.product and unit.part >= part and memory_mib <= unit.memory_mib < own.memory_mib
    )
    return tuple(sorted(smaller, key=lambda unit: (unit.memory_mib, unit.shared, unit.resource)))


def product_labels(units: Iterable[OfferedUnit], knowledge: Knowledge) -> Mapping[str, str]:
    """Map the products of units in normal form to their labels."""
    rows = knowledge.products.by_form
    return {unit.product: rows[unit.product].label if unit.product in rows else unit.product for unit in units}
