# SPDX-License-Identifier: Apache-2.0
"""The number of GPU pods of each shape (kube/pod_shapes.py). A part of State.

An event of a pod costs the same in a cluster of any size, and keeps one reference for a pod.
"""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Shape = TypeVar("Shape", bound=Hashable)


class PodCount(Generic[Shape]):
    """The number of pods of a shape, and how many of them the reader knew when it last asked."""

    __slots__ = ("known", "pods", "shape")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.pods = self.known = 0


class PodCounts(Generic[Shape]):
    """The shape of each pod by UID, and the number of pods by shape, for one reader that asks for what has changed."""

    def __init__(self) -> None:
        self._by_uid: dict[str, PodCount[Shape]] = {}
        self._counts: dict[Shape, PodCount[Shape]] = {}
        self._changed: dict[PodCount[Shape], None] = {}

    def put(self, uid: str, shape: Shape | None) -> None:
        """Add or change a pod; None removes it."""
        before = self._by_uid.get(uid)
        if before is not None:
            if before.shape == shape:
                return
            del self._by_uid[uid]
            self._remove(before)
        if shape is not None:
            count = self._counts.get(shape)
            if count is None:
                count = self._counts[shape] = PodCount(shape)
            self._by_uid[uid] = count
            count.pods += 1
            self._changed[count] = None

    def _remove(self, count: PodCount[Shape]) -> None:
        """Remove a pod from a count; a count of which the reader knows nothing is dropped with its last pod."""
        count.pods -= 1
        self._changed[count] = None
        if not count.pods and not count.known:
            del self._counts[count.shape], self._changed[count]

    def changes(self) -> Iterator[tuple[Shape, int]]:
        """Yield each shape whose number of pods has changed since the last call, and by how much."""
        changed, self._changed = self._changed, {}
        for count in changed:
            difference, count.known = count.pods - count.known, count.pods
            if not count.pods:
                del self._counts[count.shape]
            if difference:
                yield count.shape, difference

    def all(self) -> Iterator[tuple[Shape, int]]:
        """Yield each shape with its number of pods, as the first call of `changes` would."""
        for count in self._counts.values():
            count.known = 0
            self._changed[count] = None
        return self.changes()

    def __len__(self) -> int:
        return len(self._by_uid)
