# SPDX-License-Identifier: Apache-2.0
"""What DRA shows of nodes: their ResourceSlices, and the devices that claims hold. A part of State (F60, F135)."""

from collections.abc import Iterable
from typing import Any

from app.knowledge.tables import Knowledge
from app.kube.resource_claims import AllocatedDevice
from app.kube.resource_slices import NVIDIA_DRIVER, Device, ResourceSlice
from app.nodes.dra_devices import NodeGPUs, group_by_gpu


class DeviceIndex:
    """Slices by node, and allocated devices by pool.

    Every change names the nodes that it touches, and costs what those have of slices and claims. An allocation may
    come before the slices of its pool.
    """

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._slices: dict[str, ResourceSlice] = {}
        self._by_node: dict[str, dict[str, ResourceSlice]] = {}
        self._by_pool: dict[str, dict[str, str]] = {}
        self._gpus: dict[str, NodeGPUs] = {}
        self._given: dict[str, tuple[AllocatedDevice, ...]] = {}
        self._held: dict[str, dict[str, tuple[str, ...]]] = {}

    def put(self, found: ResourceSlice) -> set[str]:
        """Take a ResourceSlice in, new or changed."""
        touched = self.drop(found.name)
        if found.node is not None:
            self._slices[found.name] = found
            self._by_node.setdefault(found.node, {})[found.name] = found
            self._by_pool.setdefault(found.pool, {})[found.name] = found.node
            self._gpus.pop(found.node, None)
            touched.add(found.node)
        return touched

    def drop(self, name: str) -> set[str]:
        """Forget a ResourceSlice."""
        known = self._slices.pop(name, None)
        if known is None or known.node is None:
            return set()
        _remove(self._by_node, known.node, name)
        _remove(self._by_pool, known.pool, name)
        self._gpus.pop(known.node, None)
        return {known.node}

    def give(self, claim: str, devices: Iterable[AllocatedDevice] = ()) -> set[str]:
        """Take in which devices a claim (namespace/name) holds now; none: it holds nothing any more."""
        ours = tuple(each for each in devices if each.driver == NVIDIA_DRIVER)
        before = self._given.pop(claim, ())
        if ours:
            self._given[claim] = ours
        if ours == before:
            return set()
        for pool in {each.pool for each in before}:
            _remove(self._held, pool, claim)
        for pool in {each.pool for each in ours}:
            names = tuple(each.device for each in ours if each.pool == pool)
            self._held.setdefault(pool, {})[claim] = names
        pools = {each.pool for each in (*before, *ours)}
        return {node for pool in pools for node in self._by_pool.get(pool, {}).values()}

    def nodes(self) -> tuple[str, ...]:
        """Name the nodes that have slices."""
        return tuple(self._by_node)

    def devices(self, node: str) -> tuple[Device, ...]:
        """List a node's devices, those of the newest generation of each pool."""
        slices = self._by_node.get(node, {}).values()
        newest: dict[str, int] = {}
        for each in slices:
            newest[each.pool] = max(each.generation, newest.get(each.pool, 0))
        return tuple(device for each in slices if each.generation == newest[each.pool] for device in each.devices)

    def gpus(self, node: str) -> NodeGPUs:
        """Give a node's devices by GPU."""
        if node not in self._gpus:
            self._gpus[node] = group_by_gpu(self.devices(node), self._knowledge)
        return self._gpus[node]

    def held(self, node: str) -> set[str]:
        """Name the devices of a node that claims hold."""
        pools = {each.pool for each in self._by_node.get(node, {}).values()}
        return {name for pool in pools for names in self._held.get(pool, {}).values() for name in names}


def _remove(groups: dict[str, dict[str, Any]], group: str, key: str) -> None:
    """Take a key out of its group, and the group with its last key: names of nodes that are gone must not pile up."""
    del groups[group][key]
    if not groups[group]:
        del groups[group]
