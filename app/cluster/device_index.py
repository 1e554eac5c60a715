# SPDX-License-Identifier: Apache-2.0
"""The ResourceSlices of nodes and the devices allocated to claims. A part of State."""

from collections.abc import Iterable
from typing import Any

from app.knowledge.tables import Knowledge
from app.kube.resource_claims import AllocatedDevice
from app.kube.resource_slices import NVIDIA_DRIVER, Device, ResourceSlice
from app.nodes.dra_devices import NodeGPUs, group_by_gpu


class DeviceIndex:
    """The slices by node, and the allocated devices by pool.

    Every change returns the names of the nodes that it affects, and costs what those have of slices and claims. An
    allocation may arrive before the slices of its pool.
    """

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._slices: dict[str, ResourceSlice] = {}
        self._by_node: dict[str, dict[str, ResourceSlice]] = {}
        self._by_pool: dict[str, dict[str, str]] = {}
        self._gpus: dict[str, NodeGPUs] = {}
        self._allocated: dict[str, tuple[AllocatedDevice, ...]] = {}
        self._allocated_by_pool: dict[str, dict[str, tuple[str, ...]]] = {}

    def put(self, resource_slice: ResourceSlice) -> set[str]:
        """Add or change a ResourceSlice; return the affected nodes."""
        affected = self.drop(resource_slice.name)
        if resource_slice.node is not None:
            self._slices[resource_slice.name] = resource_slice
            self._by_node.setdefault(resource_slice.node, {})[resource_slice.name] = resource_slice
            self._by_pool.setdefault(resource_slice.pool, {})[resource_slice.name] = resource_slice.node
            self._gpus.pop(resource_slice.node, None)
            affected.add(resource_slice.node)
        return affected

    def drop(self, name: str) -> set[str]:
        """Remove a ResourceSlice; return the affected nodes."""
        resource_slice = self._slices.pop(name, None)
        if resource_slice is None or resource_slice.node is None:
            return set()
        _delete(self._by_node, resource_slice.node, name)
        _delete(self._by_pool, resource_slice.pool, name)
        self._gpus.pop(resource_slice.node, None)
        return {resource_slice.node}

    def allocate(self, claim: str, devices: Iterable[AllocatedDevice] = ()) -> set[str]:
        """Set the devices allocated to a claim (namespace/name), none by default; return the affected nodes."""
        nvidia_devices = tuple(device for device in devices if device.driver == NVIDIA_DRIVER)
        before = self._allocated.pop(claim, ())
        if nvidia_devices:
            self._allocated[claim] = nvidia_devices
        if nvidia_devices == before:
            return set()
        for pool in {device.pool for device in before}:
            _delete(self._allocated_by_pool, pool, claim)
        for pool in {device.pool for device in nvidia_devices}:
            names = tuple(device.device for device in nvidia_devices if device.pool == pool)
            self._allocated_by_pool.setdefault(pool, {})[claim] = names
        pools = {device.pool for device in (*before, *nvidia_devices)}
        return {node for pool in pools for node in self._by_pool.get(pool, {}).values()}

    def nodes(self) -> tuple[str, ...]:
        """Return the names of the nodes that have slices."""
        return tuple(self._by_node)

    def nodes_of_pool(self, pool: str) -> tuple[str, ...]:
        """Return the names of the nodes that have slices of a pool."""
        return tuple(dict.fromkeys(self._by_pool.get(pool, {}).values()))

    def devices(self, node: str, others: bool = False) -> tuple[Device, ...]:
        """Return a node's devices of NVIDIA's driver, or `others`: those of the newest generation of each pool."""
        if node not in self._by_node:
            return ()
        slices = [each for each in self._by_node[node].values() if (each.driver != NVIDIA_DRIVER) is others]
        newest: dict[str, int] = {}
        for resource_slice in slices:
            newest[resource_slice.pool] = max(resource_slice.generation, newest.get(resource_slice.pool, 0))
        return tuple(
            device
            for resource_slice in slices
            if resource_slice.generation == newest[resource_slice.pool]
            for device in resource_slice.devices
        )

    def other_drivers(self, node: str) -> tuple[str, ...]:
        """Name the other vendors' drivers that publish GPUs of a node."""
        slices = self._by_node.get(node, {}).values()
        return tuple(sorted({each.driver for each in slices if each.devices and each.driver != NVIDIA_DRIVER}))

    def gpus(self, node: str) -> NodeGPUs:
        """Return a node's devices by GPU."""
        if node not in self._gpus:
            self._gpus[node] = group_by_gpu(self.devices(node), self._knowledge)
        return self._gpus[node]

    def allocated(self, node: str) -> set[str]:
        """Return the names of a node's devices that are allocated to claims."""
        pools = {resource_slice.pool for resource_slice in self._by_node.get(node, {}).values()}
        return {name for pool in pools for names in self._allocated_by_pool.get(pool, {}).values() for name in names}


def _delete(groups: dict[str, dict[str, Any]], group: str, key: str) -> None:
    """Delete a key, and its group with the last key, so that names of removed nodes do not pile up."""
    del groups[group][key]
    if not groups[group]:
        del groups[group]
