# SPDX-License-Identifier: Apache-2.0
"""Occupancy: what bound pods hold of each node, and what is promised to pods on their way there. A part of State.

A promise is a note of the node that we named for a pod: the scheduler asks for the next pod before the watch shows the
last one, and counts GPUs itself, but not the memory of shared ones
(docs/reference/sharing-and-memory.md#memory-budgets).
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from app.kube.gpu_usage import GPUUsage

NOTES_KEPT = 10_000
NOTE_SECONDS = 30.0
"""Seconds (docs/reference/sharing-and-memory.md#memory-budgets). A binding is seen in the watch within a second, so
that only pods that failed to bind get so old."""


NOMINATED = float("inf")


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise: what a pod will hold once it is bound, until the watch tells or this time of a monotonic clock.

    NOMINATED: as long as the API server shows the nomination.
    """

    holding: GPUUsage
    until: float


class GPUAllocations:
    """Holdings and notes, by pod UID and by node. A pod that is seen bound, or is gone, has no note any more."""

    def __init__(self) -> None:
        self._holdings: dict[str, GPUUsage] = {}
        self._notes: dict[str, Promise] = {}
        self._by_node: dict[str, dict[str, GPUUsage]] = {}
        self._groups: dict[str, dict[str, int]] = {}

    def get(self, uid: str) -> GPUUsage | None:
        """Say what a bound pod holds."""
        return self._holdings.get(uid)

    def bound(self, node: str) -> tuple[GPUUsage, ...]:
        """List what bound pods hold on a node."""
        return tuple(each for uid, each in self._by_node.get(node, {}).items() if uid not in self._notes)

    def take(self, holding: GPUUsage) -> Iterable[str]:
        """Take in what a bound pod holds; gives the nodes that this changes."""
        if self._holdings.get(holding.uid) == holding:
            return ()
        changed = {*self.drop(holding.uid), holding.node}
        self._holdings[holding.uid] = holding
        self._add(holding)
        return changed

    def drop(self, uid: str) -> Iterable[str]:
        """Forget a pod, bound or promised; gives the nodes that this changes."""
        note = self._notes.pop(uid, None)
        holding = note.holding if note else self._holdings.pop(uid, None)
        if holding is None:
            return ()
        self._remove(holding)
        return (holding.node,)

    def unbind(self, uid: str) -> Iterable[str]:
        """Note that a pod is seen neither bound nor nominated; what we promised to it lately still holds."""
        note = self._notes.get(uid)
        return () if note and note.until < NOMINATED else self.drop(uid)

    def promise(self, holding: GPUUsage, until: float) -> Iterable[str]:
        """Note where a pod will be; it replaces what was promised to it before."""
        if holding.uid in self._holdings:
            return ()
        changed = {*self.drop(holding.uid), holding.node}
        if len(self._notes) >= NOTES_KEPT:
            changed.update(self.drop(next(iter(self._notes))))
        self._notes[holding.uid] = Promise(holding, until)
        self._add(holding)
        return changed

    def release(self, uid: str, now: float) -> Iterable[str]:
        """Forget what is promised to a pod that asks again, and all promises that are too old."""
        gone = [uid] if uid in self._notes else []
        for each, note in self._notes.items():  # in the order made, so in the order of their ends
            if now < note.until < NOMINATED:
                break
            if note.until <= now:
                gone.append(each)
        return [node for each in dict.fromkeys(gone) for node in self.drop(each)]

    def units(self, node: str) -> Mapping[str, int]:
        """Sum the units that bound pods hold of each resource on a node; what is promised, kube-scheduler counts."""
        used: dict[str, int] = {}
        for uid, holding in self._by_node.get(node, {}).items():
            if uid not in self._notes:
                for resource, units in holding.units:
                    used[resource] = used.get(resource, 0) + units
        return used

    def declared(self, node: str, without: Container[str] = ()) -> Mapping[str, int]:
        """Sum the MiB that pods, bound or promised, declare of each resource on a node. `without`: UIDs left out."""
        found: dict[str, int] = {}
        for uid, holding in self._by_node.get(node, {}).items():
            if holding.memory_mib and uid not in without:
                for resource, units in holding.units:
                    found[resource] = found.get(resource, 0) + units * holding.memory_mib
        return found

    def nodes_of(self, group: str, but: str = "") -> Iterable[str]:
        """Name the nodes on which pods of a group are, or will be. `but` is the UID of one that is not counted."""
        own = self._notes[but].holding if but in self._notes else self._holdings.get(but)
        alone = own.node if own is not None and own.group == group else None
        return [node for node, count in self._groups.get(group, {}).items() if count > (node == alone)]

    def promised(self, uid: str) -> str | None:
        """Name the node that is promised to a pod."""
        promise = self._notes.get(uid)
        return promise.holding.node if promise else None

    def _add(self, holding: GPUUsage) -> None:
        self._by_node.setdefault(holding.node, {})[holding.uid] = holding
        if holding.group:
            nodes = self._groups.setdefault(holding.group, {})
            nodes[holding.node] = nodes.get(holding.node, 0) + 1

    def _remove(self, holding: GPUUsage) -> None:
        """Take a holding out, and its node and group with the last one: names that are gone must not pile up."""
        on_node = self._by_node[holding.node]
        del on_node[holding.uid]
        if not on_node:
            del self._by_node[holding.node]
        if holding.group:
            nodes = self._groups[holding.group]
            nodes[holding.node] -= 1
            if not nodes[holding.node]:
                del nodes[holding.node]
            if not nodes:
                del self._groups[holding.group]
