# SPDX-License-Identifier: Apache-2.0
"""Oracle: Kubernetes quantities as exact numbers (k8s.io/apimachinery pkg/api/resource/quantity.go).

As there, fractions below a billionth are rounded away from zero, and values above an int64 are capped.
"""

from fractions import Fraction
from typing import Any

LARGEST = Fraction(2**63 - 1)
MULTIPLIERS = {
    "": Fraction(1),
    "n": Fraction(1, 1_000_000_000),
    "u": Fraction(1, 1_000_000),
    "m": Fraction(1, 1_000),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
DIGITS = "0123456789"


def quantity(written: Any) -> Fraction | None:
    """Read a quantity, or return None if it is not one. JSON numbers are quantities too (Quantity.UnmarshalJSON)."""
    if isinstance(written, bool) or not isinstance(written, str | int | float):
        return None
    text = str(written)
    sign = -1 if text.startswith("-") else 1
    text = text[1:] if text[:1] in ("+", "-") else text
    number = ""
    while text and text[0] in DIGITS + ".":
        number, text = number + text[0], text[1:]
    if number.count(".") > 1 or not number.strip("."):
        return None
    factor = _factor(text)
    if factor is None:
        return None
    return sign * min(_to_billionths(Fraction(number.strip(".") if number.endswith(".") else number) * factor), LARGEST)


def _factor(suffix: str) -> Fraction | None:
    if suffix in MULTIPLIERS:
        return MULTIPLIERS[suffix]
    exponent = suffix[1:]
    digits = exponent[1:] if exponent[:1] in ("+", "-") else exponent
    if suffix[0] not in "eE" or not digits or any(digit not in DIGITS for digit in digits) or len(digits) > 9:
        return None
    return Fraction(10) ** max(-200, min(200, int(exponent)))


def _to_billionths(value: Fraction) -> Fraction:
    scaled = value * 10**9
    return Fraction(-(-scaled.numerator // scaled.denominator), 10**9)


def milli(value: Fraction) -> int:
    """Return Quantity.MilliValue, which is rounded up."""
    scaled = value * 1000
    return -(-scaled.numerator // scaled.denominator)
