# SPDX-License-Identifier: Apache-2.0
"""The functions that are judged: the types that they take and give, and what computes them.

They are those of google/cel-go common/stdlib/standard.go and ext/strings.go, and of kubernetes
staging/src/k8s.io/apiserver/pkg/cel/library quantity.go and semverlib.go, for Kubernetes 1.36.
"""

from collections.abc import Callable
from string import ascii_lowercase, ascii_uppercase
from typing import Any, NamedTuple

from app.dra.cel_syntax import EvaluationError, not_evaluated
from app.dra.cel_values import compare, compile_pattern, no_overload, read_quantity, read_semver

ANY, BOOL, INT, STRING, LIST = "any", "bool", "int", "string", "list"
QUANTITY, SEMVER = "kubernetes.Quantity", "kubernetes.Semver"
"""Types; an attribute has the type any, and a list that of its elements: `list(int)`."""


class Overload(NamedTuple):
    """One signature of a function; an argument without a type is of any."""

    arguments: tuple[str, ...]
    result: str
    compute: Callable[..., Any]


def _in_whole(compute: Callable[[int, int], int]) -> Callable[[int, int], int]:
    """Bound the result of integers to 64 bits."""

    def calculate(left: int, right: int) -> int:
        result = compute(left, right)
        if not -(2**63) <= result < 2**63:
            raise EvaluationError("integer overflow")
        return result

    return calculate


