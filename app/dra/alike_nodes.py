# SPDX-License-Identifier: Apache-2.0
"""Tells which nodes are alike for the claims of a pod, so that one answer serves all of them.

A fleet has thousands of nodes and few kinds of devices. Two nodes are alike where their devices, in order, are equal in
all that the claims read of them, in their taints, and in being allocated.
"""

from collections.abc import Hashable, Iterable
from fractions import Fraction

from app.dra.cel_errors import SelectorError
from app.dra.cel_facts import Read, read_fact
from app.dra.cluster_devices import ClusterDevices
from app.dra.selectors import compile_selector
from app.kube.devices import Device, DeviceTaint
from app.kube.resource_claims import ResourceClaim
from app.nodes.model import Node


def requests_of(claims: Iterable[ResourceClaim]) -> Hashable:
    """Return what tells claims of one pod apart: on a node with a device plugin it has fewer requests."""
    return tuple((claim.key, len(claim.spec.requests)) for claim in claims)


def reads_of(claims: Iterable[ResourceClaim], cluster: ClusterDevices) -> frozenset[Read] | None:
    """Return the facts that claims, and all classes, read of devices.

    It is None where that is not known, or where a claim asks for a share of a capacity.
    """
    of_classes = [_reads(selector) for one in cluster.classes.values() for selector in one.selectors]
    reads: set[Read] = {read for of_class in of_classes for read in of_class or ()}
    for claim in claims:
        reads |= {Read("attributes", constraint.attribute) for constraint in claim.spec.constraints}
        for request in (request for choices in claim.spec.requests for request in choices):
            device_class = cluster.classes.get(request.device_class)
            selectors = (*(device_class.selectors if device_class else ()), *request.selectors)
            of_request = list(map(_reads, selectors))
            if request.capacity is not None or None in of_request:
                return None
            reads.update(*(one for one in of_request if one is not None))
    return frozenset(reads)


def _reads(selector: str) -> frozenset[Read] | None:
    try:
        return compile_selector(selector).reads
    except SelectorError:
        return None


class AlikeNodes:
    """Keys of nodes, equal for nodes that are alike for claims which read nothing but `reads`.

    A node has no key where its devices share counters or capacity, or are not for all nodes of their slice.
    """

    def __init__(self, cluster: ClusterDevices, reads: frozenset[Read] | None) -> None:
        self._cluster = cluster
        self.reads = reads
        self._order = sorted(reads or ())
        self._numbers: dict[Hashable, int] = {}
        self._keys: dict[str, Hashable | None] = {}

    def key(self, node: Node) -> Hashable | None:
        """Return the key of a node; None if it has none."""
        if self.reads is None:
            return None
        if node.name not in self._keys:
            self._keys[node.name] = self._key(node)
        return self._keys[node.name]

    def _key(self, node: Node) -> Hashable | None:
        parts: list[Hashable] = []
        for pool in self._cluster.pools.pools(node):
            if pool.counter_sets or any(map(_is_special, pool.devices)):
                return None
            parts.append((pool.incomplete, bool(pool.invalid)))
            parts += [self._device(device) for device in pool.devices]
        return tuple(parts)

    def _device(self, device: Device) -> Hashable:
        facts = tuple([_hashable(read_fact(device, read)) for read in self._order])
        number = self._numbers.setdefault((device.driver, facts), len(self._numbers))
        taints = self._taints(device)
        allocated = device.id in self._cluster.allocated.alone
        return (number, allocated, taints) if taints else (number, allocated)

    def _taints(self, device: Device) -> tuple[DeviceTaint, ...]:
        rules = (rule.taint for rule in self._cluster.taint_rules if rule.applies(device))
        return (*device.taints, *rules)


def _is_special(device: Device) -> bool:
    """Tell whether more than the facts of one device decide who gets it."""
    return bool(
        device.counters
        or device.allow_multiple_allocations
        or device.policies
        or device.nodes
        or device.waits_for_driver
    )


def _hashable(value: object) -> Hashable:
    """Keep apart what Python takes for equal, as 1, True and a quantity of one."""
    return (type(value), value) if isinstance(value, bool | int | Fraction) else value
