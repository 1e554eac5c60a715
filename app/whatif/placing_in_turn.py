# SPDX-License-Identifier: Apache-2.0
"""A fleet as it would be: nodes are changed one after another, and pods take the best node that has room.

The claims of a pod are judged here too. A filter refuses no node on which claims select nothing, since kube-scheduler
says so itself, but kube-scheduler cannot be asked about a node that is only imagined.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from app.dra.device_kinds import DeviceKind, DeviceKinds
from app.explain.fleet_placements import unserved_claim
from app.knowledge.cuda_compatibility import CUDATables
from app.kube.device_models import NVIDIA_DRIVER, Attribute, Attributes, SemanticVersion
from app.nodes.model import DevicesOnNode, Node
from app.placement.engine import judge
from app.placement.ranking import place_on_best
from app.policy.demand import Demand
from app.values.versions import Version

DRIVER_VERSION, CUDA_VERSION = f"{NVIDIA_DRIVER}/driverVersion", f"{NVIDIA_DRIVER}/cudaDriverVersion"
"""Attributes of every GPU and MIG slice (NVIDIA/k8s-dra-driver-gpu cmd/gpu-kubelet-plugin/deviceinfo.go)."""


def shares_counters(node: Node) -> bool:
    """Tell whether devices of a node consume counters, by which MIG slices are created on demand."""
    return isinstance(node.devices, DeviceKinds) and any(kind.device.counters for kind in node.devices.kinds)


class DevicesWithDriver:
    """The devices of nodes as they would be with another driver; nodes that are alike share one object."""

    def __init__(self, driver: Version, tables: CUDATables) -> None:
        self.driver, self.cuda = driver, tables.highest_cuda(driver)
        self._by_serial: dict[int, DeviceKinds] = {}

    def of(self, devices: DevicesOnNode | None) -> DevicesOnNode | None:
        """Return the devices of a node with the other driver; None for a node without devices."""
        if not isinstance(devices, DeviceKinds):
            return None
        if devices.serial not in self._by_serial:
            self._by_serial[devices.serial] = devices.with_kinds(tuple(map(self._with_driver, devices.kinds)))
        return self._by_serial[devices.serial]

    def _with_driver(self, kind: DeviceKind) -> DeviceKind:
        """Change the versions that a device publishes, as a device of another vendor's driver does not."""
        changed: dict[str, Attribute] = {
            name: value for name, value in kind.device.attributes.items() if name not in (DRIVER_VERSION, CUDA_VERSION)
        }
        changed |= _published(kind.device.attributes, DRIVER_VERSION, self.driver)
        changed |= _published(kind.device.attributes, CUDA_VERSION, self.cuda)
        model = kind.model and replace(kind.model, driver=self.driver, cuda=self.cuda)
        attributes = Attributes(tuple(changed), tuple(changed.values()), kind.device.driver)
        return replace(kind, device=structs.replace(kind.device, attributes=attributes), model=model)


def _published(before: Mapping[str, Attribute], name: str, version: Version | None) -> dict[str, Attribute]:
    """Write a version as the driver does, with three numbers; nothing where it was not there, or is not known."""
    if name not in before or version is None:
        return {}
    return {name: SemanticVersion(".".join(map(str, (*version, 0, 0)[:3])))}


@dataclass(frozen=True, slots=True)
class GPUPod:
    """A pod that asks for GPUs. `node` is the node that it is bound to; empty while it is pending."""

    name: str
    uid: str
    node: str
    demand: Demand


def gpu_units_of(pods: Sequence[GPUPod]) -> int:
    """Count the GPU units that pods ask for."""
    return sum(units for pod in pods for _, units in pod.demand.resources)


def place_pod(pod: GPUPod, open_nodes: dict[str, Node]) -> bool:
    """Place a pod on the best node that has room for it; returns False where there is none."""

    def fits(node: Node) -> bool:
        return judge(pod.demand, node, True) is None and not unserved_claim(pod.demand, node)

    return place_on_best(pod.demand, open_nodes, fits)


def pods_by_node(pods: Iterable[GPUPod], nodes: Iterable[str]) -> dict[str, list[GPUPod]]:
    """Group pods by their nodes, of which those among `nodes` count, also without pods."""
    by_node: dict[str, list[GPUPod]] = {name: [] for name in nodes}
    for pod in pods:
        if pod.node in by_node:
            by_node[pod.node].append(pod)
    return by_node


def with_units_returned(node: Node, pods: Sequence[GPUPod]) -> Node:
    """Return a node with the pods' units added to what is free."""
    free = node.free
    for pod in pods:
        free = free.with_units(pod.demand.resources, pod.demand.declared_mib)
    return replace(node, free=free)


def change_in_turn(
    pods_on: Mapping[str, Sequence[GPUPod]], open_nodes: dict[str, Node], changed: Callable[[str], Node | None]
) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Drain and change nodes one after another; yield each with the pods that it evicts.

    The third member are those of them that find a place only later.

    The node with the fewest pods is next, and those to come are cordoned: no pod is evicted twice. Evicted pods
    take the best place among `open_nodes`, the largest pods first; a changed node is added to those, unless `changed`
    returns None for it.
    """
    unplaced: list[GPUPod] = []
    for name in sorted(pods_on, key=lambda node: (len(pods_on[node]), gpu_units_of(pods_on[node]), node)):
        evicted = sorted(pods_on[name], key=lambda pod: (-gpu_units_of([pod]), pod.name))
        waiting = [pod for pod in evicted if not place_pod(pod, open_nodes)]
        yield name, tuple(sorted(pod.name for pod in evicted)), tuple(sorted(pod.name for pod in waiting))
        if (node := changed(name)) is not None:
            open_nodes[name] = with_units_returned(node, evicted)
        unplaced = [pod for pod in (*unplaced, *waiting) if not place_pod(pod, open_nodes)]
