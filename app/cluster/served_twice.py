# SPDX-License-Identifier: Apache-2.0
"""Nodes whose GPUs a device plugin and a DRA driver both give away: who holds some of them now. A part of State (F135).

Neither knows of the other. The kubelet picks any device that is free in the plugin's own view, kube-scheduler any that
no claim has, and no object says which devices the plugin's pods got. So as soon as one side holds a GPU, whatever the
other side gives next may be the same GPU. Counts prove nothing; only kinds do: where the plugin tells whole GPUs and
MIG slices apart (MIG strategies single and mixed), and the driver does not create slices on demand, a whole GPU is none
of the slices.
"""

from collections.abc import Container

from app.cluster.dra_index import DRAIndex
from app.cluster.gpu_allocations import GPUAllocations
from app.dra.devices import Device
from app.knowledge.gpu_resources import Families
from app.knowledge.mig_profiles import profile_of
from app.kube.device_classes import DeviceClassIndex
from app.nodes.model import Node, NodeClass, ServedTwice

WHOLE = ""
"""The kind of a whole GPU; that of a slice is its profile."""
ANY = "*"
"""The kind of a device that may overlap with every other one."""


class NodesServedTwice:
    """Finds what pods and claims hold on nodes that are served twice."""

    def __init__(
        self, dra: DRAIndex, classes: DeviceClassIndex, allocations: GPUAllocations, families: Families
    ) -> None:
        self._dra, self._classes, self._allocations, self._families = dra, classes, allocations, families

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
        classes = {name for family in twice.values() for name in self._classes.of_family(family)}
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
