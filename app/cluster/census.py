# SPDX-License-Identifier: Apache-2.0
"""The census of the nodes: how many there are of each kind, whose labels they carry, what is free. A part of State.

Counted node by node, so that a change costs the same whatever the fleet's size.
"""

from collections.abc import Hashable, Iterable
from typing import Any

from app.admission.fleet import Kin, kin_of
from app.knowledge.tables import Knowledge
from app.nodes import Node


class Census:
    """What admission sums up of all nodes. `changed`: a kind, or a dialect, has come or gone since it was last read."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._kin: dict[Kin, int] = {}
        self._dialects: dict[str, int] = {}
        self.free: dict[str, int] = {}
        self.changed = False

    def kin(self) -> tuple[Kin, ...]:
        """List the kinds of GPU nodes."""
        return tuple(self._kin)

    def provisioners(self) -> tuple[str, ...]:
        """List the dialects that some node speaks."""
        return tuple(sorted(self._dialects))

    def replace(self, before: Node | None, after: Node | None) -> None:
        """Count a node as what it is now; None: there was none, or it is gone."""
        if before is None or after is None or _told(before) != _told(after):
            self._recount(before, after)
        for node, sign in ((before, -1), (after, 1)):
            for resource, units in node.free.units.items() if node else ():
                self.free[resource] = self.free.get(resource, 0) + sign * units

    def _recount(self, before: Node | None, after: Node | None) -> None:
        left, joined = (kin_of(node, self._knowledge) if node else None for node in (before, after))
        if left != joined:
            self._count(self._kin, filter(None, [left]), filter(None, [joined]))
        spoken = [self._knowledge.clouds.spoken(node.labels) if node else () for node in (before, after)]
        self._count(self._dialects, *spoken)

    def _count(self, counts: dict[Any, int], left: Iterable[Hashable], joined: Iterable[Hashable]) -> None:
        for each in joined:
            self.changed |= each not in counts
            counts[each] = counts.get(each, 0) + 1
        for each in left:
            counts[each] -= 1
            if not counts[each]:
                del counts[each]
                self.changed = True


def _told(node: Node) -> tuple[Any, ...]:
    """Give what a kin rests on; comparing costs three looks at identity where only what pods hold has changed."""
    return (node.node_class, node.labels, node.taints)
