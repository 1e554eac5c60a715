# SPDX-License-Identifier: Apache-2.0
"""The values of CEL as selectors of devices compute with them: how they are read, their equality and their order.

bool, int (64 bits) and str stand for themselves, a tuple is a list, a Fraction a quantity. The rules are those of
google/cel-go common/types, and of Kubernetes' own types (kubernetes staging/src/k8s.io/apiserver/pkg/cel quantity.go,
semver.go; apimachinery/pkg/api/resource/quantity.go, ParseQuantity; blang/semver v4, Parse). Go's regular expressions
are RE2's, which take time linear to the text whatever the pattern. What cannot be read, compared or looked up raises
EvaluationError.
"""

import math
import re
from collections.abc import Collection
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import re2

from app.dra.cel_syntax import Aborted, EvaluationError, not_evaluated

_SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z.-]+))?(?:\+([0-9A-Za-z.-]+))?", re.ASCII)
_LARGEST_NUMBER = 2**64 - 1


class Semver(NamedTuple):
    """A semantic version (semver.org), in the order of its fields; of a prerelease `released` is False."""

    major: int
    minor: int
    patch: int
    released: bool
    before: tuple[tuple[int, int, str], ...]


@lru_cache(maxsize=4096)
def read_semver(text: str, normalize: bool = False) -> Semver:
    """Read a semantic version as strictly as Kubernetes does; the build is not compared.

    Normalizing cuts a leading v and leading zeros, and adds missing fields (apiserver/pkg/cel/library semverlib.go).
    """
    if normalize:
        fields = [_normalized(field) for field in text.removeprefix("v").split(".", 2)]
        if len(fields) < 3 and ("+" in fields[-1] or "-" in fields[-1]):
            raise EvaluationError("short version cannot contain PreRelease/Build meta data")
        text = ".".join([*fields, "0", "0"][:3])
    match = _SEMVER.fullmatch(text)
    if match is None:
        raise EvaluationError(f"invalid semantic version: {text[:80]!r}")
    parts = match[4].split(".") if match[4] else []
    build = match[5].split(".") if match[5] else []
    numeric = [part for part in parts if part.isdecimal()]
    if not all(parts) or not all(build) or any(len(part) > 1 and part[0] == "0" for part in numeric):
        raise EvaluationError(f"invalid semantic version: {text[:80]!r}")
    if any(len(digits) > 20 or int(digits) > _LARGEST_NUMBER for digits in (*match.groups()[:3], *numeric)):
        raise EvaluationError(f"semantic version out of range: {text[:80]!r}")
    before = tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)
    return Semver(int(match[1]), int(match[2]), int(match[3]), not before, before)


def _normalized(field: str) -> str:
    if len(field) < 2:
        return field
    stripped = field.lstrip("0")
    return stripped if stripped[:1].isascii() and stripped[:1].isdecimal() else "0" + stripped


_QUANTITY = re.compile(
    r"([+-]?)(\d{0,200})(?:\.(\d{0,200}))?(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d{1,18}))?", re.ASCII
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_LARGEST_EXPONENT = 100
"""Kubernetes computes with larger powers of ten, too; they are not judged here."""
_LARGEST_BINARY = Fraction(2**63 - 1)
_BILLION = 10**9


@lru_cache(maxsize=4096)
def read_quantity(text: str) -> Fraction:
    """Read a quantity. Its least amount is a billionth, and with a binary suffix it has 63 bits.

    A text without digits, such as "-" or "Ki", is 0 for Kubernetes (quantity.go, parseQuantityString).
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or not text:
        if len(text) > 200:
            raise not_evaluated("a quantity of over 200 characters")
        raise EvaluationError(f"quantities must match the regular expression of k8s.io/apimachinery: {text[:80]!r}")
    decimals = match[3] or ""
    digits = Fraction(int((match[2] or "0") + decimals), 10 ** len(decimals))
    if match[4] in _BINARY:
        amount = min(_rounded_up(digits * 2 ** _BINARY[match[4]]), _LARGEST_BINARY)
    else:
        exponent = int(match[5]) if match[5] else _DECIMAL[match[4] or ""]
        if abs(exponent) > _LARGEST_EXPONENT:
            raise not_evaluated("a quantity with an exponent of over 100")
        amount = _rounded_up(digits * Fraction(10) ** exponent)
    return -amount if match[1] == "-" else amount


def _rounded_up(amount: Fraction) -> Fraction:
    return Fraction(math.ceil(amount * _BILLION), _BILLION)


_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


@lru_cache(maxsize=512)
def compile_pattern(text: str) -> Any:
    """Compile a regular expression; one whose program is too large for RE2, which Go may take, is not judged."""
    if r"\C" in text:
        raise not_evaluated(r"\C in a regular expression")
    try:
        return re2.compile(text, _OPTIONS)
    except re2.error as problem:
        if "too large" in str(problem):
            raise not_evaluated("a regular expression so large") from None
        said = problem.args[0] if problem.args else problem
        words = said.decode(errors="replace") if isinstance(said, bytes) else said
        raise EvaluationError(f"error parsing regexp: {words}") from None


_KINDS: dict[type, str] = {
    bool: "bool",
    int: "int",
    str: "string",
    tuple: "list",
    Fraction: "kubernetes.Quantity",
    Semver: "kubernetes.Semver",
}


def kind(value: Any) -> str:
    """Name the CEL type of a value."""
    return _KINDS[type(value)]


def no_overload(function: str, *values: Any) -> EvaluationError:
    """Make the error of a function that does not take values of these types."""
    return EvaluationError(f"no such overload: {function}({', '.join(map(kind, values))})")


def equal(left: Any, right: Any) -> bool:
    """Compare with `==`: other types are unequal, but an error where a quantity or a version is on the left."""
    if type(left) in (Fraction, Semver) and type(left) is not type(right):
        raise no_overload("_==_", left, right)
    if type(left) is tuple:
        return type(right) is tuple and len(left) == len(right) and all(map(_not_unequal, left, right))
    return type(left) is type(right) and bool(left == right)


def unequal(left: Any, right: Any) -> bool:
    """Compare with `!=`, which is true where the values cannot be compared (interpreter/interpretable.go, evalNe)."""
    try:
        return not equal(left, right)
    except EvaluationError:
        return True


def _not_unequal(left: Any, right: Any) -> bool:
    """Compare two elements of lists, where only a clear "unequal" counts (cel-go common/types/list.go)."""
    try:
        return equal(left, right)
    except EvaluationError:
        return True


def compare(left: Any, right: Any, function: str) -> int:
    """Order two integers, texts or bools: -1, 0 or 1."""
    if type(left) is type(right) and type(left) in (int, str, bool):
        return int(left > right) - int(left < right)
    raise no_overload(function, left, right)


def contains(values: Any, item: Any) -> bool:
    """Tell whether a list has an element; elements that cannot be compared with it are passed over."""
    if type(values) is not tuple:
        raise no_overload("@in", item, values)
    for value in values:
        try:
            if equal(item, value):
                return True
        except EvaluationError:
            continue
    return False


def member_of_constants(item: Any, constants: Collection[tuple[type, Any]]) -> bool:
    """Tell whether an item is one of constant literals, each with its type.

    A version cannot be looked up there: cel-go panics (interpreter/interpretable.go evalSetMembership hashes it), and
    the whole evaluation fails.

    Raises Aborted.
    """
    if type(item) is Semver:
        raise Aborted("internal error: runtime error: hash of unhashable type cel.Semver")
    return (type(item), item) in constants
