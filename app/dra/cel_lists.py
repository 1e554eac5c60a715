# SPDX-License-Identifier: Apache-2.0
"""CEL's functions of lists, sets, optional values, quantities and versions.

They are those of google/cel-go ext/lists.go, ext/sets.go and cel/library.go, and of Kubernetes' libraries (kubernetes
staging/src/k8s.io/apiserver/pkg/cel/library lists.go, quantity.go, semverlib.go).
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

from app.dra.cel_operators import add_numbers
from app.dra.cel_quantities import Quantity, read_quantity
from app.dra.cel_syntax import EvaluationError, NotJudged
from app.dra.cel_values import NONE, Optional, Semver, compare, contains, equal, parse_semver

LONGEST_LIST = 48
"""includes() takes no longer list (resource/v1 types.go, ResourceSliceMaxAttributeValuesPerDevice)."""


def includes(target: Any, item: Any) -> bool:
    """Tell whether an attribute is a value, or a list with it (dynamic-resource-allocation/cel/compile.go).

    Raises EvaluationError.
    """
    if not isinstance(target, tuple):
        return contains((item,), target)
    for element in target[:LONGEST_LIST]:
        if _equals(element, item):
            return True
    if len(target) > LONGEST_LIST:
        raise EvaluationError(f"'includes' function cannot be applied to lists longer than {LONGEST_LIST} values")
    return False


def _equals(left: Any, right: Any) -> bool:
    """Compare values; those that cannot be compared are unequal."""
    try:
        return equal(left, right)
    except EvaluationError:
        return False


def index_of(values: tuple[Any, ...], item: Any) -> int:
    """Return the index of the first element that equals an item, or -1."""
    return next((index for index, value in enumerate(values) if _equals(value, item)), -1)


def last_index_of(values: tuple[Any, ...], item: Any) -> int:
    """Return the index of the last element that equals an item, or -1."""
    return next((index for index in reversed(range(len(values))) if _equals(values[index], item)), -1)


def is_sorted(values: tuple[Any, ...]) -> bool:
    """Tell whether no element is less than the one before it.

    Raises EvaluationError.
    """
    return all(compare(left, right, "isSorted") <= 0 for left, right in pairwise(values))


def total_from(zero: Any) -> Callable[[tuple[Any, ...]], Any]:
    """Make the sum of numbers of the type of `zero`."""

    def total(values: tuple[Any, ...]) -> Any:
        result = zero
        for value in values:
            result = add_numbers(result, value)
        return result

    return total


def least(values: tuple[Any, ...]) -> Any:
    """Return the least element.

    Raises EvaluationError.
    """
    return _extreme(values, "min", 1)


def greatest(values: tuple[Any, ...]) -> Any:
    """Return the greatest element.

    Raises EvaluationError.
    """
    return _extreme(values, "max", -1)


def _extreme(values: tuple[Any, ...], name: str, replaced: int) -> Any:
    if not values:
        raise EvaluationError(f"{name} called on empty list")
    result = values[0]
    for value in values[1:]:
        if compare(result, value, name) == replaced:
            result = value
    return result


def cut(values: tuple[Any, ...], start: int, end: int) -> tuple[Any, ...]:
    """Return the elements from `start` up to `end`.

    Raises EvaluationError.
    """
    if not 0 <= start <= end <= len(values):
        raise EvaluationError(f"cannot slice({start}, {end}), list is length {len(values)}")
    return values[start:end]


def distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the elements without those that equal one before them."""
    kept: list[Any] = []
    for value in values:
        if not any(_equals(value, other) for other in kept):
            kept.append(value)
    return tuple(kept)


def first(values: tuple[Any, ...]) -> Optional:
    """Return the first element, if there is one."""
    return Optional(values[0]) if values else NONE


def last(values: tuple[Any, ...]) -> Optional:
    """Return the last element, if there is one."""
    return Optional(values[-1]) if values else NONE


