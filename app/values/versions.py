# SPDX-License-Identifier: Apache-2.0
"""Dotted versions (drivers, CUDA, compute capability), compared field by field as numbers.

GFD labels may carry leading zeros (`535.54.03`); comparing as text would be wrong
(app/knowledge/cuda_driver.yaml, version_compare).
"""

import re

from app.values.errors import VersionError

Version = tuple[int, ...]
"""Numeric fields, most significant first, trailing zeros dropped: `12.0` and `12` are equal."""
ABOVE_ANY_MINOR = 999
"""A minor or patch number above that of any release of a driver or of CUDA."""

_GRAMMAR = re.compile(r"\d{1,6}(?:\.\d{1,6}){0,3}", re.ASCII)


def parse_version(text: str) -> Version:
    """Read `12.4` or `550.54.15`.

    Raises VersionError.
    """
    text = text.strip()
    if not _GRAMMAR.fullmatch(text):
        raise VersionError(f"version: got {text[:40]!r}, wants digits with dots such as 12.4")
    return _trimmed([int(field) for field in text.split(".")])


def _trimmed(fields: list[int]) -> Version:
    while len(fields) > 1 and fields[-1] == 0:
        fields.pop()
    return tuple(fields)


def major_minor(version: Version) -> Version:
    """Keep only major and minor: 12.4.1 becomes 12.4, and 12.0.1 becomes 12.0."""
    return _trimmed(list(version[:2]))


def parse_minimum(text: str) -> Version:
    """Read the least version that a user asks for: `12.4` or `>=12.4` (docs/reference/policy.md#annotations).

    Raises VersionError.
    """
    return parse_version(text.strip().removeprefix(">="))


def show_driver(version: Version) -> str:
    """Write a driver's version as NVIDIA does, its third field with two digits: `580.82.07`."""
    return ".".join(f"{field:02}" if index == 2 else str(field) for index, field in enumerate(version))


def show_version(version: Version) -> str:
    """Write a version with at least two fields: (12,) is `12.0`."""
    return ".".join(map(str, version if len(version) > 1 else (*version, 0)))
