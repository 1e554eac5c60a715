# SPDX-License-Identifier: Apache-2.0
"""The values of CEL as selectors of devices compute with them, their equality and their order.

bool, int (64 bits), float, str, bytes and None stand for themselves, a tuple is a list and a Mapping a map. The rules
are those of cel-go 0.26 (google/cel-go common/types), which Kubernetes 1.36 uses, and of Kubernetes' own types
(kubernetes staging/src/k8s.io/apiserver/pkg/cel quantity.go, semver.go). What cannot be read, compared or looked up
raises EvaluationError.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, total_ordering
from typing import Any

from app.dra.cel_quantities import Quantity
from app.dra.cel_syntax import Aborted, EvaluationError

INT_MAX, INT_MIN, UINT_MAX = 2**63 - 1, -(2**63), 2**64 - 1

_SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z.-]+))?(?:\+([0-9A-Za-z.-]+))?", re.ASCII)


class UInt(int):
    """An unsigned integer of 64 bits; CEL keeps it apart from int."""


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """A semantic version (semver.org); `before` are the identifiers of a prerelease. A build is not compared."""

    major: int
    minor: int
    patch: int
    before: tuple[tuple[int, int, str], ...] = ()
    text: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        """What versions are compared by: a prerelease is older than its release."""
        return self.major, self.minor, self.patch, not self.before, self.before

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self.key == other.key

    def __lt__(self, other: "Semver") -> bool:
        return self.key < other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=4096)
def parse_semver(text: str) -> Semver:
    """Read a semantic version as strictly as Kubernetes does (blang/semver v4, Parse)."""
    match = _SEMVER.fullmatch(text)
    if match is None:
        raise EvaluationError(f"invalid semantic version: {text[:80]!r}")
    parts = match[4].split(".") if match[4] else []
    build = match[5].split(".") if match[5] else []
    numeric = [part for part in parts if part.isdecimal()]
    if not all(parts) or not all(build) or any(len(part) > 1 and part[0] == "0" for part in numeric):
        raise EvaluationError(f"invalid semantic version: {text[:80]!r}")
    if any(len(digits) > 20 or int(digits) > UINT_MAX for digits in (*match.groups()[:3], *numeric)):
        raise EvaluationError(f"semantic version out of range: {text[:80]!r}")
    before = tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)
    return Semver(int(match[1]), int(match[2]), int(match[3]), before, text)


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A type as a value, as `int` is, and `type(1)`."""

    name: str


@dataclass(frozen=True, slots=True)
class Optional:
    """An optional value; `value` is None if there is none, since selectors have no optional null."""

    value: Any = None


NONE = Optional()


