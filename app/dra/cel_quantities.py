# SPDX-License-Identifier: Apache-2.0
"""Quantities as CEL computes with them: exact values, and how Kubernetes stores them, which asInteger() asks about.

The rules are those of kubernetes staging/src/k8s.io/apimachinery/pkg/api/resource/quantity.go, ParseQuantity.
"""

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from app.dra.cel_syntax import EvaluationError, NotJudged

_GRAMMAR = re.compile(r"([+-]?)(\d{0,200})(?:\.(\d{0,200}))?(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d{1,18}))?", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_LARGEST_EXPONENT = 100
"""Kubernetes computes with larger powers of ten, too; they are not judged here."""
_LARGEST_BINARY = 2**63 - 1
_INT64_DIGITS, _BINARY_DIGITS = 18, 15
"""How many digits Kubernetes stores as an integer with a power of ten, and how many before a binary suffix, each
three bits of which count as one more (quantity.go, precision)."""
_NANO = -9
_SURELY_STORED = 2**40
"""Whole amounts below this are stored as integers, whatever the suffix that the API server writes them with."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """An amount; two are equal if their `value` is.

    `stored` is the integer of 64 bits and the power of ten that Kubernetes stores. None means that it stores a decimal
    of any length, or, without `known`, that we do not know. `computed` says that add() or sub() made the quantity.
    """

    value: Fraction
    stored: tuple[int, int] | None = None
    known: bool = True
    computed: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def integer(self) -> int | None:
        """The integer that Kubernetes' AsInt64 gives, or None.

        Raises NotJudged.
        """
        if not self.known:
            raise NotJudged("whether Kubernetes stores a quantity as an integer")
        if self.stored is None or self.stored[1] < 0:
            return None
        whole: int = self.stored[0] * 10 ** self.stored[1]
        return whole if abs(whole) < 2**63 else None

    def plus(self, other: "Quantity", sign: int) -> "Quantity":
        """Add a quantity, or subtract it with a sign of -1.

        Raises NotJudged where Kubernetes changes the quantity itself: what it stores as a decimal (library/quantity.go
        copies the pointer to it, not the decimal).
        """
        if self.stored is None or other.stored == (-(2**63), 0):
            raise NotJudged("add() and sub() of quantities that Kubernetes stores as decimals")
        stored = None if other.stored is None else _sum(self.stored, (sign * other.stored[0], other.stored[1]))
        return Quantity(self.value + sign * other.value, stored, computed=True)


def _sum(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int] | None:
    """Add what is stored, unless that needs more than 64 bits (amount.go, Add)."""
    if other[0] == 0:
        return one
    if one[0] == 0:
        return other
    scale = min(one[1], other[1])
    parts = [number * 10 ** (power - scale) for number, power in (one, other)]
    return (sum(parts), scale) if all(-(2**63) <= number < 2**63 for number in (*parts, sum(parts))) else None


@lru_cache(maxsize=4096)
def read_quantity(amount: str | Fraction) -> Quantity:
    """Read a quantity from its text, or from its value, which tells how Kubernetes stores small integers alone.

    A text without digits, such as "-" or "Ki", is 0 for Kubernetes (quantity.go, parseQuantityString).

    Raises EvaluationError, NotJudged.
    """
    if isinstance(amount, Fraction):
        small = amount.denominator == 1 and abs(amount) < _SURELY_STORED
        return Quantity(amount, (int(amount), 0) if small else None, known=small)
    match = _GRAMMAR.fullmatch(amount)
    if match is None or not amount:
        if len(amount) > 200:
            raise NotJudged("a quantity of over 200 characters")
        raise EvaluationError(f"quantities must match the regular expression of k8s.io/apimachinery: {amount[:80]!r}")
    sign, whole, decimals = match[1], match[2].lstrip("0") or "0", match[3] or ""
    negative = -1 if sign == "-" else 1
    digits = int(whole + decimals) * negative
    if match[4] in _BINARY:
        return _binary(digits, len(whole), len(decimals), _BINARY[match[4]])
    return _decimal(digits, len(whole), len(decimals), int(match[5]) if match[5] else _DECIMAL[match[4] or ""])


def _binary(digits: int, whole: int, decimals: int, power: int) -> Quantity:
    value = Fraction(digits * 2**power, 10**decimals)
    precise = _BINARY_DIGITS - whole - power * 3 // 10 - 1 >= 0
    if decimals == 0 and precise and abs(value) < 2**63:
        return Quantity(value, (digits * 2**power, 0))
    value = _round_up(value)
    return Quantity(max(-Fraction(_LARGEST_BINARY), min(value, Fraction(_LARGEST_BINARY))))


def _decimal(digits: int, whole: int, decimals: int, exponent: int) -> Quantity:
    if abs(exponent) > _LARGEST_EXPONENT:
        raise NotJudged("a quantity with an exponent of over 100")
    scale = exponent - decimals
    value = digits * Fraction(10) ** scale
    if whole + decimals <= _INT64_DIGITS and scale >= _NANO:
        return Quantity(value, (digits, scale))
    return Quantity(_round_up(value))


def _round_up(value: Fraction) -> Fraction:
    """Round away from zero to a billionth, the least amount that there is."""
    rounded = Fraction(math.ceil(abs(value) * 10**9), 10**9)
    return -rounded if value < 0 else rounded
