# SPDX-License-Identifier: Apache-2.0
"""The units that a fleet offers, their prices in money per hour, and the peaks that a smaller unit must carry.

Units are whole GPUs, MIG slices and named shares, with their memory and part of a GPU. A peak is the most memory, and
the largest part of a GPU, that any pod of a workload had in use. Prices are by product and hour, as an operator gives
them.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.knowledge.mig_geometry import Geometry
from app.knowledge.mig_profiles import profile_of
from app.knowledge.products import normal_form
from app.knowledge.tables import Knowledge
from app.nodes.model import SHARED_UNITS, SHARES, Node, NodeClass, Sharing
from app.usage.history import KNOWN_SHARE, Hold, UseHistory
from app.values.errors import BadInput

MOST_PRODUCTS = 1_000
"""Products of a file; the table of products has some hundred."""
LONGEST_CURRENCY = 16
FIELDS = {"currency", "products"}


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of an hour. `gpus` are by product in normal form, `slices` by product and MIG profile.

    `speeds` compare products: how fast one is beside another, in any unit. Only the operator can say that. A slice
    without a price of its own costs its part of the GPU: the larger of its parts of the memory slices and of the
    compute slices (`geometry`). None is unknown, and never guessed.
    """

    currency: str | None = None
    gpus: Mapping[str, float] = field(default_factory=dict)
    slices: Mapping[tuple[str, str], float] = field(default_factory=dict)
    geometry: Mapping[str, Geometry] = field(default_factory=dict)
    speeds: Mapping[str, float] = field(default_factory=dict)

    def per_hour(self, model: str, profile: str) -> float | None:
        """Give the price of an hour of a GPU, or of a slice of it; `model` is as labels or DCGM write it."""
        product = product_form(model)
        whole = self.gpus.get(product)
        if not profile:
            return whole
        own = self.slices.get((product, profile))
        part = part_of_gpu(self.geometry.get(product), profile)
        return own if own is not None else whole * part if whole is not None and part is not None else None


NO_PRICES = Prices()


def product_form(model: str) -> str:
    """Reduce a product to its normal form; DCGM writes blanks where labels of nodes have hyphens."""
    return normal_form("-".join(model.split()))


def part_of_gpu(geometry: Geometry | None, profile: str) -> float | None:
    """Give the part of a GPU that a slice takes from others; None for an unknown product or profile."""
    slot = geometry.slots.get(profile.replace("+", ".")) if geometry else None
    return (
        max(slot.length / geometry.memory_total, slot.compute / geometry.compute_total) if geometry and slot else None
    )


def read_prices(document: Any, geometry: Mapping[str, Geometry], where: str) -> Prices:
    """Read a document of prices: `currency`, and `products` by label, each a price, or a mapping.

    The mapping has the price of a whole one (`gpu`), of slices by profile, and the product's `speed` beside others.

    Raises BadInput. `where` names the file.
    """
    if not isinstance(document, dict) or not document.keys() <= FIELDS:
        raise BadInput(f"{where}: wants a mapping with currency and products")
    currency, products = document.get("currency", ""), document.get("products")
    if not isinstance(currency, str) or len(currency) > LONGEST_CURRENCY or not currency.isprintable():
        raise BadInput(f"{where}: currency: wants at most {LONGEST_CURRENCY} characters, such as EUR")
    if not isinstance(products, dict) or not products or len(products) > MOST_PRODUCTS:
        raise BadInput(f"{where}: products: wants 1 to {MOST_PRODUCTS} products with the price of an hour")
    gpus, slices, speeds = {}, {}, {}
    for name, value in products.items():
        product, inside = product_form(str(name)), f"{where}: products: {str(name)[:60]}"
        rows = value if isinstance(value, dict) else {"gpu": value}
        for part, price in rows.items():
            amount = _price(price, f"{inside}: {str(part)[:20]}")
            if part == "gpu":
                gpus[product] = amount
            elif part == "speed":
                speeds[product] = amount
            else:
                slices[product, str(part).replace("+", ".")] = amount
    if 0 in speeds.values():
        raise BadInput(f"{where}: speed: got 0, wants a number such as 1 or 2.5")
    return Prices(currency, gpus, slices, geometry, speeds)


def _price(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise BadInput(f"{where}: got {str(value)[:20]!r}, wants the price of an hour, such as 2.5")
    return float(value)


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
    history: UseHistory, workload_of: Callable[[Hold], str | None], geometry: Mapping[str, Geometry]
) -> Mapping[str, Peak | Unsized]:
    """Give the peak of each workload. Its holds must be unshared, of one product, and known nearly all the time."""
    holds: dict[str, list[Hold]] = {}
    for hold in history.holds:
        if name := workload_of(hold):
            holds.setdefault(name, []).append(hold)
    return {name: _peak(name, some, geometry) for name, some in holds.items()}


def _peak(workload: str, holds: list[Hold], geometry: Mapping[str, Geometry]) -> Peak | Unsized:
    windows = [window for hold in holds for window in hold.windows]
    held, known = (
        sum(values) / 60 for values in zip(*((window.held, window.known) for window in windows), strict=True)
    )
    products = {product_form(hold.model) for hold in holds if hold.model}
    parts = [_part(hold, geometry) for hold in holds]
    memory = [window.memory_mib for window in windows if window.memory_mib is not None]
    if any(hold.shared for hold in holds):
        return Unsized(workload, "it shares a GPU, whose use cannot be attributed to one pod")
    if known < LEAST_HOURS:
        return Unsized(workload, f"its use is known for {known:.1f} h, wants {LEAST_HOURS:.0f} h")
    if known < KNOWN_SHARE * held or len(memory) < KNOWN_SHARE * len(windows):
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
    extents = _complete(window.extent for window in hold.windows if window.known)
    shares = extents or _complete(window.peak for window in hold.windows if window.known)
    return max(shares) * own if shares and own is not None else None


def _complete(values: Iterable[float | None]) -> list[float]:
    """Give all values, or none where one is unknown."""
    some = list(values)
    return [value for value in some if value is not None] if None not in some else []


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
