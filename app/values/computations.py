# SPDX-License-Identifier: Apache-2.0
"""What makes computations cheap for others: hashes that are computed once, and long work that is done in steps.

Frozen dataclasses that are keys of caches keep their hash. A long computation is a generator that yields after each
step, so that a caller on an event loop can do other work in between; `finish` runs one without a pause.
"""

from collections.abc import Generator
from dataclasses import fields
from typing import Any, TypeVar


class HashedOnce:
    """Base of a frozen, slotted dataclass that stores its hash.

    The subclass must contain `__hash__ = HashedOnce.__hash__`, or `@dataclass` generates another one for it.
    """

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:
        """Hash all fields at the first call, and give the stored hash at later calls."""
        try:
            return self._hash
        except AttributeError:
            dataclass: Any = self
            digest = hash(tuple(getattr(self, member.name) for member in fields(dataclass)))
            object.__setattr__(self, "_hash", digest)
            return digest


T = TypeVar("T")


def finish(steps: Generator[None, None, T]) -> T:
    """Run all steps without a pause, and give the return value of the generator."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
