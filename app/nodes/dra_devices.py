# SPDX-License-Identifier: Apache-2.0
"""GPUs as DRA shows them, one by one: how much of each is free, and which MIG slices lie on it (F60, F135).

NVIDIA's driver publishes a GPU that it carves on demand as one device for the whole and one for every legal placement
of every profile; all take from the GPU's counters, a counter a memory slice (KEP-4815; NVIDIA/k8s-dra-driver-gpu
cmd/gpu-kubelet-plugin/partitions.go). Placements are read from those counters, never from device names.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from app.knowledge.geometry import Geometry, Instance
from app.knowledge.mig_placements import GPULayout
from app.knowledge.products import normal_form
from app.knowledge.tables import Knowledge
from app.kube.resource_slices import Device

WHOLE_MILLI = 1000
"""A GPU that is all free (docs/reference/listeners.md#state)."""


@dataclass(frozen=True, slots=True)
class DRAGPU:
    """One GPU with all that can be had of it. `geometry`: None unless it is carved on demand and its product known.

    `withheld`: nothing of it can be had any more. `carvable`: some slice of it can.
    """

    name: str
    devices: tuple[Device, ...]
    geometry: Geometry | None
    withheld: bool
    carvable: bool


@dataclass(frozen=True, slots=True)
class NodeGPUs:
    """A node's GPUs before anything is given away, and its devices by name.

    `carved`: slices are made on demand, on GPUs whose geometry is known, and no others are there.
    """

    all: tuple[DRAGPU, ...]
    devices: Mapping[str, Device]
    carved: bool


def read_gpus(devices: Iterable[Device], knowledge: Knowledge) -> NodeGPUs:
    """Put a node's devices together by GPU."""
    groups: dict[str, list[Device]] = {}
    for device in devices:
        groups.setdefault(device.gpu, []).append(device)
    gpus = tuple(_gpu(name, tuple(group), knowledge) for name, group in groups.items())
    sliced = [gpu for gpu in gpus if any(device.mig_profile for device in gpu.devices)]
    carved = bool(sliced) and all(gpu.geometry for gpu in sliced)
    return NodeGPUs(gpus, {device.name: device for gpu in gpus for device in gpu.devices}, carved)


def _gpu(name: str, devices: tuple[Device, ...], knowledge: Knowledge) -> DRAGPU:
    geometry = _geometry(devices, knowledge)
    usable = [device for device in devices if not device.withheld]
    return DRAGPU(name, devices, geometry, not usable, any(device.mig_profile for device in usable))


def _geometry(devices: tuple[Device, ...], knowledge: Knowledge) -> Geometry | None:
    """Find the geometry of a GPU that is carved on demand; None if the tables know not every placement it shows."""
    slices = [device for device in devices if device.mig_profile]
    geometry = knowledge.geometry.get(normal_form(devices[0].label or ""))
    if geometry is None or not slices:
        return None
    known = {(name, start) for name, slot in geometry.slots.items() for start in slot.starts}
    return geometry if all((device.mig_profile, device.start) in known for device in slices) else None


def left(gpus: NodeGPUs, held: Collection[str]) -> tuple[tuple[int, ...], tuple[GPULayout, ...] | None]:
    """Say what is left when these devices are given away: free milli per GPU, largest first, and the layouts.

    Names of devices that the slices do not show say nothing.
    """
    taken: dict[str, list[Device]] = {}
    for name in sorted(held):
        if (device := gpus.devices.get(name)) is not None:
            taken.setdefault(device.gpu, []).append(device)
    milli = sorted((_free_milli(gpu, taken.get(gpu.name, [])) for gpu in gpus.all), reverse=True)
    if not gpus.carved:
        return tuple(milli), None
    layouts = (_layout(gpu, taken.get(gpu.name, [])) for gpu in gpus.all)
    return tuple(milli), tuple(layout for layout in layouts if layout)


def _layout(gpu: DRAGPU, taken: list[Device]) -> GPULayout | None:
    """Say what lies on a GPU; None if nothing can be carved from it: given away whole, or withheld."""
    if gpu.geometry is None or not gpu.carvable or not all(device.mig_profile for device in taken):
        return None
    return GPULayout(gpu.name, gpu.geometry, _instances(taken))


def _instances(taken: list[Device]) -> tuple[Instance, ...]:
    return tuple(Instance(each.mig_profile or "", each.start or 0) for each in taken)


def _free_milli(gpu: DRAGPU, taken: list[Device]) -> int:
    """Give the free share of a GPU in thousandths.

    Of one that is carved on demand the lesser of its compute and its memory slices; of others their memory.
    """
    if gpu.withheld or not all(device.mig_profile for device in taken):
        return 0
    if gpu.geometry:
        room = gpu.geometry.room(_instances(taken))
        total = gpu.geometry.memory_total
        free = min(room.compute / gpu.geometry.compute_total, (total - room.memory.bit_count()) / total)
        return int(WHOLE_MILLI * max(0.0, free))
    whole = next((device for device in gpu.devices if not device.mig_profile), None)
    if whole is not None:
        return _share(whole.memory_mib or 0, taken)
    gone = [device for device in gpu.devices if device.withheld or device in taken]
    return _share(sum(device.memory_mib or 0 for device in gpu.devices), gone)


def _share(size_mib: int, gone: list[Device]) -> int:
    """Give the share of a GPU's memory that is not gone; without known memory it is all or nothing."""
    gone_mib = sum(device.memory_mib or size_mib for device in gone)
    return WHOLE_MILLI * max(0, size_mib - gone_mib) // size_mib if size_mib else 0 if gone else WHOLE_MILLI
