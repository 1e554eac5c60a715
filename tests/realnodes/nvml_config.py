# SPDX-License-Identifier: Apache-2.0
"""The machine that the mock libnvidia-ml shows: its file, its events, and what a real driver has besides the library.

`tests/realnodes/nvml/machine.h` has the file's format. A component finds the file through the variable that VARIABLE
names, and reads it again whenever it changes.
"""

import dataclasses
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "GPU_USHER_NVML"
"""The environment variable that names the machine's file; `MACHINE_VARIABLE` in machine.h."""
NVIDIA_MAJOR = 195
"""The major number of nvidia0, nvidiactl and nvidia-modeset (Linux's admin-guide/devices.txt)."""
UVM_MAJOR, CAPS_MAJOR = 510, 236
"""Linux chooses these two as the drivers load, from the ranges 384 to 511 and 234 to 254 (admin-guide/devices.txt)."""
CONTROL_MINOR, MODESET_MINOR = 255, 254
"""The minor numbers of nvidiactl and nvidia-modeset (Linux's admin-guide/devices.txt, NVIDIA's driver README)."""


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A compute instance within a GPU instance: one MIG device. Memory is in MiB."""

    uuid: str
    gi: int
    ci: int
    gi_profile: int
    ci_profile: int
    gi_slices: int
    ci_slices: int
    memory: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpegs: int
    ofas: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU. Memory is in MiB, `compute` the capability as in 8.0, `cluster` the UUID of its NVLink fabric if any."""

    name: str
    uuid: str
    bus: str
    minor: int
    memory: int
    compute: str
    mig: str = "unsupported"
    cluster: str = ""
    clique: int = 0
    instances: tuple[MigInstance, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """A driver, the newest CUDA version that it knows, and GPUs."""

    driver: str
    cuda: str
    gpus: tuple[Gpu, ...]


def make_uuid(prefix: str, *words: object) -> str:
    """Make a UUID as NVIDIA writes them; the same words always give the same."""
    return f"{prefix}-{uuid.uuid5(uuid.NAMESPACE_OID, '/'.join(map(str, words)))}"


def write_text(machine: Machine) -> str:
    """Write the machine as the mock library reads it."""
    lines = [f"driver {machine.driver}", f"cuda {machine.cuda}"]
    for gpu in machine.gpus:
        lines += ["", "gpu", *_fields(gpu)]
        for instance in gpu.instances:
            lines += ["instance", *_fields(instance)]
    return "\n".join(lines) + "\n"


def _fields(section: Gpu | MigInstance) -> Iterator[str]:
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if field.name != "instances" and value != "":
            yield f"{field.name.replace('_', '-')} {value}"


def read_text(text: str) -> Machine:
    """Read what write_text wrote.

    Raises TypeError for a section that lacks a field, ValueError for a line that is no key and value.
    """
    sections: list[tuple[str, dict[str, str]]] = [("machine", {})]
    for line in text.splitlines():
        if line in ("gpu", "instance"):
            sections.append((line, {}))
        elif line and not line.startswith("#"):
            key, value = line.split(" ", 1)
            sections[-1][1][key.replace("-", "_")] = value
    gpus: list[Gpu] = []
    for kind, values in sections[1:]:
        if kind == "gpu":
            gpus.append(Gpu(**_typed(Gpu, values)))
        else:
            instance = MigInstance(**_typed(MigInstance, values))
            gpus[-1] = dataclasses.replace(gpus[-1], instances=(*gpus[-1].instances, instance))
    return Machine(sections[0][1]["driver"], sections[0][1]["cuda"], tuple(gpus))


def _typed(kind: type[Gpu] | type[MigInstance], values: dict[str, str]) -> dict[str, Any]:
    numbers = {field.name for field in dataclasses.fields(kind) if field.type is int}
    return {name: int(value) if name in numbers else value for name, value in values.items()}


def write_machine(machine: Machine, path: Path) -> None:
    """Put the machine's file in place, or another in its place, so that no reader sees half of it."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(write_text(machine), "utf-8")
    partial.rename(path)


def report_xid(path: Path, gpu: Gpu, xid: int, instance: MigInstance | None = None) -> None:
    """Let the GPU, or a MIG device of it, report an XID to all who wait for events of this machine's file."""
    words = ["xid", gpu.uuid, str(xid), *([str(instance.gi), str(instance.ci)] if instance else [])]
    with path.with_name(f"{path.name}.events").open("a", encoding="utf-8") as events:
        events.write(" ".join(words) + "\n")


def list_capabilities(machine: Machine) -> dict[str, int]:
    """List the access rights that MIG has, and the minor number of the device file in /dev/nvidia-caps of each.

    The format is that of /proc/driver/nvidia-caps/mig-minors (NVIDIA's MIG user guide, "Device Nodes and
    Capabilities").
    """
    names = ["config", "monitor"]
    for gpu in machine.gpus:
        for instance in gpu.instances:
            prefix = f"gpu{gpu.minor}/gi{instance.gi}"
            names += [name for name in (f"{prefix}/access",) if name not in names]
            names.append(f"{prefix}/ci{instance.ci}/access")
    return {name: number for number, name in enumerate(names, 1)}


def list_device_files(machine: Machine) -> dict[str, tuple[int, int]]:
    """List the character devices that a driver makes: path → major and minor number, for mknod."""
    files = {f"/dev/nvidia{gpu.minor}": (NVIDIA_MAJOR, gpu.minor) for gpu in machine.gpus}
    files |= {
        "/dev/nvidiactl": (NVIDIA_MAJOR, CONTROL_MINOR),
        "/dev/nvidia-modeset": (NVIDIA_MAJOR, MODESET_MINOR),
        "/dev/nvidia-uvm": (UVM_MAJOR, 0),
        "/dev/nvidia-uvm-tools": (UVM_MAJOR, 1),
    }
    if any(gpu.mig != "unsupported" for gpu in machine.gpus):
        numbers = list_capabilities(machine).values()
        files |= {f"/dev/nvidia-caps/nvidia-cap{number}": (CAPS_MAJOR, number) for number in numbers}
    return files


def write_proc(machine: Machine, folder: Path) -> None:
    """Write what a driver shows in /proc/driver; the folder is to be mounted there.

    The device plugin reads `nvidia-caps/mig-minors` for the paths of MIG devices, and does not start with MIG devices
    that it does not find there.
    """
    (folder / "nvidia-caps").mkdir(parents=True, exist_ok=True)
    (folder / "nvidia").mkdir(exist_ok=True)
    (folder / "nvidia" / "version").write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {machine.driver}\n")
    minors = "".join(f"{name} {number}\n" for name, number in list_capabilities(machine).items())
    (folder / "nvidia-caps" / "mig-minors").write_text(minors, "utf-8")
