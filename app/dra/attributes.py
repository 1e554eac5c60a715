# SPDX-License-Identifier: Apache-2.0
"""The values of device attributes: booleans, integers, strings, and semantic versions."""

import re
from dataclasses import dataclass

_GRAMMAR = re.compile(
    r"(0|[1-9]\d{0,18})\.(0|[1-9]\d{0,18})\.(0|[1-9]\d{0,18})"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
LONGEST = 64
"""Characters of a version or a string (resource/v1 types.go DeviceAttributeMaxValueLength)."""


@dataclass(frozen=True, slots=True)
class SemanticVersion:
    """A version as semver 2.0.0 writes it; constraints compare its text, selectors its precedence."""

    text: str

    @property
    def valid(self) -> bool:
        """Whether the text is a semantic version; the API server accepts no other."""
        return _GRAMMAR.fullmatch(self.text) is not None

    def __str__(self) -> str:
        return self.text


Attribute = bool | int | str | SemanticVersion | tuple[object, ...]
"""The value of an attribute; a tuple is a list of values (feature gate DRAListTypeAttributes, alpha)."""


def same(one: Attribute, other: Attribute) -> bool:
    """Tell whether two values are equal in type and value, as constraints compare them; a list equals nothing."""
    return type(one) is type(other) and not isinstance(one, tuple) and one == other


def show(value: object) -> str:
    """Write a value for a person: text in quotes, versions and numbers as they are."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"'{value}'" if isinstance(value, str) else str(value)
