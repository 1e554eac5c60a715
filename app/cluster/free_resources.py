# SPDX-License-Identifier: Apache-2.0
"""What is free on a node beside its pods and claims. A part of State.

A fleet has thousands of nodes, but only dozens of different numbers of free GPUs. Equal free resources are one object,
so that a reader that meets it again, such as the cache of verdicts, need not look into it.
"""

from collections.abc import Container, Hashable, Mapping

from app.cluster.device_index import DeviceIndex
from app.cluster.device_kind_index import DeviceKindIndex
from app.cluster.gpu_allocations import GPUAllocations
from app.cluster.served_twice import NodesServedTwice
from app.nodes.dra_devices import remaining_capacity
from app.nodes.model import FreeResources, Node

OBJECTS_KEPT = 1 << 14
"""Different free resources that are kept, of some 500 bytes each; when there are more, sharing starts again."""


class FreeResourcesOfNodes:
    """Computes free resources, and keeps those that it computed last, by their content."""

    def __init__(
        self, devices: DeviceIndex, kinds: DeviceKindIndex, allocations: GPUAllocations, twice: NodesServedTwice
    ) -> None:
        self._devices, self._kinds, self.twice = devices, kinds, twice
        self._allocations = allocations
        self._by_content: dict[Hashable, FreeResources] = {}

    def of(self, node: Node) -> FreeResources:
        """Return what is free on a node now."""
        used = self._allocations.units(node.name)
        units = {resource: amount - used.get(resource, 0) for resource, amount in node.node_class.offered}
        gpus, layouts, shown = None, None, self._devices.gpus(node.name)
        if shown.all and not node.node_class.uses_device_plugin:
            gpus, layouts = remaining_capacity(shown, self._devices.allocated(node.name))
        kinds = self._kinds.free_order(node, self._devices.allocated(node.name)) if shown.all else None
        twice = self.twice.of(node)
        return self._shared(FreeResources(units, gpus, node.free.uncounted, self.memory(node), layouts, kinds, twice))

    def memory(self, node: Node, without: Container[str] = ()) -> Mapping[str, int]:
        """Return the memory of shared GPUs that no pod has declared, in MiB by resource.

        `without` are UIDs of pods that do not count.
        """
        if not node.node_class.budgets:
            return {}
        declared = self._allocations.declared(node.name, without)
        return {resource: total - declared.get(resource, 0) for resource, total in node.node_class.budgets}

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
        )
        return self._by_content.setdefault(content, free)
