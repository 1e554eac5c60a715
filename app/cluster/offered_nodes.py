# SPDX-License-Identifier: Apache-2.0
"""The nodes that filter has named for pods lately.

kube-scheduler asks again about a pod that could not be bound: a volume, a claim, another extender or a plugin after
filter refused each node of the list. The same list would fail again, so that the next one has other nodes.
"""

from collections.abc import Iterable

PODS_KEPT = 1024
"""Pods whose lists are kept; a scheduler retries within minutes. At 16 names of 100 bytes they are 2 MB."""
NOTHING: frozenset[str] = frozenset()


class OfferedNodes:
    """The names of the nodes that each of the last PODS_KEPT pods was offered, by the pod's UID."""

    def __init__(self) -> None:
        self._names: dict[str, frozenset[str]] = {}

    def of(self, uid: str) -> frozenset[str]:
        """Return the names that were offered to a pod."""
        return self._names.get(uid, NOTHING)

    def note(self, uid: str, names: Iterable[str]) -> None:
        """Add names to those offered to a pod; names that were all offered before begin a new round."""
        offered, before = frozenset(names), self._names.pop(uid, NOTHING)
        self._names[uid] = offered if offered <= before else offered | before
        if len(self._names) > PODS_KEPT:
            del self._names[next(iter(self._names))]
