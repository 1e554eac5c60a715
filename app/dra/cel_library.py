# SPDX-License-Identifier: Apache-2.0
"""What computes CEL's functions of strings, lists, sets, optional values, quantities and versions.

They are those of google/cel-go ext/strings.go (version 2), ext/lists.go, ext/sets.go and cel/library.go, and of
Kubernetes' libraries (kubernetes staging/src/k8s.io/apiserver/pkg/cel/library regex.go, lists.go, quantity.go,
semverlib.go). Go's regular expressions are RE2's, which take time linear to the text whatever the pattern
(docs/decisions/0036-evaluate-device-selectors-by-an-evaluator-of-our-own.md).

All raise EvaluationError where CEL has an error, and NotJudged where it is not known what CEL would give.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

import re2

from app.dra.cel_operators import add_numbers
from app.dra.cel_quantities import Quantity, read_quantity
from app.dra.cel_syntax import EvaluationError, NotJudged
from app.dra.cel_values import NONE, Optional, Semver, compare, contains, equal, parse_semver

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


@lru_cache(maxsize=512)
def compile_pattern(text: str) -> Any:
    """Compile a regular expression; one whose program is too large for RE2, which Go may take, is not judged."""
    if r"\C" in text:
        raise NotJudged(r"\C in a regular expression")
    try:
        return re2.compile(text, _OPTIONS)
    except re2.error as problem:
        if "too large" in str(problem):
            raise NotJudged("a regular expression so large") from None
        said = problem.args[0] if problem.args else problem
        words = said.decode(errors="replace") if isinstance(said, bytes) else said
        raise EvaluationError(f"error parsing regexp: {words}") from None


def matches(text: str, pattern: str) -> bool:
    """Tell whether a regular expression matches anywhere in a text."""
    return compile_pattern(pattern).search(text) is not None


def find_first(text: str, pattern: str) -> str:
    """Return the first match of a regular expression, or an empty text."""
    match = compile_pattern(pattern).search(text)
    return match.group(0) if match else ""


def char_at(text: str, index: int) -> str:
    """Return the character at an index; behind the last it is empty."""
    _check_index(index, len(text))
    return text[index : index + 1]


def _check_index(index: int, length: int) -> None:
    if not 0 <= index <= length:
        raise EvaluationError(f"index out of range: {index}")


def index_in_text(text: str, part: str, offset: int = 0) -> int:
    """Return where a part begins at or after an offset, or -1."""
    if not part:
        return offset
    if offset < 0:
        raise EvaluationError(f"index out of range: {offset}")
    return text.find(part, offset)


def last_index_in_text(text: str, part: str) -> int:
    """Return where a part begins last, or -1.

    As in cel-go, a part that is longer in characters than the text, but not in bytes, is an error.
    """
    if not part:
        return len(text)
    if len(text.encode()) < len(part.encode()):
        return -1
    return last_index_before(text, part, len(text) - 1)


def last_index_before(text: str, part: str, offset: int) -> int:
    """Return where a part begins last, but not after an offset, or -1."""
    if not part:
        return offset
    if offset < 0:
        raise EvaluationError(f"index out of range: {offset}")
    return text.rfind(part, 0, offset + len(part)) if offset < len(text) else -1


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    """Replace the first `count` occurrences; all, if it is negative."""
    return text.replace(old, new, max(count, -1))


def split(text: str, separator: str, count: int = -1) -> tuple[str, ...]:
    """Cut a text at separators into at most `count` parts; without a limit, if it is negative (Go strings.SplitN)."""
    if count == 0:
        return ()
    if separator:
        return tuple(text.split(separator, count - 1 if count > 0 else -1))
    if count < 0 or count >= len(text):
        return tuple(text)
    return (*text[: count - 1], text[count - 1 :])


def substring(text: str, start: int, end: int | None = None) -> str:
    """Return the characters from `start` up to `end`, or to the last."""
    last = len(text) if end is None else end
    if end is not None and start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    _check_index(start, len(text))
    _check_index(last, len(text))
    return text[start:last]


GO_SPACES = (
    "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029"
    "\u202f\u205f\u3000"
)
"""What Go's strings.TrimSpace cuts off."""


def join(texts: tuple[Any, ...], separator: str = "") -> str:
    """Put texts together."""
    if not all(type(text) is str for text in texts):
        raise EvaluationError("join: invalid input")
    return separator.join(texts)


LONGEST_LIST = 48
"""includes() takes no longer list (resource/v1 types.go, ResourceSliceMaxAttributeValuesPerDevice)."""


def includes(target: Any, item: Any) -> bool:
    """Tell whether an attribute is a value, or a list with it (dynamic-resource-allocation/cel/compile.go)."""
    if not isinstance(target, tuple):
        return contains((item,), target)
    if any(_equals(element, item) for element in target[:LONGEST_LIST]):
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


