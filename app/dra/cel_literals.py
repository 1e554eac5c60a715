# SPDX-License-Identifier: Apache-2.0
"""The values of CEL's literals (google/cel-go parser/unescape.go)."""

import re
from typing import Any

from app.dra.cel_values import INT_MAX, INT_MIN, UINT_MAX, UInt

_SIMPLE = dict(zip("abfnrtv\\'\"`?", "\a\b\f\n\r\t\v\\'\"`?", strict=True))
_ESCAPES = re.compile(
    r"""\\(?:([abfnrtv\\'"`?])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.?))""",
    re.DOTALL,
)


def read_literal(kind: str, text: str) -> Any:
    """Read the value of a literal from its token.

    Raises ValueError.
    """
    if kind == "string":
        return _unescape(*_quoted(text), binary=False)
    if kind == "bytes":
        return _unescape(*_quoted(text[1:]), binary=True).encode("latin-1")
    if kind == "float":
        return float(text)
    if kind == "uint":
        return UInt(_bounded(int(text[:-1], 16 if text.startswith("0x") else 10), 0, UINT_MAX))
    digits = text.removeprefix("-")
    value = int(digits, 16 if digits.startswith("0x") else 10)
    return _bounded(-value if digits != text else value, INT_MIN, INT_MAX)


def _bounded(value: int, least: int, largest: int) -> int:
    if not least <= value <= largest:
        raise ValueError("out of range")
    return value


def _quoted(text: str) -> tuple[str, bool]:
    """Return what is between the quotes, and whether it is raw."""
    raw = text[0] in "rR"
    text = text[raw:].replace("\r\n", "\n").replace("\r", "\n")
    width = 3 if len(text) >= 6 and text[:3] in ('"""', "'''") else 1
    return text[width:-width], raw


def _unescape(text: str, raw: bool, binary: bool) -> str:
    """Replace the escapes; a string of bytes is returned as latin-1."""
    if binary:
        text = text.encode().decode("latin-1")
    return text if raw else _ESCAPES.sub(lambda match: _escape(match, binary), text)


def _escape(match: re.Match[str], binary: bool) -> str:
    simple, hexadecimal, short, long, octal, other = match.groups()
    if other is not None or (binary and (short or long)):
        raise ValueError("unable to unescape string")
    if simple:
        return _SIMPLE[simple]
    code = int(octal, 8) if octal else int(hexadecimal or short or long, 16)
    if not binary and (code > 0x10FFFF or 0xD800 <= code <= 0xDFFF):
        raise ValueError("invalid unicode code point")
    return chr(code)
