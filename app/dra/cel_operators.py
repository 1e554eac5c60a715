# SPDX-License-Identifier: Apache-2.0
"""CEL's operators and conversions (google/cel-go common/types int.go, uint.go, double.go, string.go, list.go).

All raise EvaluationError where CEL has an error, and NotJudged where it is not known what CEL would give.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from app.dra.cel_syntax import EvaluationError, NotJudged
from app.dra.cel_values import INT_MAX, INT_MIN, UINT_MAX, TypeValue, UInt, compare, contains, find, kind, no_overload

Operation = Callable[[Any, Any], Any]


def _checked(value: int, like: int) -> int:
    if type(like) is UInt:
        if not 0 <= value <= UINT_MAX:
            raise EvaluationError("unsigned integer overflow")
        return UInt(value)
    if not INT_MIN <= value <= INT_MAX:
        raise EvaluationError("integer overflow")
    return value


def _arithmetic(function: str, whole: Operation, double: Operation) -> Operation:
    """Make an operator for two numbers of one type."""

    def calculate(left: Any, right: Any) -> Any:
        if type(left) is not type(right) or type(left) not in (int, UInt, float):
            raise no_overload(function, left, right)
        return double(left, right) if type(left) is float else _checked(whole(left, right), left)

    return calculate


def _divide(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("division by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("modulus by zero")
    if left == INT_MIN and right == -1:
        raise EvaluationError("integer overflow")
    return left - right * _divide(left, right)


def _divide_doubles(left: float, right: float) -> float:
    if right:
        return left / right
    return math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1, right)


def _no_doubles(left: float, right: float) -> Any:
    raise no_overload("_%_", left, right)


add_numbers = _arithmetic("_+_", lambda left, right: left + right, lambda left, right: left + right)
subtract = _arithmetic("_-_", lambda left, right: left - right, lambda left, right: left - right)
multiply = _arithmetic("_*_", lambda left, right: left * right, lambda left, right: left * right)
divide = _arithmetic("_/_", _divide, _divide_doubles)
remainder = _arithmetic("_%_", _remainder, _no_doubles)


def add(left: Any, right: Any) -> Any:
    """Add two numbers, or put two strings, bytes or lists together."""
    if type(left) is type(right) and isinstance(left, (str, bytes, tuple)):
        return left + right
    return add_numbers(left, right)


def negate(value: Any) -> Any:
    """Negate a number."""
    if type(value) is float:
        return -value
    if type(value) is not int:
        raise no_overload("-_", value)
    return _checked(-value, value)


def invert(value: Any) -> bool:
    """Negate a bool."""
    if type(value) is not bool:
        raise no_overload("!_", value)
    return not value


def _ordered(function: str, wanted: tuple[int, ...]) -> Operation:
    return lambda left, right: compare(left, right, function) in wanted


less, less_equal = _ordered("_<_", (-1,)), _ordered("_<=_", (-1, 0))
greater, greater_equal = _ordered("_>_", (1,)), _ordered("_>=_", (1, 0))


def is_in(item: Any, container: Any) -> bool:
    """Tell whether an item is in a list, or is a key of a map."""
    if isinstance(container, tuple):
        return contains(container, item)
    if isinstance(container, Mapping):
        return type(item) is str and item in container
    raise no_overload("@in", item, container)


def size(value: Any) -> int:
    """Count characters, bytes, elements or keys."""
    if isinstance(value, (str, bytes, tuple, Mapping)):
        return len(value)
    raise no_overload("size", value)


def index(container: Any, key: Any) -> Any:
    """Look up an element or a key."""
    present, value = find(container, key)
    if not present:
        raise EvaluationError(f"index out of bounds: {key}" if isinstance(container, tuple) else f"no such key: {key}")
    return value


def type_of(value: Any) -> TypeValue:
    """Return the type of a value."""
    return TypeValue(kind(value))


def to_int(value: Any) -> int:
    """Convert a number or a string; a double is cut."""
    if type(value) is float:
        if not -(2.0**63) < value < 2.0**63:
            raise EvaluationError("integer overflow")
        return int(value)
    if type(value) is str:
        return _checked(_whole(value, "int", signed=True), 0)
    return _checked(int(value), 0)


def to_uint(value: Any) -> int:
    """Convert a number or a string; a double is cut."""
    if type(value) is float:
        if not 0 <= value < 2.0**64:
            raise EvaluationError("unsigned integer overflow")
        return UInt(value)
    if type(value) is str:
        return _checked(_whole(value, "uint", signed=False), UInt(0))
    return _checked(int(value), UInt(0))


def _whole(text: str, name: str, signed: bool) -> int:
    digits = text[1:] if signed and text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 40:
        raise EvaluationError(f"type conversion error from 'string' to '{name}'")
    return int(text)


def to_double(value: Any) -> float:
    """Convert a number; of strings only plain decimals are judged."""
    if type(value) is not str:
        return float(value)
    if not value.isascii() or not any(character.isdigit() for character in value) or set(value) & set("xXpP_iInN "):
        raise NotJudged("double() of such a text")
    try:
        number = float(value)
    except ValueError:
        raise EvaluationError("type conversion error from 'string' to 'double'") from None
    if math.isinf(number):
        raise EvaluationError("type conversion error from 'string' to 'double'")
    return number


def to_string(value: Any) -> str:
    """Convert a bool, an integer or bytes; how Go writes a double is not judged."""
    if type(value) is float:
        raise NotJudged("string() of a double")
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None
    return str(value)


def to_bool(value: Any) -> bool:
    """Convert a text as Go's strconv.ParseBool does."""
    if type(value) is bool:
        return value
    if value in ("1", "t", "T", "TRUE", "true", "True"):
        return True
    if value in ("0", "f", "F", "FALSE", "false", "False"):
        return False
    raise EvaluationError("type conversion error from 'string' to 'bool'")