def index_in_list(values: tuple[Any, ...], item: Any) -> int:
    """Return the index of the first element that equals an item, or -1."""
    return next((index for index, value in enumerate(values) if _equals(value, item)), -1)


def last_index_in_list(values: tuple[Any, ...], item: Any) -> int:
    """Return the index of the last element that equals an item, or -1."""
    return next((index for index in reversed(range(len(values))) if _equals(values[index], item)), -1)


def is_sorted(values: tuple[Any, ...]) -> bool:
    """Tell whether no element is less than the one before it."""
    return all(compare(left, right, "isSorted") <= 0 for left, right in pairwise(values))


def total_from(zero: Any) -> Callable[[tuple[Any, ...]], Any]:
    """Make the sum of numbers of the type of `zero`."""

    def total(values: tuple[Any, ...]) -> Any:
        result = zero
        for value in values:
            result = add_numbers(result, value)
        return result

    return total


def extreme(name: str, replaced: int) -> Callable[[tuple[Any, ...]], Any]:
    """Make min() or max(): an element is replaced by a later one if they compare as `replaced`."""

    def find_extreme(values: tuple[Any, ...]) -> Any:
        if not values:
            raise EvaluationError(f"{name} called on empty list")
        result = values[0]
        for value in values[1:]:
            if compare(result, value, name) == replaced:
                result = value
        return result

    return find_extreme


def cut(values: tuple[Any, ...], start: int, end: int) -> tuple[Any, ...]:
    """Return the elements from `start` up to `end`."""
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


def element(values: tuple[Any, ...], index: int) -> Optional:
    """Return an element of a list, if there is one at all."""
    return Optional(values[index]) if values else NONE


def set_contains(values: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Tell whether all others are among the values."""
    return all(contains(values, other) for other in others)


def set_equivalent(values: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Tell whether two lists have the same elements."""
    return set_contains(values, others) and set_contains(others, values)


def optional_value(optional: Optional) -> Any:
    """Return the value, which must be there."""
    if optional.value is None:
        raise EvaluationError("optional.none() dereference")
    return optional.value


def optional_of(value: Any) -> Optional:
    """Make an optional value; of null it is not judged."""
    if value is None:
        raise NotJudged("an optional null")
    return Optional(value)


def optional_of_non_zero(value: Any) -> Optional:
    """Make an optional value, without one for false, zero and what is empty."""
    empty = value is None or (isinstance(value, (bool, int, float, str, bytes, tuple, Mapping)) and not value)
    return NONE if empty or value == NONE else Optional(value)


def unwrap(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of those optional values that have one."""
    if not all(isinstance(value, Optional) for value in values):
        raise EvaluationError("value is not optional")
    return tuple(value.value for value in values if value.value is not None)


def readable(read: Callable[..., Any]) -> Callable[..., bool]:
    """Make the function that tells whether a text can be read."""

    def is_readable(*arguments: Any) -> bool:
        try:
            read(*arguments)
        except EvaluationError:
            return False
        return True

    return is_readable


def compare_to(left: Any, right: Any) -> int:
    """Order two quantities, or two versions, -1, 0 or 1."""
    one, other = (left.value, right.value) if isinstance(left, Quantity) else (left, right)
    return int(one > other) - int(one < other)


def adder(sign: int) -> Callable[[Quantity, Any], Quantity]:
    """Make add(), or with -1 sub(), of a quantity and another or an integer."""

    def add(left: Quantity, right: Any) -> Quantity:
        amount = right if isinstance(right, Quantity) else Quantity(Fraction(right), (right, 0))
        return left.plus(amount, sign)

    return add


def sign(quantity: Quantity) -> int:
    """Return -1, 0 or 1."""
    return (quantity.value > 0) - (quantity.value < 0)


def as_integer(quantity: Quantity) -> int:
    """Return the quantity as an integer, if Kubernetes stores it as one."""
    whole = quantity.integer()
    if whole is None:
        raise EvaluationError("cannot convert value to integer")
    return whole


def as_float(quantity: Quantity) -> float:
    """Return the quantity as a double; it is judged where Kubernetes stores an integer."""
    if quantity.stored is None or quantity.stored[1] != 0:
        raise NotJudged("asApproximateFloat() of a quantity that is stored as a decimal")
    return float(quantity.stored[0])


def read_semver(text: str, normalize: bool = False) -> Semver:
    """Read a version; normalizing cuts a leading v and leading zeros, and adds missing fields (semverlib.go)."""
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


is_quantity, is_semver = readable(read_quantity), readable(read_semver)
