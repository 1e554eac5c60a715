# SPDX-License-Identifier: Apache-2.0
"""Selectors in words that need no knowledge of CEL: what a condition wants, what devices have, and what is wrong."""

from collections.abc import Sequence
from fractions import Fraction

from app.dra.cel_comparisons import Comparison
from app.dra.cel_facts import Read
from app.dra.cel_functions import is_semver
from app.dra.cel_syntax import SelectorError
from app.dra.selectors import ClaimError, SelectorPart, compile_selector, shortened, written_conditions
from app.kube.device_models import SemanticVersion
from app.kube.devices import Device, show
from app.values.errors import QuantityError
from app.values.quantity import parse_quantity

SUFFIXES = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def failing_parts(expression: str, device: Device) -> tuple[SelectorPart, ...]:
    """Return the conditions of a selector that a device does not meet; none for an expression that is not valid."""
    try:
        return compile_selector(expression).failing_parts(device)
    except SelectorError:
        return ()


def nearest(expression: str, devices: Sequence[Device]) -> Device | None:
    """Return the device that fails the fewest conditions, and of those of one size the one closest to it."""
    return min(devices, key=lambda device: _distance(failing_parts(expression, device)), default=None)


def _distance(parts: Sequence[SelectorPart]) -> tuple[int, float]:
    return len(parts), sum(gap(part, value_of(part)) for part in parts)


def gap(part: SelectorPart, value: object) -> float:
    """Measure how far a number is from what a condition wants of it, as a share; 1 for what is no number."""
    wanted = part.comparison and number_of(part.comparison.wanted)
    if not isinstance(value, int | Fraction) or isinstance(value, bool) or not wanted:
        return 1.0
    return min(1.0, abs(float(value - wanted)) / abs(float(wanted)))


def value_of(part: SelectorPart) -> object:
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


def condition(part: SelectorPart) -> str:
    """Write a condition as `memory >= 80Gi` where it has such a form, and as it is elsewhere."""
    if part.comparison is None:
        return shortened(part.text)
    return f"{name_of(part.comparison.fact)} {part.comparison}"


def has_instead(part: SelectorPart) -> str:
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


def plain_error(error: ClaimError) -> str:
    """Say what is wrong with a claim; no device is named, so that devices with the same fault have the same words."""
    if not error.expression:
        return str(error)
    written = shortened(error.expression)
    if error.device is None:
        return f"{_not_valid(error)}: {written}"
    failed = (part for part in failing_parts(error.expression, error.device) if part.judgement.error)
    part = next(failed, None)
    return f"{_failure(part, error.device)}: {written}" if part is not None else str(error)


def _not_valid(error: ClaimError) -> str:
    """Say why a selector does not compile; the type of a capacity is what people most often get wrong."""
    for _, comparison in written_conditions(error.expression):
        if comparison is not None and comparison.fact.group == "capacity":
            mismatch = _mismatch(comparison, Fraction())
            if mismatch:
                return f"a selector is not valid, as {mismatch}"
    return "a selector is not valid"


def _failure(part: SelectorPart, device: Device) -> str:
    """Say why a condition fails on a device."""
    missing = next((read for read, value in part.facts if value is None and read.name), None)
    if missing is not None:
        fact = f"{'capacity' if missing.group == 'capacity' else 'attribute'} {missing.name}"
        lacking = f"which some devices of driver {device.driver} do not have"
        return f"a selector reads {fact}, {lacking}; check its name, or test has() before it is read"
    comparison = part.comparison
    mismatch = _mismatch(comparison, value_of(part)) if comparison is not None else ""
    return f"a selector fails, as {mismatch or part.judgement.error}"


def _mismatch(comparison: Comparison, value: object) -> str:
    """Say that a fact is of another type than what it is compared with; "" where that is not what is wrong."""
    name, wanted = name_of(comparison.fact), comparison.wanted
    written = f"the text '{wanted}'" if isinstance(wanted, str) else f"the number {wanted}"
    if isinstance(value, SemanticVersion):
        if isinstance(wanted, str) and not is_semver(wanted):
            return f"'{wanted}' is no semantic version, which is three numbers without leading zeros"
        return f"{name} is a version and is compared with {written}; versions are compared by compareTo(semver(…))"
    if isinstance(value, Fraction):
        return f"{name} is a quantity and is compared with {written}; quantities are compared by compareTo(quantity(…))"
    return ""
