# SPDX-License-Identifier: Apache-2.0
"""Selectors in words that need no knowledge of CEL: what a condition wants, and what the nearest device has."""

from collections.abc import Sequence
from fractions import Fraction

from app.dra.cel_errors import SelectorError
from app.dra.cel_facts import Read
from app.dra.selection import shortened
from app.dra.selectors import Part, compile_selector
from app.kube.devices import Device, SemanticVersion, show
from app.values.errors import QuantityError
from app.values.quantity import parse_quantity

SUFFIXES = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def failing_parts(expression: str, device: Device) -> tuple[Part, ...]:
    """Return the conditions of a selector that a device does not meet; none for an expression that is not valid."""
    try:
        return compile_selector(expression).failing_parts(device)
    except SelectorError:
        return ()


def nearest(expression: str, devices: Sequence[Device]) -> Device | None:
    """Return the device that fails the fewest conditions, and of those of one size the one closest to it."""
    return min(devices, key=lambda device: _distance(failing_parts(expression, device)), default=None)


def _distance(parts: Sequence[Part]) -> tuple[int, float]:
    return len(parts), sum(map(_gap, parts))


def _gap(part: Part) -> float:
    return gap(part, value_of(part))


def gap(part: Part, value: object) -> float:
    """Measure how far a number is from what a condition wants of it, as a share; 1 for what is no number."""
    wanted = part.comparison and number_of(part.comparison.wanted)
    if not isinstance(value, int | Fraction) or isinstance(value, bool) or not wanted:
        return 1.0
    return min(1.0, abs(float(value - wanted)) / abs(float(wanted)))


def value_of(part: Part) -> object:
    """Return what a device has of the fact that a condition compares; None if it has none, or compares none."""
    if part.comparison is None:
        return None
    return next((value for read, value in part.facts if read == part.comparison.fact), None)


def number_of(wanted: object) -> Fraction | None:
    """Read an integer, or the text of a quantity; None for anything else."""
    if isinstance(wanted, bool) or not isinstance(wanted, int | str):
        return None
    try:
        return Fraction(wanted) if isinstance(wanted, int) else parse_quantity(wanted)
    except QuantityError:
        return None


def unmet(expression: str, devices: Sequence[Device]) -> str:
    """Say which conditions of a selector the nearest of some devices does not meet, without what it has instead."""
    device = nearest(expression, devices)
    parts = failing_parts(expression, device) if device is not None else ()
    return " and ".join(map(condition, parts)) or shortened(expression)


def condition(part: Part) -> str:
    """Write a condition as `memory >= 80Gi` where it has such a form, and as it is elsewhere."""
    if part.comparison is None:
        return shortened(part.text)
    return f"{name_of(part.comparison.fact)} {part.comparison}"


def has_instead(part: Part) -> str:
    """Say what a device has of the facts that a condition reads."""
    facts = (f"{name_of(read)} {'is not there' if value is None else show_value(value)}" for read, value in part.facts)
    return ", ".join(facts)


def name_of(read: Read) -> str:
    """Name a fact without its domain."""
    return str(read).rpartition("/")[2]


def show_value(value: object) -> str:
    """Write a value for a person: quantities with a binary suffix where that is exact."""
    if isinstance(value, Fraction):
        suffix, unit = next((entry for entry in SUFFIXES if value and value % entry[1] == 0), ("", 1))
        return f"{value / unit}{suffix}"
    return value.text if isinstance(value, SemanticVersion) else show(value)
