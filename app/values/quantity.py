# SPDX-License-Identifier: Apache-2.0
"""Kubernetes quantities (`2`, `500m`, `40Gi`, `1e3`) as exact numbers, and durations (`2s`, `1m30s`, `1.5h`).

The grammar of quantities is that of k8s.io/apimachinery pkg/api/resource/quantity.go; its error text names the same
regular expression (docs/reference/control-plane.md#requests-of-the-api-server). Durations are in Go's syntax
(time.ParseDuration), without a sign.
"""

import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from app.values.errors import QuantityError

_GRAMMAR = re.compile(
    r"([+-]?)(\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:([eE])([+-]?\d{1,3})|([KMGTPE]i|[numkMGTPE]))?", re.ASCII
)
_VARIABLE = re.compile(r"\$\w|\$\{|\$\(|\{\{|<\w+>", re.ASCII)
"""Placeholders of shells, envsubst, Kustomize and Helm, and `<amount>` as in examples, left unreplaced."""
_SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{suffix + "i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", start=1)},
}
MIB = 1 << 20
LARGEST = 2**63 - 1
"""Larger magnitudes are capped, as Kubernetes does (quantity.go: "larger numbers will be capped")."""


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Fraction:
    """Read a quantity exactly.

    Raises QuantityError. Magnitudes over LARGEST are capped to it, so no input makes huge integers.
    """
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise QuantityError(f"quantity: {quantity_problem(text)}")
    sign, digits, exponent_mark, exponent, suffix = match.groups()
    value = Fraction(digits)
    if exponent_mark:
        value *= Fraction(10) ** max(-100, min(100, int(exponent)))
    elif suffix:
        value *= _SUFFIXES[suffix]
    value = min(value, Fraction(LARGEST))
    return -value if sign == "-" else value


def quantity_problem(text: str) -> str:
    """Describe why a text is not a quantity; a placeholder that a template left in has a message of its own."""
    if _VARIABLE.search(text):
        return f"got {text[:40]!r}, a variable that nothing has been put in for, wants a number such as 2"
    return f"got {text[:40]!r}, wants a number with a suffix such as 2, 500m or 40Gi"


def parse_mib(text: str) -> int:
    """Read an amount of memory in MiB, rounded up; `80Gi`, `80GB` and `80G` mean the same.

    See docs/reference/sharing-and-memory.md#memory.

    Raises QuantityError, also for zero and negative amounts.
    """
    binary = re.sub(r"(?<=[\d.])\s*([KMGTPE])(?:i?B|i)?$", r"\1i", text.strip())
    bytes_ = parse_quantity(binary)
    if bytes_ <= 0:
        raise QuantityError(f"memory: got {text[:40]!r}, wants a positive amount such as 40Gi")
    return -int(-bytes_ // 2**20)


def parse_gpu_memory(text: str) -> int:
    """Read an amount of GPU memory in MiB, as `parse_mib`.

    Raises QuantityError, also for a small number without a unit, which Kubernetes reads as bytes, and for less than
    1 MiB: `40` means 40Gi, `40960` means 40960Mi, and `40m`, which is 0.04 bytes, 40Gi.
    """
    mib = parse_mib(text)
    bare = re.fullmatch(r"\s*(\d+)(?:\.\d*)?\s*", text)
    if mib < LEAST_GPU_MEMORY and (bare or (mib <= 1 and "M" not in text)):
        digits = bare or re.match(r"\s*(\d+)", text)
        number = int(digits[1]) if digits else 0
        unit = "Gi" if number < 1024 else "Mi"
        meant = f"{number}{unit}" if 0 < number < 1 << 20 else "40Gi"
        raise QuantityError(f"memory: got {text.strip()[:40]!r}, which is {_small(text)}, did you mean {meant}?")
    return mib


def _small(text: str) -> str:
    return "in bytes" if text.strip().isdigit() else "not more than 1 MiB"


def enough_memory(mib: float, wanted: float) -> bool:
    """Tell whether GPUs of `mib` MiB have a nominal amount of memory."""
    return mib >= MEMORY_TOLERANCE * wanted


MEMORY_TOLERANCE = 0.93
"""The share of its nominal memory that a GPU reports at least: an 80 GB H100 reports 81,559 MiB, and GDDR cards with
ECC report 0.9375 (docs/reference/sharing-and-memory.md#memory; app/knowledge/gpu_products.yaml, conventions)."""
LEAST_GPU_MEMORY = 100
"""MiB below which an amount is taken for a slip; a CUDA context alone needs more. A guess."""


def check_amount(text: str) -> None:
    """Check that a text is a positive quantity.

    Raises QuantityError.
    """
    if parse_quantity(text) <= 0:
        raise QuantityError(f"quantity: got {text[:40]!r}, wants a positive amount such as 4, 500m or 16Gi")


def multiply_quantity(text: str, factor: int) -> str:
    """Multiply a quantity, keeping its suffix: 2 x `1.5Gi` is `3Gi`.

    Raises QuantityError.
    """
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise QuantityError(f"quantity: {quantity_problem(text)}")
    digits = match[2]
    product = f"{Decimal(digits) * factor:f}"
    if "." in product:
        product = product.rstrip("0").rstrip(".")
    return match[1] + product + text[len(match[1]) + len(digits) :]


def integer_quantity(value: int) -> str:
    """Write an integer as a quantity; one of over 40 digits does not fit the grammar, and is capped there anyway."""
    return str(value) if abs(value) < 10**40 else ("-" if value < 0 else "") + "9" * 40


_PART = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)"
_DURATION = re.compile(f"(?:{_PART})+", re.ASCII)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
MOST_CHARACTERS = 40
"""Characters of a duration that is read; Go's own longest output has 23."""


def parse_seconds(text: object) -> float | None:
    """Read a duration, in seconds; None where the text is not one, or is too long."""
    if not isinstance(text, str) or len(text) > MOST_CHARACTERS or not _DURATION.fullmatch(text):
        return None
    return sum(float(amount) * _SECONDS[unit] for amount, unit in re.findall(_PART, text))
