# SPDX-License-Identifier: Apache-2.0
"""The GPU usage of the pods on each node, bound or promised. A part of State.

A promise notes the node that we named for a pod, because the scheduler asks about the next pod before the watch shows
the last one. kube-scheduler counts the GPUs of that pod itself, but not the memory of shared GPUs: a promise counts in
`declared` and in its pod group, never in `units` (docs/reference/sharing-and-memory.md#memory-budgets). It ends when
the pod is seen bound or deleted, is asked about again, or after PROMISE_SECONDS. The promise of the node for which the
API server shows a nomination lasts as long as the nomination, because the victims may take longer to end.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from app.kube.gpu_usage import GPUUsage

MOST_PROMISES = 10_000
"""One more drops the oldest promise. A guess."""
PROMISE_SECONDS = 30.0
"""Seconds (docs/reference/sharing-and-memory.md#memory-budgets). The watch shows a binding within a second, so only
pods that failed to bind get that old."""


NOMINATED = float("inf")
"""The end of a promise that is valid as long as the API server shows the pod nominated for the node."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The GPU usage that a pod will have once it is bound, valid until this time of a monotonic clock."""

    usage: GPUUsage
    until: float


class GPUAllocations:
    """GPU usage and promises, by pod UID and by node. A pod seen bound or deleted has no promise any more."""

    def __init__(self) -> None:
        self._bound: dict[str, GPUUsage] = {}
        self._promises: dict[str, Promise] = {}
        self._nominations: dict[str, str] = {}  # by pod UID, the nodes that the API server shows
        self._by_node: dict[str, dict[str, GPUUsage]] = {}
        self._groups: dict[str, dict[str, int]] = {}

    def get(self, uid: str) -> GPUUsage | None:
        """Return the GPU usage of a bound pod; None if it is unknown."""
        return self._bound.get(uid)

    def bound(self, node: str) -> tuple[GPUUsage, ...]:
        """Return the GPU usage of the pods bound to a node."""
        return tuple(usage for uid, usage in self._by_node.get(node, {}).items() if uid not in self._promises)

    def all_on(self, node: str) -> Iterable[GPUUsage]:
        """List the GPU usage of the pods that are bound, nominated or promised to a node."""
        return self._by_node.get(node, {}).values()

    def put(self, usage: GPUUsage) -> Iterable[str]:
        """Set the GPU usage of a bound pod; return the nodes that changed."""
        if self._bound.get(usage.uid) == usage:
            return ()
        changed = {*self.drop(usage.uid), usage.node}
        self._bound[usage.uid] = usage
        self._add(usage)
        return changed

    def drop(self, uid: str) -> Iterable[str]:
        """Remove a pod, bound, nominated or promised; return the nodes that changed."""
        self._nominations.pop(uid, None)
        return self._drop_usage(uid)

    def _drop_usage(self, uid: str) -> Iterable[str]:
        promise_of_pod = self._promises.pop(uid, None)
        usage = promise_of_pod.usage if promise_of_pod else self._bound.pop(uid, None)
        if usage is None:
            return ()
        self._remove(usage)
        return (usage.node,)

    def unbind(self, uid: str) -> Iterable[str]:
        """Note that a pod is neither bound nor nominated; a recent promise of ours still holds."""
        self._nominations.pop(uid, None)
        promise_of_pod = self._promises.get(uid)
        return () if promise_of_pod and promise_of_pod.until < NOMINATED else self._drop_usage(uid)

    def nominate(self, usage: GPUUsage) -> Iterable[str]:
        """Note the node for which the API server shows a pod nominated; return the nodes that changed."""
        if usage.uid in self._bound:
            return ()
        self._nominations[usage.uid] = usage.node
        return self.promise(usage, NOMINATED)

    def promise(self, usage: GPUUsage, until: float) -> Iterable[str]:
        """Promise a node to a pod, in place of an earlier promise; return the nodes that changed."""
        if usage.uid in self._bound:
            return ()
        changed = {*self._drop_usage(usage.uid), usage.node}
        if len(self._promises) >= MOST_PROMISES:
            changed.update(self._drop_usage(next(iter(self._promises))))
        nominated = self._nominations.get(usage.uid) == usage.node
        self._promises[usage.uid] = Promise(usage, NOMINATED if nominated else until)
        self._add(usage)
        return changed

    def release(self, uid: str, now: float) -> Iterable[str]:
        """Remove the promise to a pod that is asked about again, and all expired promises."""
        gone = [uid] if uid in self._promises else []
        for promised_uid, promise_of_pod in self._promises.items():  # ordered by expiry
            if now < promise_of_pod.until < NOMINATED:
                break
            if promise_of_pod.until <= now:
                gone.append(promised_uid)
        return [node for pod_uid in dict.fromkeys(gone) for node in self._drop_usage(pod_uid)]

    def units(self, node: str) -> Mapping[str, int]:
        """Return the units of each resource that bound pods hold; kube-scheduler counts promised ones itself."""
        used: dict[str, int] = {}
        for uid, usage in self._by_node.get(node, {}).items():
            if uid not in self._promises:
                for resource, units in usage.units:
                    used[resource] = used.get(resource, 0) + units
        return used

    def declared(self, node: str, without: Container[str] = ()) -> Mapping[str, int]:
        """Return the MiB that pods, bound or promised, declare of each resource, without the UIDs in `without`."""
        total: dict[str, int] = {}
        for uid, usage in self._by_node.get(node, {}).items():
            if usage.memory_mib and uid not in without:
                for resource, units in usage.units:
                    total[resource] = total.get(resource, 0) + units * usage.memory_mib
        return total

    def nodes_of(self, group: str, but: str = "") -> Iterable[str]:
        """Return the nodes of the pods of a group, bound or promised, except the pod with the UID `but`."""
        own = self._promises[but].usage if but in self._promises else self._bound.get(but)
        alone = own.node if own is not None and own.group == group else None
        return [node for node, count in self._groups.get(group, {}).items() if count > (node == alone)]

    def promised(self, uid: str) -> str | None:
        """Return the node that is promised to a pod; None if there is none."""
        promise = self._promises.get(uid)
        return promise.usage.node if promise else None

    def _add(self, usage: GPUUsage) -> None:
        self._by_node.setdefault(usage.node, {})[usage.uid] = usage
        if usage.group:
            nodes = self._groups.setdefault(usage.group, {})
            nodes[usage.node] = nodes.get(usage.node, 0) + 1

    def _remove(self, usage: GPUUsage) -> None:
        """Remove the usage of a pod, and its node and group with the last one, so that old names do not pile up."""
        on_node = self._by_node[usage.node]
        del on_node[usage.uid]
        if not on_node:
            del self._by_node[usage.node]
        if usage.group:
            nodes = self._groups[usage.group]
            nodes[usage.node] -= 1
            if not nodes[usage.node]:
                del nodes[usage.node]
            if not nodes:
                del self._groups[usage.group]
