# SPDX-License-Identifier: Apache-2.0
"""Frozen values that are looked up far more often than they are made: the hash is computed once."""

from dataclasses import fields
from typing import Any


class HashedOnce:
    """Base of a frozen, slotted dataclass, which says `__hash__ = HashedOnce.__hash__` (else it gets its own)."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:
        """Hash all fields, the first time."""
        try:
            return self._hash
        except AttributeError:
            dataclass: Any = self
            found = hash(tuple(getattr(self, each.name) for each in fields(dataclass)))
            object.__setattr__(self, "_hash", found)
            return found