def set_contains(values: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Tell whether all others are among the values."""
    return all(contains(values, other) for other in others)


def set_equivalent(values: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Tell whether two lists have the same elements."""
    return set_contains(values, others) and set_contains(others, values)


def set_intersects(values: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Tell whether two lists share an element."""
    return any(contains(others, value) for value in values)


def optional_value(optional: Optional) -> Any:
    """Return the value.

    Raises EvaluationError if there is none.
    """
    if optional.value is None:
        raise EvaluationError("optional.none() dereference")
    return optional.value


def has_value(optional: Optional) -> bool:
    """Tell whether there is a value."""
    return optional.value is not None


def optional_of(value: Any) -> Optional:
    """Make an optional value.

    Raises NotJudged for null.
    """
    if value is None:
        raise NotJudged("an optional null")
    return Optional(value)


def optional_of_non_zero(value: Any) -> Optional:
    """Make an optional value, without one for false, zero and what is empty."""
    empty = value is None or (isinstance(value, (bool, int, float, str, bytes, tuple, Mapping)) and not value)
    return NONE if empty or value == NONE else Optional(value)


def unwrap(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of those optional values that have one.

    Raises EvaluationError.
    """
    if not all(isinstance(value, Optional) for value in values):
        raise EvaluationError("value is not optional")
    return tuple(value.value for value in values if value.value is not None)


def is_quantity(text: str) -> bool:
    """Tell whether a text is a quantity.

    Raises NotJudged.
    """
    try:
        read_quantity(text)
    except EvaluationError:
        return False
    return True


def compare_to(left: Any, right: Any) -> int:
    """Order two quantities, or two versions, -1, 0 or 1."""
    one, other = (left.value, right.value) if isinstance(left, Quantity) else (left, right)
    return int(one > other) - int(one < other)


def add_quantities(left: Quantity, right: Any) -> Quantity:
    """Add a quantity or an integer to a quantity.

    Raises NotJudged.
    """
    return left.plus(_amount(right), 1)


def subtract_quantities(left: Quantity, right: Any) -> Quantity:
    """Subtract a quantity or an integer from a quantity.

    Raises NotJudged.
    """
    return left.plus(_amount(right), -1)


def _amount(value: Any) -> Quantity:
    return value if isinstance(value, Quantity) else Quantity(Fraction(value), (value, 0))


def sign(quantity: Quantity) -> int:
    """Return -1, 0 or 1."""
    return (quantity.value > 0) - (quantity.value < 0)


def as_integer(quantity: Quantity) -> int:
    """Return the quantity as an integer, if Kubernetes stores it as one.

    Raises EvaluationError, NotJudged.
    """
    whole = quantity.integer()
    if whole is None:
        raise EvaluationError("cannot convert value to integer")
    return whole


def as_float(quantity: Quantity) -> float:
    """Return the quantity as a double; it is judged where Kubernetes stores an integer.

    Raises NotJudged.
    """
    if quantity.stored is None or quantity.stored[1] != 0:
        raise NotJudged("asApproximateFloat() of a quantity that is stored as a decimal")
    return float(quantity.stored[0])


def is_semver(text: str, normalize: bool = False) -> bool:
    """Tell whether a text is a semantic version."""
    try:
        read_semver(text, normalize)
    except EvaluationError:
        return False
    return True


def read_semver(text: str, normalize: bool = False) -> Semver:
    """Read a version; normalizing cuts a leading v and leading zeros, and adds missing fields (semverlib.go).

    Raises EvaluationError.
    """
    if not normalize:
        return parse_semver(text)
    parts = [_normalized(part) for part in text.removeprefix("v").split(".", 2)]
    if len(parts) < 3 and ("+" in parts[-1] or "-" in parts[-1]):
        raise EvaluationError("short version cannot contain PreRelease/Build meta data")
    return parse_semver(".".join([*parts, "0", "0"][:3]))


def _normalized(part: str) -> str:
    if len(part) < 2:
        return part
    stripped = part.lstrip("0")
    return stripped if stripped[:1].isascii() and stripped[:1].isdecimal() else "0" + stripped
