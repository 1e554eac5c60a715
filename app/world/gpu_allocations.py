# SPDX-License-Identifier: Apache-2.0
"""What pods and claims hold on each node, and what is free beside them. A part of State.

A promise notes the node that we named for a pod, because the scheduler asks about the next pod before the watch shows
the last one. kube-scheduler counts the GPUs of that pod itself, but not the memory of shared GPUs: a promise counts in
`declared` and in its pod group, never in `units` (docs/reference/sharing-and-memory.md#memory-budgets). It ends when
the pod is seen bound or deleted, is asked about again, or after PROMISE_SECONDS. The promise of the node for which the
API server shows a nomination lasts as long as the nomination, because the victims may take longer to end.

A node may be served twice, by a device plugin and a DRA driver. Neither knows of the other: the kubelet picks
any device that is free in the plugin's own view, kube-scheduler any that no claim has, and no object says which devices
the plugin's pods got. As soon as one side holds a GPU, whatever the other gives next may be the same GPU. Counts prove
nothing; only kinds do: where the plugin tells whole GPUs and MIG slices apart (MIG strategies single and mixed), and
the driver does not create slices on demand, a whole GPU is none of the slices.

A fleet has thousands of nodes, but only dozens of different numbers of free GPUs. Equal free resources are one object,
so that a reader that meets it again, such as the cache of verdicts, need not compare it.
"""

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from dataclasses import dataclass

from app.knowledge.gpu_resources import Families
from app.knowledge.mig_profiles import profile_of
from app.kube.devices import Device
from app.kube.gpu_usage import GPUUsage
from app.kube.numa_zones import NUMAZones
from app.nodes.dra_devices import remaining_capacity
from app.nodes.model import FreeResources, Node, NodeClass, ServedTwice
from app.world.device_state import DeviceState
from app.world.dra_index import DRAIndex

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
        self._namespaces: dict[tuple[str, bool], Counter[str]] = {}
        self.on_bound: Callable[[GPUUsage], None] = lambda _usage: None
        """Called with each usage that is new, or on another node, once it is counted."""

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
        before = self._bound.get(usage.uid)
        changed = {*self.drop(usage.uid), usage.node}
        self._bound[usage.uid] = usage
        self._add(usage, bound=True)
        if before is None or before.node != usage.node:
            self.on_bound(usage)
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
        self._remove(usage, bound=promise_of_pod is None)
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
        self._add(usage, bound=False)
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

    def bound_of(self, group: str) -> int:
        """Count the bound pods of a group."""
        pods = (usages for name in self._groups.get(group, ()) for usages in self._by_node[name].values())
        return sum(usage.group == group and usage.uid in self._bound for usage in pods)

    def held_in(self, namespace: str, without: str | None = None) -> Mapping[str, int]:
        """Count the units that the pods of a namespace hold, by node.

        Nominated and promised pods count too, but not the pod with the UID `without`; None: bound pods alone count.
        """
        if without is None:
            return self._namespaces.get((namespace, True), Counter())
        held = self._namespaces.get((namespace, True), Counter()) + self._namespaces.get((namespace, False), Counter())
        own = self._promises[without].usage if without in self._promises else self._bound.get(without)
        if own is not None and _namespace_of(own) == namespace:
            held[own.node] -= own.all_units
        return held

    def promised_claims(self, namespace: str) -> frozenset[str]:
        """Name the pods of a namespace that a node is promised to, and that will claim devices there."""
        usages = (promise.usage for promise in self._promises.values() if promise.usage.claimed)
        return frozenset(usage.name.partition("/")[2] for usage in usages if _namespace_of(usage) == namespace)

    def nominated(self, uids: Iterable[str]) -> set[str]:
        """Return the nodes for which the API server shows these pods nominated."""
        return {self._nominations[uid] for uid in uids if uid in self._nominations}

    def promised(self, uid: str) -> str | None:
        """Return the node that is promised to a pod; None if there is none."""
        promise = self._promises.get(uid)
        return promise.usage.node if promise else None

    def _add(self, usage: GPUUsage, bound: bool) -> None:
        self._by_node.setdefault(usage.node, {})[usage.uid] = usage
        self._namespaces.setdefault((_namespace_of(usage), bound), Counter())[usage.node] += usage.all_units
        if usage.group:
            nodes = self._groups.setdefault(usage.group, {})
            nodes[usage.node] = nodes.get(usage.node, 0) + 1

    def _remove(self, usage: GPUUsage, bound: bool) -> None:
        """Remove the usage of a pod, and its node, namespace and group with the last one, lest old names pile up."""
        on_node = self._by_node[usage.node]
        del on_node[usage.uid]
        if not on_node:
            del self._by_node[usage.node]
        in_namespace = self._namespaces[key := (_namespace_of(usage), bound)]
        in_namespace[usage.node] -= usage.all_units
        if not in_namespace[usage.node]:
            del in_namespace[usage.node]
        if not in_namespace:
            del self._namespaces[key]
        if usage.group:
            nodes = self._groups[usage.group]
            nodes[usage.node] -= 1
            if not nodes[usage.node]:
                del nodes[usage.node]
            if not nodes:
                del self._groups[usage.group]


def _namespace_of(usage: GPUUsage) -> str:
    return usage.name.partition("/")[0]


WHOLE = ""
"""The kind of a whole GPU; that of a slice is its profile."""
ANY = "*"
"""The kind of a device that may overlap with every other one."""


