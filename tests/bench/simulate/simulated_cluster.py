# SPDX-License-Identifier: Apache-2.0
"""The simulated cluster: nodes as the engine sees them, and kube-scheduler's sums of requests."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from app.demo.sample_fleets import WHOLE_GPU
from app.knowledge.products import WHOLE_MILLI
from app.knowledge.tables import Knowledge
from app.nodes.model import FreeResources, Node, NodeClass
from app.nodes.reading import read_node
from app.world.node_groups import FreeGPUs
from app.world.verdict_cache import ChangeLog
from tests.bench.simulate.scheduler import (
    DEFAULT_CPU_MILLI,
    DEFAULT_MEMORY_MIB,
    balance_change,
    least_allocated,
)
from tests.bench.simulate.trace import Machine, Task
from tests.placement.expected_demands import free_by_product


def node_document(machine: Machine) -> dict[str, Any]:
    """Return a machine as a Node of the API server."""
    labels = {"nvidia.com/gpu.product": machine.product, "nvidia.com/gpu.count": str(machine.gpus)}
    amounts = {"cpu": f"{machine.cpu_milli}m", "memory": f"{machine.memory_mib}Mi", WHOLE_GPU: str(machine.gpus)}
    return {
        "kind": "Node",
        "metadata": {"name": machine.name, "labels": labels if machine.gpus else {}},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


class Binding(NamedTuple):
    """A pod on a node: the node before and after, its position, and the indexes of the GPUs that the pod holds."""

    before: Node
    after: Node
    position: int
    gpus: tuple[int, ...]


class SimulatedCluster:
    """Nodes by name with their change log, as a verdict cache needs, and free CPU and memory by position.

    Facts of each GPU are known, as with DRA; a share takes the fullest GPU that has room.
    """

    def __init__(self, machines: Sequence[Machine], knowledge: Knowledge) -> None:
        classes: dict[NodeClass, NodeClass] = {}
        self.nodes: dict[str, Node] = {}
        self.changes = ChangeLog()
        self.free_gpus = FreeGPUs()
        self.names = [machine.name for machine in machines]
        self.positions = {name: position for position, name in enumerate(self.names)}
        self.cpu = [machine.cpu_milli for machine in machines]
        self.memory = [machine.memory_mib for machine in machines]
        self._allocatable = [(machine.cpu_milli, machine.memory_mib) for machine in machines]
        self._gpus = [[WHOLE_MILLI] * machine.gpus for machine in machines]
        """The free capacity of each GPU in thousandths."""
        self._free: dict[tuple[NodeClass, tuple[int, ...]], FreeResources] = {}
        self._requested = [(0, 0)] * len(machines)
        """Requested CPU and memory, with defaults for pods that request none."""
        for machine in machines:
            node = read_node(node_document(machine), knowledge)
            shared = classes.setdefault(node.node_class, node.node_class)
            self.nodes[machine.name] = replace(node, node_class=shared, free_cpu_milli=machine.cpu_milli)
        for position, name in enumerate(self.names):
            node = self.nodes[name]
            self.nodes[name] = node.with_free(self._shared_free(node, position), node.free_cpu_milli)
            self.free_gpus.put(self.nodes[name])

    def free(self) -> Mapping[str, int]:
        """Return the free GPU milli by product."""
        return free_by_product(self.nodes.values())

    def in_tree(self, position: int, task: Task) -> int:
        """Return the sum of the in-tree scores of a node for a pod."""
        cpu, memory = self._requested[position]
        allocatable = self._allocatable[position]
        requested = (cpu + (task.cpu_milli or DEFAULT_CPU_MILLI), memory + (task.memory_mib or DEFAULT_MEMORY_MIB))
        score = least_allocated(requested, allocatable)
        if not task.cpu_milli and not task.memory_mib:
            return score  # BalancedAllocation skips pods without requests
        used = (allocatable[0] - self.cpu[position], allocatable[1] - self.memory[position])
        return score + balance_change(used, (task.cpu_milli, task.memory_mib), allocatable)

    def in_tree_packing(self, position: int, task: Task) -> int:
        """Return the in-tree score for a GPU pod that counts with `scheduler-config --no-extender`."""
        cpu, _ = self._allocatable[position]
        capacity = len(self._gpus[position]) * WHOLE_MILLI
        used = (cpu - self.cpu[position], capacity - sum(self._gpus[position]))
        return balance_change(used, (task.cpu_milli, task.milli), (cpu, capacity))

    def bind(self, position: int, task: Task) -> Binding:
        """Bind a pod to a node: it gets the first idle GPUs, and a share the fullest GPU that has room."""
        free = self._gpus[position]
        wanted = task.gpu_milli
        rooms = [index for index, milli in enumerate(free) if milli >= wanted]
        gpus = sorted(rooms, key=free.__getitem__)[:1] if task.gpus == 1 else rooms[: task.gpus]
        assert len(gpus) == task.gpus  # the filters have asked
        before, after = self._change(position, task, tuple(gpus), 1)
        return Binding(before, after, position, tuple(gpus))

    def bind_again(self, binding: Binding, task: Task) -> None:
        """Bind a pod to the GPUs that it had and that nothing else holds."""
        self._change(binding.position, task, binding.gpus, 1)

    def release(self, binding: Binding, task: Task) -> tuple[Node, Node]:
        """Release what a pod holds; return its node before and after."""
        return self._change(binding.position, task, binding.gpus, -1)

    def _change(self, position: int, task: Task, gpus: tuple[int, ...], sign: int) -> tuple[Node, Node]:
        self.cpu[position] -= sign * task.cpu_milli
        self.memory[position] -= sign * task.memory_mib
        cpu, memory = self._requested[position]
        self._requested[position] = (
            cpu + sign * (task.cpu_milli or DEFAULT_CPU_MILLI),
            memory + sign * (task.memory_mib or DEFAULT_MEMORY_MIB),
        )
        for index in gpus:
            self._gpus[position][index] -= sign * task.gpu_milli
        name = self.names[position]
        node = self.nodes[name]
        after = node.with_free(self._shared_free(node, position), self.cpu[position])
        self.nodes[name] = after
        self.free_gpus.put(after)
        self.changes.note(name)
        return node, after

    def _shared_free(self, node: Node, position: int) -> FreeResources:
        """Return the free resources of a node, one object for alike nodes, by which verdicts are shared as in State."""
        gpus = tuple(sorted(self._gpus[position], reverse=True))
        key = (node.node_class, gpus)
        if key not in self._free:
            self._free[key] = replace(node.free, units={WHOLE_GPU: gpus.count(WHOLE_MILLI)}, gpus=gpus)
        return self._free[key]
