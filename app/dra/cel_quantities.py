# SPDX-License-Identifier: Apache-2.0
"""Quantities as CEL computes with them: exact values, and how Kubernetes stores them, which asInteger() asks about.

The rules are those of kubernetes staging/src/k8s.io/apimachinery/pkg/api/resource/quantity.go, ParseQuantity.
"""

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from app.dra.cel_errors import EvaluationError, NotJudged

_GRAMMAR = re.compile(
    r"([+-]?)(\d{0,200})(?:\.(\d{0,200}))?(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d{1,18}))?", re.ASCII
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_LARGEST_EXPONENT = 100
"""Kubernetes computes with larger powers of ten, too; they are not judged here."""
_LARGEST_BINARY = 2**63 - 1
_INT64_DIGITS, _BINARY_DIGITS = 18, 15
"""How many digits Kubernetes stores as an integer with a power of ten, and how many before a binary suffix, each
three bits of which count as one more (quantity.go, precision)."""
_NANO = -9


@dataclass(frozen=True, slots=True)
class Quantity:
    """An amount; two are equal if their `value` is.

    `stored` is the integer and the power of ten that Kubernetes stores, or None if it stores a decimal of any length;
    asInteger() and isInteger() differ by that. It is unknown, and so is their result, unless `parsed`. `computed` says
    that add() or sub() made the quantity.
    """

    value: Fraction
    stored: tuple[int, int] | None = None
    parsed: bool = True
    computed: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def integer(self) -> int | None:
        """The integer that Kubernetes' AsInt64 gives, or None.

        Raises NotJudged.
        """
        if not self.parsed:
            raise NotJudged("whether Kubernetes stores a computed quantity as an integer")
        if self.stored is None or self.stored[1] < 0:
            return None
        whole: int = self.stored[0] * 10 ** self.stored[1]
        return whole if abs(whole) < 2**63 else None


@lru_cache(maxsize=4096)
def read_quantity(amount: str | Fraction) -> Quantity:
    """Read a quantity from its text; one given as a number has no text that asInteger() could ask about.

    Raises EvaluationError, NotJudged.
    """
    if isinstance(amount, Fraction):
        return Quantity(amount, parsed=False)
    match = _GRAMMAR.fullmatch(amount)
    if match is None or not (match[2] or match[3]):
        if len(amount) > 200:
            raise NotJudged("a quantity of over 200 characters")
        raise EvaluationError("quantities must match the regular expression of k8s.io/apimachinery: " + amount[:80])
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
