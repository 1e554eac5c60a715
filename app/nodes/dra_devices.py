# SPDX-License-Identifier: Apache-2.0
"""The single GPUs of a node that DRA manages: how much of each is free, and which MIG slices exist on it.

Where NVIDIA's driver creates MIG devices on demand, it publishes a GPU as one device for the whole GPU and one device
for each legal placement of each profile. All of them consume the counters of the GPU, one for each memory slice
(KEP-4815; NVIDIA/k8s-dra-driver-gpu cmd/gpu-kubelet-plugin/partitions.go). The placement of a device is read from these
counters, never from its name.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.knowledge.mig_geometry import Geometry, GPULayout, Instance
from app.knowledge.products import normal_form
from app.knowledge.tables import Knowledge
from app.kube.devices import Device
from app.nodes.model import WHOLE_MILLI


@dataclass(frozen=True, slots=True)
class DRAGPU:
    """One GPU with all its devices.

    `geometry` is None unless MIG devices are created on demand and the tables know the product. `tainted` says that
    taints keep new pods off all its devices, and `can_create_mig` that a MIG device without such a taint exists.
    """

    name: str
    devices: tuple[Device, ...]
    geometry: Geometry | None
    tainted: bool
    can_create_mig: bool


@dataclass(frozen=True, slots=True)
class NodeGPUs:
    """The GPUs of a node regardless of allocations, and the node's devices by name.

    `dynamic_mig` says that the node has MIG devices, and that all are created on demand on GPUs of known geometry,
    and `is_plain` that it has only whole GPUs without a taint.
    """

    all: tuple[DRAGPU, ...]
    devices: Mapping[str, Device]
    dynamic_mig: bool
    is_plain: bool


def group_by_gpu(devices: Iterable[Device], knowledge: Knowledge) -> NodeGPUs:
    """Group the devices of a node by GPU."""
    groups: dict[str, list[Device]] = {}
    for device in devices:
        groups.setdefault(device.gpu, []).append(device)
    is_plain = not any(one.taints or one.model.mig_profile for group in groups.values() for one in group)
    if is_plain:
        gpus = tuple(
            [DRAGPU(name, tuple(of), None, tainted=False, can_create_mig=False) for name, of in groups.items()]
        )
    else:
        gpus = tuple(_gpu(name, tuple(group), knowledge) for name, group in groups.items())
    sliced = [] if is_plain else [gpu for gpu in gpus if any(device.model.mig_profile for device in gpu.devices)]
    dynamic_mig = bool(sliced) and all(gpu.geometry for gpu in sliced)
    return NodeGPUs(gpus, {device.name: device for gpu in gpus for device in gpu.devices}, dynamic_mig, is_plain)


def _gpu(name: str, devices: tuple[Device, ...], knowledge: Knowledge) -> DRAGPU:
    slices = [device for device in devices if device.model.mig_profile]
    if not slices:
        return DRAGPU(name, devices, None, all(device.tainted for device in devices), can_create_mig=False)
    geometry = _geometry(slices, devices[0].model.label, knowledge)
    tainted = all(device.tainted for device in devices)
    return DRAGPU(name, devices, geometry, tainted, not all(device.tainted for device in slices))


def _geometry(slices: Sequence[Device], label: str | None, knowledge: Knowledge) -> Geometry | None:
    """Find the geometry of a GPU with MIG devices on demand; None unless the tables have each of its placements."""
    geometry = knowledge.geometry.get(normal_form(label or ""))
    if geometry is None:
        return None
    legal = {(name, start) for name, slot in geometry.slots.items() for start in slot.starts}
    return geometry if all((device.model.mig_profile, device.start) in legal for device in slices) else None


def remaining_capacity(gpus: NodeGPUs, held: Collection[str]) -> tuple[tuple[int, ...], tuple[GPULayout, ...] | None]:
    """Work out what remains when the devices with the names `held` are allocated.

    The result is the free capacity of each GPU in thousandths, largest first, and the layout of each GPU on which MIG
    devices can still be created (None if the node is not `dynamic_mig`). Names that no ResourceSlice shows are ignored.
    """
    if gpus.is_plain and not held:
        return (WHOLE_MILLI,) * len(gpus.all), None
    taken: dict[str, list[Device]] = {}
    for name in sorted(held):
        if (device := gpus.devices.get(name)) is not None:
            taken.setdefault(device.gpu, []).append(device)
    milli = sorted((_free_milli(gpu, taken.get(gpu.name, [])) for gpu in gpus.all), reverse=True)
    if not gpus.dynamic_mig:
        return tuple(milli), None
    layouts = (_layout(gpu, taken.get(gpu.name, [])) for gpu in gpus.all)
    return tuple(milli), tuple(layout for layout in layouts if layout)


def _layout(gpu: DRAGPU, taken: list[Device]) -> GPULayout | None:
    """Give the layout of a GPU; None if no MIG device can be created, as it is allocated whole or tainted."""
    if gpu.geometry is None or not gpu.can_create_mig or not all(device.model.mig_profile for device in taken):
        return None
    return GPULayout(gpu.name, gpu.geometry, _instances(taken))


def _instances(taken: list[Device]) -> tuple[Instance, ...]:
    return tuple(Instance(device.model.mig_profile or "", device.start or 0) for device in taken)


def _free_milli(gpu: DRAGPU, taken: list[Device]) -> int:
    """Give the free share of a GPU in thousandths.

    It is the lesser of the free compute slices and the free memory slices where MIG devices are created on demand, and
    the free memory elsewhere.
    """
    if gpu.tainted or not all(device.model.mig_profile for device in taken):
        return 0
    whole = next((device for device in gpu.devices if not device.model.mig_profile), None)
    if whole is not None and not taken:
        return WHOLE_MILLI
    if gpu.geometry:
        occupancy = gpu.geometry.occupancy(_instances(taken))
        total = gpu.geometry.memory_total
        free_memory = total - occupancy.taken_memory.bit_count()
        free = min(occupancy.free_compute / gpu.geometry.compute_total, free_memory / total)
        return int(WHOLE_MILLI * max(0.0, free))
    if whole is not None:
        return _share(whole.model.memory_mib or 0, taken)
    unavailable = [device for device in gpu.devices if device.tainted or device in taken]
    return _share(sum(device.model.memory_mib or 0 for device in gpu.devices), unavailable)


def _share(size_mib: int, taken: list[Device]) -> int:
    """Give the share of a GPU's memory that is not taken, in thousandths; all or nothing if its memory is unknown."""
    taken_mib = sum(device.model.memory_mib or size_mib for device in taken)
    return WHOLE_MILLI * max(0, size_mib - taken_mib) // size_mib if size_mib else 0 if taken else WHOLE_MILLI
