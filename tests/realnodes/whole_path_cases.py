# SPDX-License-Identifier: Apache-2.0
"""What the whole path is played with: a node's world, what a pod asks for there, and what its container is to see."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tests.realnodes.nvml_config import Machine, list_capabilities, list_device_files

GPU = "nvidia.com/gpu"
CONTROL_FILES = ("/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


@dataclass(frozen=True, slots=True)
class Case:
    """A pod's requests in a world, and the number and kind (`GPU` or `MIG`) of the devices that it is to see.

    `mps` says that the container reaches the daemon of MPS; `note` is for the reader of the table.
    """

    world: str
    limits: Mapping[str, int]
    devices: int = 1
    kind: str = "GPU"
    mps: bool = False
    note: str = ""


CASES: Mapping[str, Case] = {
    "whole GPU": Case("h100", {GPU: 1}),
    "three whole GPUs": Case("h100", {GPU: 3}, devices=3),
    "MIG slice": Case("a100-mig-mixed", {"nvidia.com/mig-1g.10gb": 1}, kind="MIG"),
    "larger MIG slice": Case("a100-mig-mixed", {"nvidia.com/mig-3g.40gb": 1}, kind="MIG"),
    "renamed share of a GPU": Case("a100-ts4-rename", {"nvidia.com/gpu.shared": 1}),
    "share of a GPU": Case("a100-ts4", {GPU: 1}, note="time-slicing without another name for the resource"),
    "share of a MIG slice": Case("a100-mig-mixed-ts2-rename", {"nvidia.com/mig-1g.10gb.shared": 1}, kind="MIG"),
    "MIG slice as a GPU": Case("a100-mig-single-1g10", {GPU: 1}, kind="MIG", note="MIG strategy single"),
    "part of a MIG slice": Case(
        "a100-mig-mixed-ci",
        {"nvidia.com/mig-3g.40gb": 1},
        kind="MIG",
        note="a compute instance of 1c: device plugin v0.19.3 offers it under the name of the whole slice",
    ),
    "GPU of a node with two models": Case("hetero-dgx-station", {GPU: 1}),
    "MPS share of a GPU": Case("a100-mps4", {GPU: 1}, mps=True, note="nvidia-cuda-mps-control is a stand-in"),
}
"""What is asked for → how. The first three worlds are those of the cluster's nodes."""


def device_files(machine: Machine, devices: Collection[str]) -> set[str]:
    """Name the device files of GPUs and of MIG capabilities that belong to devices, given by their UUIDs."""
    numbers = list_capabilities(machine)
    files = set[str]()
    for gpu in machine.gpus:
        instances = [instance for instance in gpu.instances if instance.uuid in devices]
        if instances or gpu.uuid in devices:
            files.add(f"/dev/nvidia{gpu.minor}")
        for instance in instances:
            prefix = f"gpu{gpu.minor}/gi{instance.gi}"
            rights = (f"{prefix}/access", f"{prefix}/ci{instance.ci}/access")
            files.update(f"/dev/nvidia-caps/nvidia-cap{numbers[right]}" for right in rights)
    return files


def device_numbers(machine: Machine, files: Collection[str]) -> set[tuple[int, int]]:
    """Give major and minor of these device files, and of those that every container with a GPU gets."""
    numbers = list_device_files(machine)
    return {numbers[file] for file in (*files, *CONTROL_FILES)}
