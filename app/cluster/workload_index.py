# SPDX-License-Identifier: Apache-2.0
"""The workload: how many pods there are of each shape, rounded, without shapes that are rare (F52).

What it shows depends on the pods that exist and on nothing else, in particular not on the order in which they came.
"""

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Shape = TypeVar("Shape", bound=Hashable)

LEAST_PODS = 32
"""The least number of pods from which anything is expected, a guess."""
RARE_BITS = 9
"""A shape is rare if the GPU capacity that its pods request has so many binary digits fewer than that of all pods, so
that at most 512 shapes are not."""
COUNT_BITS = 2
"""Leading binary digits of a number of pods that count: 16 and 17 are alike, 24 is more."""


class WorkloadIndex(Generic[Shape]):
    """The number of pods by shape. `generation` counts changes of what `common` returns."""

    def __init__(self) -> None:
        self._pods: dict[Shape, int] = {}
        self._by_bits: dict[int, dict[Shape, None]] = {}
        """Shapes by the binary digits of their capacity, so that rare ones cost nothing, however many there are."""
        self._total = self._total_milli = self.generation = 0

    def add(self, shape: Shape, pods: int, milli: int) -> None:
        """Add pods of a shape that request `milli` thousandths of a GPU each; a negative number removes them."""
        before, scope = self._pods.get(shape, 0), self._scope()
        after = before + pods
        self._total += pods
        self._total_milli += pods * milli
        if after:
            self._pods[shape] = after
        else:
            del self._pods[shape]
        if (left := (before * milli).bit_length()) != (joined := (after * milli).bit_length()):
            self._move(shape, left, joined)
        if rounded(before) != rounded(after) or self._scope() != scope:
            self.generation += 1

    def _scope(self) -> tuple[bool, int]:
        return self._total >= LEAST_PODS, self._total_milli.bit_length()

    def _move(self, shape: Shape, left: int, joined: int) -> None:
        if left:
            former = self._by_bits[left]
            del former[shape]
            if not former:
                del self._by_bits[left]
        if joined:
            self._by_bits.setdefault(joined, {})[shape] = None

    def common(self) -> Mapping[Shape, int]:
        """Return the shapes that are not rare, with the rounded number of pods of each; none of too few pods."""
        enough, bits = self._scope()
        common = (shapes for digits, shapes in self._by_bits.items() if enough and digits > bits - RARE_BITS)
        return {shape: rounded(self._pods[shape]) for shapes in common for shape in shapes}

    @property
    def seen_milli(self) -> int:
        """The GPU capacity that all pods request, in thousandths of a GPU, rounded down to a power of two."""
        return 1 << self._total_milli.bit_length() >> 1

    def clear(self) -> None:
        """Remove all pods."""
        self._pods.clear()
        self._by_bits.clear()
        self._total = self._total_milli = 0
        self.generation += 1


def rounded(pods: int) -> int:
    """Round a number of pods down to COUNT_BITS leading binary digits."""
    spare = max(0, pods.bit_length() - COUNT_BITS)
    return pods >> spare << spare
