# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a selector, in words that need no knowledge of CEL."""

from fractions import Fraction

from app.dra.cel_comparisons import Comparison
from app.dra.cel_errors import EvaluationError
from app.dra.cel_facts import Read
from app.dra.cel_values import parse_semver
from app.dra.selection import ClaimError, shortened
from app.dra.selectors import Part, written_conditions
from app.dra.words import failing_parts, name_of
from app.kube.devices import Device, SemanticVersion

ORDERED = ("==", "!=", "<", "<=", ">", ">=")


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


def _failure(part: Part, device: Device) -> str:
    """Say why a condition fails on a device."""
    missing = next((read for read, value in part.facts if value is None and read.name), None)
    if missing is not None:
        return f"a selector reads {full_name(missing)}, which some devices of driver {device.driver} do not have"
    comparison = part.comparison
    value = next((value for read, value in part.facts if comparison and read == comparison.fact), None)
    mismatch = _mismatch(comparison, value) if comparison is not None else ""
    return f"a selector fails, as {mismatch or part.judgement.error}"


def full_name(read: Read) -> str:
    """Name a fact with its domain and with what kind of fact it is."""
    return f"{'capacity' if read.group == 'capacity' else 'attribute'} {read.name}"


def _mismatch(comparison: Comparison, value: object) -> str:
    """Say that a fact is of another type than what it is compared with; "" where that is not what is wrong."""
    name, wanted = name_of(comparison.fact), comparison.wanted
    written = f"the text '{wanted}'" if isinstance(wanted, str) else f"the number {wanted}"
    if isinstance(value, SemanticVersion):
        if isinstance(wanted, str) and not _is_version(wanted):
            return f"'{wanted}' is no semantic version, which is three numbers without leading zeros"
        return f"{name} is a version and is compared with {written}"
    if isinstance(value, Fraction):
        return f"{name} is a quantity and is compared with {written}"
    return ""


def _is_version(text: str) -> bool:
    try:
        parse_semver(text)
    except EvaluationError:
        return False
    return True
