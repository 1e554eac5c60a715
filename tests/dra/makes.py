# SPDX-License-Identifier: Apache-2.0
"""Makes of GPUs as NVIDIA's DRA driver publishes them, and the needs of pods that some of them meet."""

from tests.controlplane.kubectl import Object

DEVICES = 128
"""Devices of one make per node, enough for all claims, because without a kubelet no device is released."""

MAKES: dict[str, tuple[str, str, str, str, str | None]] = {
    "h100": ("NVIDIA H100 80GB HBM3", "570.124.6", "12.8.0", "9.0.0", "81559Mi"),
    "a100": ("NVIDIA A100-SXM4-80GB", "535.104.5", "12.2.0", "8.0.0", "81920Mi"),
    "a100-pcie": ("NVIDIA A100-PCIE-40GB", "525.60.13", "12.0.0", "8.0.0", "40960Mi"),
    "a10": ("NVIDIA A10", "550.54.15", "12.4.0", "8.6.0", "23028Mi"),
    "t4": ("Tesla T4", "470.82.1", "11.4.0", "7.5.0", "15360Mi"),
    "v100": ("Tesla V100-SXM2-32GB", "580.65.6", "13.0.0", "7.0.0", "32768Mi"),
    "b200": ("NVIDIA B200", "580.82.7", "13.0.0", "10.0.0", "183359Mi"),
    "gb10": ("NVIDIA GB10", "580.95.5", "13.0.0", "12.1.0", None),
}
"""Node → facts as NVIDIA's driver publishes them: product, driver, CUDA, capability, memory (GB10 has none)."""

WISHES: dict[str, tuple[str, ...]] = {
    "products": (
        "H100",
        "A100",
        "!A100",
        "A10, T4",
        "*-SXM4-*",
        "A100-SXM4-*, !H100",
        "NVIDIA-B200",
        "Tesla-T4",
        "V100",
    ),
    "gpu-memory": ("80GB", "81Gi", "40Gi", "24Gi", "16Gi", "192Gi"),
    "compute-capability": ("7.5", "8.0", "8.6", "9.0", "12.0"),
    "cuda": ("11.8", "12.4", "13.0"),
}
IMAGES = (
    "train:1",
    "nvidia/cuda:12.4.1-base-ubuntu22.04",
    "nvcr.io/nvidia/pytorch:24.05-py3",
    "nvcr.io/nvidia/pytorch:25.09-py3",
    "nvidia/cuda:13.0.0-base-ubuntu24.04",
)


def device(number: int, kind: str, make: str, **more: str) -> Object:
    """Write a device in the form of resource.k8s.io/v1."""
    product, driver, cuda, capability, memory = MAKES[make]
    attributes: Object = {
        "type": {"string": kind},
        "productName": {"string": product},
        "driverVersion": {"version": driver},
        "cudaDriverVersion": {"version": cuda},
        "cudaComputeCapability": {"version": capability},
        **{key: {"string": value} for key, value in more.items()},
    }
    capacity = {"memory": {"value": memory}} if memory else {}
    return {"name": f"gpu-{number}", "attributes": attributes, "capacity": capacity}


def slice_of(node: str, devices: list[Object]) -> Object:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": node}, "spec": spec}


def device_class(name: str, kind: str) -> Object:
    """Write a DeviceClass as NVIDIA's chart does."""
    expression = f"device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == '{kind}'"
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