class DomainView(Mapping[str, Any]):
    """The attributes (or capacities) of one domain, as a map without the domain in its keys."""

    __slots__ = ("_convert", "_entries", "_prefix")

    def __init__(self, entries: Mapping[str, Any], domain: str, convert: Callable[[Any], Any]) -> None:
        self._entries, self._convert = ({} if "/" in domain else entries), convert
        self._prefix = f"{domain}/"

    def __getitem__(self, name: str) -> Any:
        return self._convert(self._entries[self._prefix + name])

    def __iter__(self) -> Iterator[str]:
        start = len(self._prefix)
        return iter(sorted(key[start:] for key in self._entries if key.startswith(self._prefix)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class DomainsView(Mapping[str, Any]):
    """`device.attributes` (or capacity): a map from domains to maps.

    A lookup of any domain gives a map, an empty one for a domain that is not there. Only `in`, size() and iteration
    tell which domains there are (kubernetes staging/src/k8s.io/dynamic-resource-allocation/cel/compile.go, mapper).
    """

    __slots__ = ("_convert", "_entries")

    def __init__(self, entries: Mapping[str, Any], convert: Callable[[Any], Any]) -> None:
        self._entries, self._convert = entries, convert

    def __getitem__(self, domain: str) -> DomainView:
        return DomainView(self._entries, domain, self._convert)

    def __contains__(self, domain: object) -> bool:
        return domain in set(self)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({key.partition("/")[0] for key in self._entries}))

    def __len__(self) -> int:
        return sum(1 for _ in self)


_KINDS: dict[type, str] = {
    bool: "bool",
    int: "int",
    UInt: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null_type",
    tuple: "list",
    dict: "map",
    DomainView: "map",
    DomainsView: "map",
    TypeValue: "type",
    Optional: "optional_type",
    Quantity: "kubernetes.Quantity",
    Semver: "kubernetes.Semver",
}
_NUMBERS = frozenset({int, UInt, float})


def kind(value: Any) -> str:
    """Name the CEL type of a value."""
    return _KINDS[type(value)]


def no_overload(function: str, *values: Any) -> EvaluationError:
    """Make the error of a function that does not take values of these types."""
    return EvaluationError(f"no such overload: {function}({', '.join(map(kind, values))})")


def equal(left: Any, right: Any) -> bool:
    """Compare two values with `==`.

    Values of different types are unequal, but a quantity or a version on the left cannot be compared with another type.
    A quantity that add() or sub() made cannot stand on the right (kubernetes apiserver/pkg/cel quantity.go, Equal;
    semver.go, Equal).
    """
    if type(left) is str or left is None or right is None:
        return type(left) is type(right) and bool(left == right)
    if type(left) in _NUMBERS:
        return type(right) in _NUMBERS and _equal_numbers(left, right)
    if type(left) in (Quantity, Semver):
        if type(left) is not type(right) or (type(right) is Quantity and right.computed):
            raise no_overload("_==_", left, right)
        return bool(left == right)
    if isinstance(left, tuple):
        return isinstance(right, tuple) and len(left) == len(right) and all(map(_not_unequal, left, right))
    if isinstance(left, Mapping):
        return isinstance(right, Mapping) and _equal_maps(left, right)
    if isinstance(left, Optional) and isinstance(right, Optional):
        if left.value is None or right.value is None:
            return left.value is right.value
        return equal(left.value, right.value)
    return type(left) is type(right) and bool(left == right)


def _not_unequal(left: Any, right: Any) -> bool:
    """Compare two elements of lists or maps, where only a clear "unequal" counts (cel-go common/types/list.go)."""
    try:
        return equal(left, right)
    except EvaluationError:
        return True


def _equal_maps(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    anything = isinstance(right, DomainsView)
    return len(left) == len(right) and all(
        (anything or key in right) and _not_unequal(value, right[key]) for key, value in left.items()
    )


def _equal_numbers(left: Any, right: Any) -> bool:
    return not (_is_nan(left) or _is_nan(right)) and compare_numbers(left, right) == 0


def _is_nan(value: Any) -> bool:
    return type(value) is float and math.isnan(value)


def compare_numbers(left: Any, right: Any) -> int:
    """Compare numbers, -1, 0 or 1; an integer is rounded to a double beside a double (common/types/compare.go)."""
    if type(left) is float or type(right) is float:
        whole = left if type(right) is float else right
        if type(whole) is not float and math.isinf(left if whole is right else right):
            return int(left > right) - int(left < right)
        left, right = float(left), float(right)
    return int(left > right) - int(left < right)


def compare(left: Any, right: Any, function: str) -> int:
    """Order two values, -1, 0 or 1: numbers, strings, bytes or bools."""
    if type(left) in _NUMBERS and type(right) in _NUMBERS:
        if _is_nan(left) or _is_nan(right):
            raise EvaluationError("NaN values cannot be ordered")
        return compare_numbers(left, right)
    if type(left) is type(right) and type(left) in (str, bytes, bool):
        return int(left > right) - int(left < right)
    raise no_overload(function, left, right)


def contains(values: tuple[Any, ...], item: Any) -> bool:
    """Tell whether a list has an element; elements that cannot be compared with it are passed over."""
    for value in values:
        try:
            if equal(item, value):
                return True
        except EvaluationError:
            continue
    return False


def member_of_constants(item: Any, constants: frozenset[tuple[str, Any]]) -> bool:
    """Tell whether an item is one of constant literals, each with its type (`constant_key`).

    A version cannot be looked up there: cel-go panics (interpreter/interpretable.go evalSetMembership hashes it), and
    the whole evaluation fails.

    Raises Aborted.
    """
    if type(item) is Semver:
        raise Aborted("internal error: runtime error: hash of unhashable type cel.Semver")
    return type(item) in _PRIMITIVES and constant_key(item) in constants


_PRIMITIVES = frozenset({bool, int, UInt, float, str, type(None)})


def constant_key(value: Any) -> tuple[str, Any]:
    """Make the key of a primitive value, with which equal numbers of different types agree."""
    return ("number" if type(value) in _NUMBERS else kind(value)), value


def find(container: Any, key: Any) -> tuple[bool, Any]:
    """Look up a field, a key or an index; the first item says whether it is there.

    What has no fields at all has none (cel-go interpreter/attributes.go refQualify).

    Raises EvaluationError if the key is no index of a list.
    """
    if isinstance(container, Mapping):
        if type(key) is not str or (key not in container and not isinstance(container, DomainsView)):
            return False, None
        return True, container[key]
    if isinstance(container, tuple):
        index = _list_index(key)
        return (True, container[index]) if 0 <= index < len(container) else (False, None)
    return False, None


def _list_index(key: Any) -> int:
    if type(key) in (int, UInt) or (type(key) is float and key.is_integer()):
        return int(key)
    raise EvaluationError(f"unsupported index type '{kind(key)}' in list")
