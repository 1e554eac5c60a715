# SPDX-License-Identifier: Apache-2.0
"""The workload: how many pods there are of each shape, rounded, without shapes that are rare.

What it shows depends on the pods that exist and on nothing else, in particular not on the order in which they came.
"""

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Shape = TypeVar("Shape", bound=Hashable)

LEAST_PODS = 32
"""The least number of pods from which anything is expected, a guess."""
SHAPE_RARE_BITS, SHAPE_COUNT_BITS = 12, 2
LIMIT_RARE_BITS, LIMIT_COUNT_BITS = 12, 3
"""How rare a shape or a limit is that does not count, and how exactly the others do. With each digit more, cached
verdicts are renewed more often; the published traces have up to 330 shapes and 16 limits."""


class WorkloadIndex(Generic[Shape]):
    """The number of pods by shape. `generation` counts changes of what `common` returns.

    A shape is rare if the GPU capacity that its pods request has `rare_bits` binary digits fewer than that of all pods,
    so that at most 2 ** `rare_bits` shapes are not. Of a number of pods `count_bits` leading binary digits count: with
    two, 16 and 17 are alike, and 24 is more.
    """

    def __init__(self, rare_bits: int, count_bits: int) -> None:
        self._rare_bits, self._count_bits = rare_bits, count_bits
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
        if self._rounded(before) != self._rounded(after) or self._scope() != scope:
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
        common = (shapes for digits, shapes in self._by_bits.items() if enough and digits > bits - self._rare_bits)
        return {shape: self._rounded(self._pods[shape]) for shapes in common for shape in shapes}

    @property
    def seen_milli(self) -> int:
        """The GPU capacity that all pods request in thousandths, rounded down to a power of two."""
        return 1 << self._total_milli.bit_length() >> 1

    def clear(self) -> None:
        """Remove all pods."""
        self._pods.clear()
        self._by_bits.clear()
        self._total = self._total_milli = 0
        self.generation += 1

    def _rounded(self, pods: int) -> int:
        spare = max(0, pods.bit_length() - self._count_bits)
        return pods >> spare << spare


class Workload(Generic[Shape]):
    """The pods by shape, and the GPU capacity that they request by limit.

    A limit is a shape that says nothing but on which products a pod can run. Limits are counted apart, because which
    products are scarce depends on the sum of many shapes, and should be known more exactly than each of them.
    """

    def __init__(self) -> None:
        self._shapes = WorkloadIndex[Shape](SHAPE_RARE_BITS, SHAPE_COUNT_BITS)
        self._limits = WorkloadIndex[Shape](LIMIT_RARE_BITS, LIMIT_COUNT_BITS)

    def add(self, shape: Shape, limit: Shape, pods: int, milli: int) -> None:
        """Add pods of a shape and a limit that request `milli` thousandths of a GPU each; a negative number removes
        pods."""
        if milli:
            self._shapes.add(shape, pods, milli)
            self._limits.add(limit, pods * milli, 1)

    @property
    def generation(self) -> int:
        """The number of changes of what the other members return."""
        return self._shapes.generation + self._limits.generation

    def shapes(self) -> Mapping[Shape, int]:
        """Return the number of pods by shape; nothing of too few pods."""
        return self._shapes.common()

    def limits(self) -> Mapping[Shape, int]:
        """Return the requested GPU capacity in thousandths by limit."""
        return self._limits.common()

    @property
    def seen_milli(self) -> int:
        """The requested GPU capacity in thousandths, rounded down to a power of two."""
        return self._shapes.seen_milli

    def clear(self) -> None:
        """Remove all pods."""
        self._shapes.clear()
        self._limits.clear()
