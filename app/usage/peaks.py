# SPDX-License-Identifier: Apache-2.0
"""The peaks of workloads: the most memory, and the largest part of a GPU, that any of their pods had in use."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from app.knowledge.mig_geometry import Geometry
from app.usage.history import KNOWN_SHARE, History, Hold
from app.usage.prices import product_form

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
    history: History, workload_of: Callable[[Hold], str | None], geometry: Mapping[str, Geometry]
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