class NodesServedTwice:
    """Finds what pods and claims hold on nodes that are served twice."""

    def __init__(self, dra: DRAIndex, allocations: GPUAllocations, families: Families) -> None:
        self._dra, self._allocations, self._families = dra, allocations, families

    def of(self, node: Node, without: Container[str] = ()) -> ServedTwice | None:
        """Return who holds GPUs of a node; None where not both give GPUs of one vendor away.

        `without` are UIDs of pods that do not count.
        """
        offered = {resource for resource, amount in node.node_class.offered if amount > 0}
        pools = self._dra.pools.pools(node) if offered else ()
        if not pools:
            return None
        family_of = self._families.of_device_class
        devices = [one for pool in pools for one in (*pool.devices, *pool.elsewhere) if family_of(one.driver)]
        of_drivers = ((one.driver, family_of(one.driver)) for one in devices)
        twice = {driver: family for driver, family in of_drivers if family and any(map(family.has, offered))}
        if not twice:
            return None
        devices = [one for one in devices if one.driver in twice]
        by_plugin = {name for name in offered if self._families.of(name) in twice.values()}
        classes = {name for family in twice.values() for name in self._dra.class_index.of_family(family)}
        usages = [usage for usage in self._allocations.all_on(node.name) if usage.uid not in without]
        plugin_kinds = {_kind_of_unit(name, node.node_class) for usage in usages for name, _ in usage.units
                        if name in by_plugin}  # fmt: skip
        claim_kinds = {_kind_of_device(one) for one in devices if self._dra.holders(one.id)}
        if any(classes.intersection(usage.claims) for usage in usages):
            claim_kinds.add(ANY)
        offered_kinds = {name: _kind_of_unit(name, node.node_class) for name in by_plugin}
        return ServedTwice(
            by_plugin=frozenset(by_plugin),
            by_claims=frozenset(classes | node.node_class.dra_resources),
            not_by_plugin=frozenset(name for name, kind in offered_kinds.items() if _overlap({kind}, claim_kinds)),
            not_by_claims=_overlap(plugin_kinds, {_kind_of_device(one) for one in devices}),
        )


def _kind_of_unit(resource: str, node_class: NodeClass) -> str:
    if node_class.mig_strategy not in ("single", "mixed"):
        return ANY
    return profile_of(resource) or node_class.mig_profile or WHOLE


def _kind_of_device(device: Device) -> str:
    """Return the kind of a device; a slice that is created on demand may be of any GPU."""
    if device.counters:
        return ANY
    bare = {name.rpartition("/")[2]: value for name, value in device.attributes.items()}
    return str(bare.get("profile", WHOLE)).replace("+", ".")


def _overlap(one: set[str], other: set[str]) -> bool:
    return bool(one and other and (one & other or ANY in one | other))


OBJECTS_KEPT = 1 << 14
"""Different free resources that are kept, of some 500 bytes each; when there are more, sharing starts again."""


class FreeResourcesOfNodes:
    """Computes free resources, and keeps those that it computed last, by their content."""

    def __init__(
        self, devices: DeviceState, allocations: GPUAllocations, twice: NodesServedTwice, used: Container[str]
    ) -> None:
        """Make it; `used` has the nodes of which some pod is known."""
        self._devices, self._allocations, self.twice, self._used = devices, allocations, twice, used
        self.topologies: dict[str, tuple[NUMAZones, frozenset[str]]] = {}
        self._by_content: dict[Hashable, FreeResources] = {}

    def of(self, node: Node) -> FreeResources:
        """Return what is free on a node now."""
        used = self._allocations.units(node.name)
        units = {resource: amount - used.get(resource, 0) for resource, amount in node.node_class.offered}
        gpus = layouts = kinds = twice = None
        if self._devices.dra.pools.by_name:
            twice, shown = self.twice.of(node), self._devices.index.gpus(node.name)
            allocated = self._devices.index.allocated(node.name) if shown.all else set()
            if shown.all and not node.node_class.uses_device_plugin:
                gpus, layouts = remaining_capacity(shown, allocated)
            kinds = self._devices.kinds.free_order(node, allocated) if shown.all else None
        return self._shared(FreeResources(
            units, gpus, node.free.uncounted, self.memory(node), layouts, kinds, twice, self.numa(node)
        ))  # fmt: skip

    def memory(self, node: Node, without: Container[str] = ()) -> Mapping[str, int]:
        """Return the memory of shared GPUs that no pod has declared, in MiB by resource.

        `without` are UIDs of pods that do not count.
        """
        if not node.node_class.budgets:
            return {}
        declared = self._allocations.declared(node.name, without)
        return {resource: total - declared.get(resource, 0) for resource, total in node.node_class.budgets}

    def put_topology(self, name: str, zones: NUMAZones) -> None:
        """Set a node's devices by NUMA node, with the pods that are there; an object that says nothing new is old."""
        if name not in self.topologies or self.topologies[name][0] != zones:
            self.topologies[name] = zones, frozenset(usage.uid for usage in self._allocations.bound(name))

    def numa(self, node: Node, without: Container[str] = ()) -> NUMAZones | None:
        """Return the devices of a node by NUMA node that are free at most; None where no object says it.

        Of pods in `without` what they give back counts only where it is certain. An object is believed where no pod of
        the node is known, as in a snapshot of nodes alone.
        """
        zones, seen = self.topologies.get(node.name, (None, ()))
        if zones is None or node.name not in self._used:
            return zones
        held, evicted = Counter[str](), Counter[str]()
        for usage in self._allocations.bound(node.name):
            if usage.uid in seen:
                held.update(dict(usage.units))
                evicted.update(dict(usage.units) if usage.uid in without else {})
        return zones.with_pods(held, evicted)

    def _shared(self, free: FreeResources) -> FreeResources:
        if len(self._by_content) >= OBJECTS_KEPT:
            self._by_content = {}
        content = (
            tuple(free.units.items()),
            tuple(free.memory.items()),
            free.gpus,
            free.uncounted,
            free.layouts,
            free.kinds,
            free.twice,
            free.numa,
        )
        return self._by_content.setdefault(content, free)
