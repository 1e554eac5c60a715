# SPDX-License-Identifier: Apache-2.0
"""The devices of a machine as NVIDIA's DRA driver publishes them, and the file for the driver that publishes them here.

Names, attributes and capacities are those of kubernetes-sigs/dra-driver-nvidia-gpu v0.5 (tests/dra/recorded); the
driver itself is `controlplane dra-driver` (tests/controlplane/dra_driver.go).
"""

import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import app.knowledge
from app.knowledge.products import normal_form
from tests.builders import knowledge
from tests.realnodes.nvml_config import Gpu, Machine, MigInstance, list_capabilities

DRIVER = "gpu.nvidia.com"
ARCHITECTURES = {"7.0": "Volta", "7.5": "Turing", "8.0": "Ampere", "8.6": "Ampere", "8.9": "Ada Lovelace"}
"""Compute capability → name, as NVML gives it; that of 9.0 is Hopper, and newer ones are Blackwell."""
MEMORY_EIGHTHS = 8
"""A MIG profile's name has the memory in eighths of the GPU's (NVIDIA's go-nvlib, pkg/nvlib/device/mig_profile.go)."""


def driver_file(
    machine: Machine, failure: str = "", changes: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Write the driver's file: the devices of the machine, and the device files on the node of each.

    `failure` is the error with which preparing a claim fails; `changes` are further fields of devices, by their names.
    """
    devices = list(_devices(machine))
    return {
        "driver": DRIVER,
        "slices": [{"devices": [{**device, **(changes or {}).get(device["name"], {})} for device, _ in devices]}],
        "files": {device["name"]: files for device, files in devices},
        "failure": failure,
    }


def device_classes() -> list[dict[str, Any]]:
    """List the DeviceClasses of the driver's Helm chart; that of GPUs serves requests of nvidia.com/gpu too."""
    extended = {"gpu.nvidia.com": {"extendedResourceName": "nvidia.com/gpu"}}
    kinds = {"gpu.nvidia.com": "gpu", "mig.nvidia.com": "mig"}
    return [
        {
            "metadata": {"name": name},
            "spec": {
                **extended.get(name, {}),
                "selectors": [
                    {
                        "cel": {
                            "expression": f"device.driver == '{DRIVER}' && "
                            f"device.attributes['{DRIVER}'].type == '{kind}'"
                        }
                    }
                ],
            },
        }
        for name, kind in kinds.items()
    ]


def profile_name(gpu: Gpu, instance: MigInstance) -> str:
    """Name the profile of a MIG device, such as 3g.40gb."""
    share = math.ceil(instance.memory / gpu.memory * MEMORY_EIGHTHS) / MEMORY_EIGHTHS
    return f"{instance.gi_slices}g.{round(share * math.ceil(gpu.memory / 1024))}gb"


def _devices(machine: Machine) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield each device and its device files; a GPU with MIG on is published by its MIG devices alone."""
    capabilities = list_capabilities(machine)
    for gpu in machine.gpus:
        file = f"/dev/nvidia{gpu.minor}"
        shared = _attributes(machine, gpu)
        if gpu.mig != "enabled":
            attributes = {**shared, "type": {"string": "gpu"}, "uuid": {"string": gpu.uuid}}
            capacity = {"memory": {"value": f"{gpu.memory}Mi"}}
            yield {"name": f"gpu-{gpu.minor}", "attributes": attributes, "capacity": capacity}, [file]
        placed = _placements(gpu)
        for instance in gpu.instances:
            profile = profile_name(gpu, instance)
            number, start, size = placed.get(instance.gi, (instance.gi_profile, instance.gi, 0))
            prefix = f"gpu{gpu.minor}/gi{instance.gi}"
            rights = (f"{prefix}/access", f"{prefix}/ci{instance.ci}/access")
            attributes = {
                **shared,
                "type": {"string": "mig"},
                "uuid": {"string": instance.uuid},
                "parentUUID": {"string": gpu.uuid},
                "profile": {"string": profile},
            }
            capacity = {
                "memory": {"value": f"{instance.memory}Mi"},
                "multiprocessors": {"value": str(instance.multiprocessors)},
                "copyEngines": {"value": str(instance.copy_engines)},
                "decoders": {"value": str(instance.decoders)},
                "encoders": {"value": str(instance.encoders)},
                "jpegEngines": {"value": str(instance.jpegs)},
                "ofaEngines": {"value": str(instance.ofas)},
                **{f"memorySlice{position}": {"value": "1"} for position in range(start, start + size)},
            }
            part = f"-{instance.ci}" if instance.ci else ""
            name = f"gpu-{gpu.minor}-mig-{profile.replace('.', '')}-{number}-{start}{part}"
            files = [file, *(f"/dev/nvidia-caps/nvidia-cap{capabilities[right]}" for right in rights)]
            yield {"name": name, "attributes": attributes, "capacity": capacity}, files


def _placements(gpu: Gpu) -> dict[int, tuple[int, int, int]]:
    """Return profile id, first memory slice and length of each GPU instance; none where the table lacks a profile."""
    product = normal_form(gpu.name.replace(" ", "-"))
    geometry, ids = knowledge().geometry.get(product), _profile_ids(product)
    profiles = {instance.gi: profile_name(gpu, instance) for instance in gpu.instances}
    if geometry is None or not set(profiles.values()) <= geometry.slots.keys():
        return {}
    starts = geometry.find_starts(list(profiles.values())) or ()
    return {
        gi: (ids[profile], start, geometry.slots[profile].length)
        for (gi, profile), start in zip(profiles.items(), starts, strict=False)
    }


@cache
def _profile_ids(product: str) -> Mapping[str, int]:
    """Return the number of each profile of a product, as `nvidia-smi mig -lgip` shows it."""
    text = Path(app.knowledge.__path__[0], "mig_profiles.yaml").read_text("utf-8")
    rows = [row for row in yaml.safe_load(text)["products"] if product in map(normal_form, row["gfd_products"])]
    return {one["profile"].replace("+", "."): one["profile_id"] for row in rows for one in row["profiles"]}


def _attributes(machine: Machine, gpu: Gpu) -> dict[str, Any]:
    return {
        "addressingMode": {"string": "HMM"},
        "architecture": {"string": ARCHITECTURES.get(gpu.compute, "Hopper" if gpu.compute == "9.0" else "Blackwell")},
        "brand": {"string": "Nvidia"},
        "cudaComputeCapability": {"version": f"{gpu.compute}.0"},
        "cudaDriverVersion": {"version": f"{machine.cuda}.0"},
        "driverVersion": {"version": ".".join(str(int(part)) for part in machine.driver.split("."))},
        "productName": {"string": gpu.name},
        "resource.kubernetes.io/numaNode": {"int": machine.gpus.index(gpu) * 2 // len(machine.gpus)},
        "resource.kubernetes.io/pciBusID": {"string": gpu.bus},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci{gpu.bus.rpartition(':')[0]}"},
    }
