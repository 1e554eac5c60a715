# SPDX-License-Identifier: Apache-2.0
"""What filters know of the DRA devices of each node: their GPUs, and their kinds. A part of State.

Both are made of the slices of `DRAIndex` when they are first asked for after a change.
"""

from collections import Counter
from collections.abc import Container, Iterable
from itertools import count

from app.dra.device_kinds import DeviceKind, DeviceKinds, KindKey, KindsOfNode, blocking_taints, kind_key
from app.knowledge.tables import Knowledge
from app.kube.device_models import NVIDIA_DRIVER
from app.kube.devices import Device, DeviceID, ResourceSlice
from app.nodes.dra_devices import NodeGPUs, group_by_gpu
from app.nodes.model import Node
from app.world.dra_index import DRAIndex

KINDS_KEPT = 1 << 12
"""Combinations of kinds that are shared; a fleet has dozens. Above it, sharing starts again. A guess."""


class DeviceIndex:
    """The GPUs of nodes with slices, and those that claims have."""

    def __init__(self, dra: DRAIndex, knowledge: Knowledge) -> None:
        self._dra, self._knowledge = dra, knowledge
        self._gpus: dict[str, NodeGPUs] = {}

    def drop(self, node: str) -> None:
        """Forget the GPUs of a node, as its slices have changed."""
        self._gpus.pop(node, None)

    def gpus(self, node: str) -> NodeGPUs:
        """Return a node's devices of NVIDIA's driver, by GPU."""
        if node not in self._gpus:
            slices = [one for one in self._dra.pools.slices_on(node) if one.driver == NVIDIA_DRIVER]
            self._gpus[node] = group_by_gpu(_newest(slices), self._knowledge)
        return self._gpus[node]

    def devices(self, node: str) -> tuple[Device, ...]:
        """Return a node's devices of NVIDIA's driver, those of one GPU together."""
        return tuple(device for gpu in self.gpus(node).all for device in gpu.devices)

    def of_other_vendors(self, node: str) -> dict[str, list[Device]]:
        """Return a node's GPUs of other vendors' drivers, by driver."""
        by_driver: dict[str, list[ResourceSlice]] = {}
        for one in self._dra.pools.slices_on(node):
            if one.driver != NVIDIA_DRIVER:
                by_driver.setdefault(one.driver, []).append(one)
        found = {driver: _newest(slices) for driver, slices in sorted(by_driver.items())}
        return {driver: devices for driver, devices in found.items() if devices}

    def allocated(self, node: str) -> set[str]:
        """Return the names of a node's devices that are allocated to claims."""
        slices = (one for one in self._dra.pools.slices_on(node) if one.driver == NVIDIA_DRIVER)
        return {device.name for one in slices for device in one.devices if self._dra.holders(device.id)}


def _newest(slices: Iterable[ResourceSlice]) -> list[Device]:
    """List the GPUs of the newest generation of each pool."""
    slices = list(slices)
    newest: dict[str, int] = {}
    for one in slices:
        newest[one.pool] = max(one.generation, newest.get(one.pool, 0))
    current = (device for one in slices if one.generation == newest[one.pool] for device in one.devices)
    return [device for device in current if device.model.is_gpu]


class DeviceKindIndex:
    """What filters know of the devices of each node, made when it is first asked for after a change.

    Nodes with devices of the same kinds share one object, by whose serial number verdicts are cached.
    """

    def __init__(self, devices: DeviceIndex, dra: DRAIndex, knowledge: Knowledge) -> None:
        self._devices, self._dra, self._knowledge = devices, dra, knowledge
        self._by_node: dict[str, KindsOfNode | None] = {}
        self._shared: dict[tuple[tuple[KindKey, int], ...], DeviceKinds] = {}
        self._serials = count(1)
        self._fleet: tuple[DeviceKinds, ...] | None = None

    def of(self, node: Node) -> DeviceKinds | None:
        """Return the kinds of a node's devices; None for a node without devices of its own."""
        of_node = self._of(node)
        return of_node.kinds if of_node is not None else None

    def _of(self, node: Node) -> KindsOfNode | None:
        if node.name not in self._by_node:
            self._by_node[node.name] = self._read(node)
            self._fleet = None
        return self._by_node[node.name]

    def fleet(self) -> tuple[DeviceKinds, ...]:
        """List the kinds of all nodes, one object for nodes that are alike."""
        if self._fleet is None:
            self._fleet = tuple({of_node.kinds: None for of_node in self._by_node.values() if of_node is not None})
        return self._fleet

    def devices_of(self, node: Node) -> Iterable[DeviceID]:
        """List the devices of a node, in the order of the allocator."""
        of_node = self._of(node)
        return () if of_node is None else (device.id for device, _ in of_node.by_device)

    def drop(self, name: str) -> None:
        """Forget a node, as its slices have changed or it is gone."""
        self._by_node.pop(name, None)
        self._fleet = None

    def drop_all(self) -> None:
        """Forget all nodes, as a rule that taints devices has changed."""
        self._by_node.clear()
        self._fleet = None

    def start_anew(self) -> None:
        """Forget all nodes and what they share, as a DeviceClass has changed."""
        self.drop_all()
        self._shared.clear()

    def free_order(self, node: Node, allocated: Container[str]) -> tuple[int, ...] | None:
        """List the kinds that are free on a node, by their first free device; None for a node with one kind or none.

        `allocated` are the names of devices that claims have. A whole GPU is not free while a slice of it is allocated,
        nor is a slice while its GPU is; whether two slices overlap is left to kube-scheduler.
        """
        of_node = self._of(node)
        if of_node is None or len(of_node.kinds.kinds) < 2:
            return None
        shown = self._devices.gpus(node.name).devices
        taken = [device for key, device in shown.items() if key in allocated]
        touched = {device.gpu for device in taken}
        whole = {device.gpu for device in taken if not device.model.mig_profile}

        def is_free(device: Device) -> bool:
            if device.driver != NVIDIA_DRIVER or device.name not in shown:
                return True
            if device.name in allocated:
                return False
            return not touched or device.gpu not in (whole if device.model.mig_profile else touched)

        return tuple(dict.fromkeys(kind for device, kind in of_node.by_device if is_free(device)))

    def _read(self, node: Node) -> KindsOfNode | None:
        """Sort the devices of a node by kind, in the order of the allocator."""
        shown = self._devices.gpus(node.name).devices
        if not shown:
            return None
        first: dict[KindKey, tuple[int, Device, bool]] = {}
        by_device: list[tuple[Device, int]] = []
        rules = self._dra.taint_rules()
        for device in (device for pool in self._dra.pools.pools(node) for device in pool.devices):
            is_shown = device.driver == NVIDIA_DRIVER and device.name in shown
            key = kind_key(device, is_shown, blocking_taints(device, rules) if rules or device.taints else ())
            by_device.append((device, first.setdefault(key, (len(first), device, is_shown))[0]))
        numbers = Counter(position for _, position in by_device)
        content = tuple((key, numbers[position]) for key, (position, _, _) in first.items())
        shared = self._shared.get(content)
        if shared is None:
            if len(self._shared) >= KINDS_KEPT:
                self._shared.clear()
            kinds = (
                DeviceKind(one, one.model if is_shown else None, blocking_taints(one, rules), numbers[position])
                for position, one, is_shown in first.values()
            )
            shared = DeviceKinds(next(self._serials), tuple(kinds), self._dra.classes, self._knowledge)
            self._shared[content] = shared
        return KindsOfNode(shared, tuple(by_device))