def _divide(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("division by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("modulus by zero")
    if left == -(2**63) and right == -1:
        raise EvaluationError("integer overflow")
    return left - right * _divide(left, right)


def _readable(read: Callable[..., Any]) -> Callable[..., bool]:
    def is_readable(text: str, normalize: bool = False) -> bool:
        try:
            read(text, normalize) if normalize else read(text)
        except EvaluationError:
            return False
        return True

    return is_readable


def _ordered(function: str, wanted: tuple[int, ...]) -> list[Overload]:
    def is_ordered(left: Any, right: Any) -> bool:
        return compare(left, right, function) in wanted

    return [Overload((name, name), BOOL, is_ordered) for name in (BOOL, INT, STRING)]


def _arithmetic(compute: Callable[[int, int], int]) -> Overload:
    return Overload((INT, INT), INT, _in_whole(compute))


def _of_both(result: str, compute: Callable[[Any, Any], Any]) -> list[Overload]:
    return [Overload((name, name), result, compute) for name in (QUANTITY, SEMVER)]


def matches(text: str, pattern: str) -> bool:
    """Tell whether a regular expression matches anywhere in a text."""
    return compile_pattern(pattern).search(text) is not None


def replace(text: str, old: str, new: str) -> str:
    """Replace all occurrences; a long result is not judged, since several calls in a row would multiply it."""
    if (len(text) + 1) * len(new) > LONGEST_TEXT:
        raise not_evaluated("replace() with such a long result")
    return text.replace(old, new)


def substring(text: str, start: int, end: int | None = None) -> str:
    """Return the characters from `start` up to `end`, or to the last."""
    last = len(text) if end is None else end
    if not 0 <= start <= last <= len(text):
        raise EvaluationError(f"invalid substring range. start: {start}, end: {last}")
    return text[start:last]


def index_of(text: str, part: str) -> int:
    """Return where a part begins, or -1."""
    return text.find(part)


def _index_in_list(*_: Any) -> int:
    raise not_evaluated("indexOf() of a list")


LONGEST_TEXT = 100_000
"""Characters; selectors and attributes are much shorter."""
is_quantity, is_semver = _readable(read_quantity), _readable(read_semver)
_LOWER, _UPPER = str.maketrans(ascii_uppercase, ascii_lowercase), str.maketrans(ascii_lowercase, ascii_uppercase)
_MATCHES = [Overload((STRING, STRING), BOOL, matches)]
_SIZE = [Overload((STRING,), INT, len), Overload((LIST,), INT, len)]

FUNCTIONS: dict[str, list[Overload]] = {
    "_<_": _ordered("_<_", (-1,)),
    "_<=_": _ordered("_<=_", (-1, 0)),
    "_>_": _ordered("_>_", (1,)),
    "_>=_": _ordered("_>=_", (1, 0)),
    "_+_": [_arithmetic(lambda left, right: left + right), Overload((STRING, STRING), STRING, lambda a, b: a + b)],
    "_-_": [_arithmetic(lambda left, right: left - right)],
    "_*_": [_arithmetic(lambda left, right: left * right)],
    "_/_": [_arithmetic(_divide)],
    "_%_": [_arithmetic(_remainder)],
    "-_": [Overload((INT,), INT, lambda value: _in_whole(lambda left, right: left - right)(0, value))],
    "!_": [Overload((BOOL,), BOOL, lambda value: not value)],
    "size": _SIZE,
    "matches": _MATCHES,
    "quantity": [Overload((STRING,), QUANTITY, read_quantity)],
    "isQuantity": [Overload((STRING,), BOOL, is_quantity)],
    "semver": [Overload((STRING,), SEMVER, read_semver), Overload((STRING, BOOL), SEMVER, read_semver)],
    "isSemver": [Overload((STRING,), BOOL, is_semver), Overload((STRING, BOOL), BOOL, is_semver)],
}
"""Operators, and functions of arguments alone."""
METHODS: dict[str, list[Overload]] = {
    "size": _SIZE,
    "matches": _MATCHES,
    "contains": [Overload((STRING, STRING), BOOL, lambda text, part: part in text)],
    "startsWith": [Overload((STRING, STRING), BOOL, lambda text, start: text.startswith(start))],
    "endsWith": [Overload((STRING, STRING), BOOL, lambda text, end: text.endswith(end))],
    "lowerAscii": [Overload((STRING,), STRING, lambda text: text.translate(_LOWER))],
    "upperAscii": [Overload((STRING,), STRING, lambda text: text.translate(_UPPER))],
    "replace": [Overload((STRING, STRING, STRING), STRING, replace)],
    "substring": [Overload((STRING, INT), STRING, substring), Overload((STRING, INT, INT), STRING, substring)],
    "indexOf": [Overload((STRING, STRING), INT, index_of), Overload((LIST, ""), INT, _index_in_list)],
    "isGreaterThan": _of_both(BOOL, lambda left, right: left > right),
    "isLessThan": _of_both(BOOL, lambda left, right: left < right),
    "compareTo": _of_both(INT, lambda left, right: int(left > right) - int(left < right)),
    "major": [Overload((SEMVER,), INT, lambda version: version.major)],
    "minor": [Overload((SEMVER,), INT, lambda version: version.minor)],
    "patch": [Overload((SEMVER,), INT, lambda version: version.patch)],
}
"""Functions of a target and arguments."""
_OTHERS = """
    bool bytes double dyn int string type uint
    charAt lastIndexOf split trim join find isSorted min max sum slice reverse distinct first
    last includes sets.contains sets.equivalent sets.intersects optional.of optional.ofNonZeroValue optional.none
    optional.unwrap unwrapOpt value hasValue or orValue sign asApproximateFloat asInteger isInteger add sub
    duration timestamp getDate getDayOfMonth getDayOfWeek getDayOfYear getFullYear getHours getMilliseconds getMinutes
    getMonth getSeconds
    url isURL getScheme getHost getHostname getPort getEscapedPath getQuery
    format validate format.dns1123Label format.dns1123Subdomain format.dns1035Label format.qualifiedName
    format.dns1123LabelPrefix format.dns1123SubdomainPrefix format.dns1035LabelPrefix format.labelValue format.uri
    format.uuid format.byte format.date format.datetime format.named
    ip isIP ip.isCanonical family isUnspecified isLoopback isLinkLocalMulticast isLinkLocalUnicast isGlobalUnicast
    cidr isCIDR containsIP containsCIDR prefixLength masked
    strings.quote findAll sort flatten lists.range
    path group serviceAccount resource subresource namespace name check errored error allowed reason fieldSelector
    labelSelector
"""
NOT_EVALUATED = frozenset(_OTHERS.split())
"""Functions that Kubernetes has, but that are not evaluated here."""


def choose(function: str, overloads: list[Overload], values: list[Any], kinds: list[str]) -> Any:
    """Compute the first overload that fits the values, whose kinds are given. Raises EvaluationError."""
    for overload in overloads:
        if len(kinds) == len(overload.arguments) and all(map(str.startswith, kinds, overload.arguments)):
            return overload.compute(*values)
    raise no_overload(function, *values)
