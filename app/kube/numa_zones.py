# SPDX-License-Identifier: Apache-2.0
"""The devices of a node by NUMA node, and whether its kubelet's topology manager lets a pod have some of them.

The topology manager asks for all devices of a container, or with the scope `pod` of the pod, from one NUMA node (policy
single-numa-node), or from as few as would do if all were free (restricted); else the pod ends with
TopologyAffinityError, which kube-scheduler does not know (kubernetes pkg/kubelet/cm/topologymanager
policy_single_numa_node.go, policy_restricted.go, cm/devicemanager/topology_hints.go). Devices of claims give no hints.

A NodeResourceTopology (topology.node.k8s.io) says the policy, and what was free when its exporter last looked: a minute
ago, or when it was stopped. scheduler-plugins' NodeResourceTopologyMatch takes what its pods got since then from every
NUMA node, until the object's fingerprint is that of the pods of the node (kubernetes-sigs/scheduler-plugins
pkg/noderesourcetopology/cache/overreserve.go). Here what pods have given back since then counts as free on every NUMA
node, and what they got is not taken off, because their NUMA node is not known. So a refusal is certain, and ends at
the latest with the pods that were there when the object was seen to change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Annotated, NamedTuple

import msgspec

from app.kube.pods import Pod
from app.kube.records import KubeObject
from app.values.quantity import parse_quantity

SINGLE, RESTRICTED = "single-numa-node", "restricted"
_LEGACY = {
    f"{legacy}{level}": (policy, scope)
    for legacy, policy in (("SingleNUMANode", SINGLE), ("Restricted", RESTRICTED), ("BestEffort", "best-effort"))
    for level, scope in (("", "container"), ("ContainerLevel", "container"), ("PodLevel", "pod"))
} | {"None": ("none", "container")}
"""The values of `topologyPolicies`, which `attributes` replace (noderesourcetopology-api v1alpha2 types.go)."""
MOST = msgspec.Meta(max_length=1_024)
"""Zones of an object and resources of a zone. A guess: the kubelet takes eight NUMA nodes, and agents add sockets."""
Amounts = Mapping[str, int]
"""Numbers of devices by resource."""
Pairs = tuple[tuple[str, int], ...]
"""The same as sorted pairs, which can be a part of keys."""


class _Attribute(msgspec.Struct):
    name: str
    value: str = ""


class _ZoneResource(msgspec.Struct):
    name: str
    capacity: str | int = 0
    allocatable: str | int | None = None
    available: str | int | None = None


class _Zone(msgspec.Struct):
    type: str = ""
    resources: Annotated[list[_ZoneResource], MOST] | None = None


class NodeResourceTopology(KubeObject, frozen=True):
    """A NodeResourceTopology of v1alpha2 or v1alpha1; a zone of the type Node is a NUMA node."""

    topology_policies: list[str] | None = None
    attributes: Annotated[list[_Attribute], MOST] | None = None
    zones: Annotated[list[_Zone], MOST] | None = None


@dataclass(frozen=True, slots=True)
class NUMAZones:
    """The device resources of a node by NUMA node: all that there are, and those that are free.

    `policy` and `scope` are those of its topology manager, as a kubelet's configuration names them; the policy is empty
    where it is not known.
    """

    policy: str
    scope: str
    total: tuple[Pairs, ...]
    free: tuple[Pairs, ...]

    def with_pods(self, held: Amounts, evicted: Amounts) -> "NUMAZones":
        """Give what is free at most, beside the pods that were there when the object was written.

        `held` is what these still hold; all of a resource that is not in it counts as free. `evicted` is what some of
        them would give back, of which only what cannot be on other NUMA nodes counts.
        """
        totals, left = [dict(zone) for zone in self.total], [dict(zone) for zone in self.free]
        for name in {name for zone in totals for name in zone}:
            used = [total.get(name, 0) - free.get(name, 0) for total, free in zip(totals, left, strict=True)]
            ended = max(0, sum(used) - held.get(name, 0))
            for total, free, here in zip(totals, left, used, strict=True):
                back = ended + max(0, evicted.get(name, 0) - (sum(used) - here))
                free[name] = min(total.get(name, 0), free.get(name, 0) + back)
        return replace(self, free=tuple(tuple(sorted(zone.items())) for zone in left))


def read_topology(found: NodeResourceTopology) -> NUMAZones:
    """Read a NodeResourceTopology. Raises QuantityError."""
    attributes = {one.name: one.value for one in found.attributes or ()}
    legacy = next((_LEGACY[name] for name in found.topology_policies or () if name in _LEGACY), ("", ""))
    zones = [_read_zone(zone) for zone in found.zones or () if zone.type == "Node"]
    return NUMAZones(
        attributes.get("topologyManagerPolicy", legacy[0]),
        attributes.get("topologyManagerScope", legacy[1] or "container"),
        tuple(total for total, _ in zones),
        tuple(free for _, free in zones),
    )


def _read_zone(zone: _Zone) -> tuple[Pairs, Pairs]:
    """Read the device resources of a zone: all that there are, and those that are free."""
    total, free = {}, {}
    for one in zone.resources or ():
        if "/" in one.name:
            allocatable = one.capacity if one.allocatable is None else one.allocatable
            total[one.name] = int(parse_quantity(str(allocatable)))
            free[one.name] = int(parse_quantity(str(allocatable if one.available is None else one.available)))
    return tuple(sorted(total.items())), tuple(sorted(free.items()))


class DeviceAmounts(NamedTuple):
    """The devices that a pod or a container asks for at once, and whether they are kept while the next ones start."""

    who: str
    amounts: Pairs
    kept: bool


def device_amounts(pod: Pod) -> tuple[DeviceAmounts, ...]:
    """List what a kubelet may be asked for at once: first by the pod as a whole, then by each container."""
    names = sorted({name for container in pod.containers for name in container.resources() if "/" in name})

    def of(amounts: Sequence[Fraction]) -> Pairs:
        return tuple((name, ceil(amount)) for name, amount in zip(names, amounts, strict=True) if amount > 0)

    by_container = (
        DeviceAmounts(f"container {one.name}", of([*map(one.requested, names)]), not one.passing)
        for one in pod.containers
    )
    return DeviceAmounts("the pod", of([*map(pod.amount, names)]), True), *by_container


class TopologyRefusal(NamedTuple):
    """The devices that a kubelet cannot give as its policy wants, and the most that are free on one NUMA node."""

    who: str
    wanted: str
    most: int


def topology_refusal(asked: Sequence[DeviceAmounts], zones: NUMAZones) -> TopologyRefusal | None:
    """Give the first devices that the kubelet cannot give as its policy wants; None where it can give all.

    `asked` is what `device_amounts` lists. A policy that is not known is taken for single-numa-node.
    """
    if zones.policy not in ("", SINGLE, RESTRICTED) or len(zones.total) < 2:
        return None
    total, free = [dict(zone) for zone in zones.total], [dict(zone) for zone in zones.free]
    names = {name for zone in total for name in zone}
    for who, amounts, kept in asked[:1] if zones.scope == "pod" else asked[1:]:
        wanted = [item for item in amounts if item[0] in names]
        spread = {name: _spread(total, name, amount) if zones.policy == RESTRICTED else 1 for name, amount in wanted}
        lacking = [item for item in wanted if _spread(free, *item) > min(spread[item[0]], len(total))]
        places = [zone for zone in free if all(zone.get(name, 0) >= amount for name, amount in wanted)]
        if lacking or (zones.policy != RESTRICTED and not places):
            name, amount = (lacking or wanted)[0]
            return TopologyRefusal(who, f"{amount} {name}", max(zone.get(name, 0) for zone in free))
        for item in wanted if kept else ():
            _take(places[:1] or free, *item)
    return None


def _spread(zones: Sequence[Amounts], name: str, amount: int) -> int:
    """Give the least number of NUMA nodes that together have an amount, one more than there are if all have too few."""
    for number, most in enumerate(sorted((zone.get(name, 0) for zone in zones), reverse=True), 1):
        amount -= most
        if amount <= 0:
            return number
    return len(zones) + 1


def _take(zones: Sequence[dict[str, int]], name: str, amount: int) -> None:
    for zone in sorted(zones, key=lambda zone: -zone.get(name, 0)):
        taken = min(amount, zone.get(name, 0))
        zone[name] = zone.get(name, 0) - taken
        amount -= taken
