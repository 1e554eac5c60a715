# SPDX-License-Identifier: Apache-2.0
"""Images on drivers and GPUs under the shipped policies: whether each pair fits, or the reason why not."""

import pytest

from app.placement.engine import judge_class
from tests.builders import demand, gpus, node, pod

NGC, TRTLLM = "nvcr.io/nvidia/pytorch:%s-py3", "nvcr.io/nvidia/tritonserver:%s-trtllm-python-py3"
BASE, TORCH, VLLM = ("nvidia/cuda:%s-base-ubuntu22.04", "pytorch/pytorch:%s-cudnn9-runtime", "vllm/vllm-openai:%s")
A100, H100, V100, T4, L4 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-NVL", "Tesla-V100-PCIE-16GB", "Tesla-T4", "NVIDIA-L4"
B200, RTX = "NVIDIA-B200", "NVIDIA-GeForce-RTX-5090"
BLOCKS: list[tuple[str, str, dict[str, str]]] = [
    # NGC images carry `cuda>=9.0`, so minor-version compatibility holds on every branch. Older branches that the
    # month's release notes name are forward compatible from the named driver on
    (NGC % "22.01", A100,
     {"fits": "510.39.01 495.29.05 470.57.02 470.42.01 465.19.01 460.32.03 450.80.02 450.51.06 440.33.01"}),
    (NGC % "22.01", RTX, {"fits": "450.80.02", "DriverTooOld": "450.51.06 440.33.01"}),
    (NGC % "22.09", A100, {"fits": "520.61.05 515.65.01 515.48.07 510.47.03 510.39.01 495.29.05"}),
    (NGC % "23.03", A100, {"fits": "530.30.02 525.85.12 525.60.13 515.65.01", "DriverTooOld": "520.61.05 515.48.07"}),
    (NGC % "23.08", A100, {"fits": "535.54.03 530.30.02"}),
    (NGC % "23.10", RTX, {"fits": "535.54.03 530.30.02", "DriverTooOld": "510.47.03 470.57.02"}),
    (NGC % "23.12", A100, {"fits": "545.23.06 535.86.10 530.30.02 525.85.12 510.47.03"}),
    (NGC % "24.01", L4, {"fits": "545.23.08 535.86.10 535.54.03 530.30.02"}),
    (NGC % "24.03", A100, {"fits": "550.54.14 545.23.08 535.86.10 535.54.03"}),
    (NGC % "25.03", A100, {"fits": "570.124.06 570.86.15 560.35.03 550.54.15 545.23.08"}),
    (NGC % "25.04", A100, {"fits": "575.51.02 570.124.06 550.54.15"}),
    # cuda-compat-13-2 is for data-centre GPUs on 535, 570, 580, 590 (forward-compatibility matrix); nothing names 575
    (NGC % "26.04", H100, {"fits": "580.95.05 570.124.06 535.54.03", "DriverTooOld": "575.57.08 550.54.15"}),
    (NGC % "26.04", RTX, {"fits": "580.95.05", "DriverTooOld": "570.124.06"}),
    (NGC % "25.10", A100, {"fits": "570.124.06 535.54.03", "DriverTooOld": "575.57.08 565.57.01 550.54.15"}),
    # months without a list have plain minor-version compatibility (docs/reference/compatibility.md#cuda)
    (NGC % "22.04", A100, {"fits": "510.47.03 495.29.05 450.80.02", "DriverTooOld": "450.51.06"}),
    (NGC % "23.02", A100, {"fits": "525.85.12 525.60.13", "DriverTooOld": "520.61.05"}),
    (NGC % "24.06", A100, {"fits": "555.42.02 550.54.15 525.60.13", "DriverTooOld": "515.65.01"}),
    (NGC % "21.10", A100, {"fits": "470.57.02 450.80.02 418.40.04", "DriverTooOld": "418.39"}),
    (TRTLLM % "24.05", A100, {"fits": "545.23.08 525.60.13", "DriverTooOld": "525.60.12"}),
    # a month without a source is a preference
    (NGC % "23.01", A100, {"fits": "525.85.12 418.39"}),
    # Triton release notes 25.03 require compute capability 7.5; before, the matrix of architectures counts
    (NGC % "25.01", V100, {"fits": "570.86.10"}),
    (NGC % "25.08", T4, {"fits": "580.82.07 580.65.06 570.26", "DriverTooOld": "575.57.08"}),
    (NGC % "25.08", V100, {"ComputeCapabilityTooLow": "580.82.07"}),
    (NGC % "26.06", B200, {"fits": "610.43.02 595.45.04 580.65.06 570.124.06", "DriverTooOld": "575.57.08"}),
    # nvidia/cuda Dockerfiles, NVIDIA_REQUIRE_CUDA: `cuda>=X.Y`, which the toolkit's own branch reports, or a named
    # branch; the image carries cuda-compat for branches older than minor-version compatibility
    (BASE % "12.4.0", A100,
     {"fits": "550.54.14 535.54.03 525.60.13 470.57.02", "ImageRequirementUnmet": "545.23.08 530.30.02"}),
    (BASE % "12.4.1", A100, {"fits": "550.54.14"}),
    (BASE % "12.4.1", RTX, {"fits": "535.54.03 525.60.13", "DriverTooOld": "470.57.02"}),
    (BASE % "12.8.1", A100,
     {"fits": "570.26 565.57.01 560.35.03 550.54.15 535.54.03", "ImageRequirementUnmet": "545.23.08 525.60.13"}),
    (BASE % "12.8.1", RTX,
     {"fits": "570.26", "ImageRequirementUnmet": "565.57.01 560.35.03 550.54.15 535.54.03 525.60.13"}),
    (BASE % "12.6.3", RTX, {"fits": "560.35.05 560.28.03", "ImageRequirementUnmet": "550.54.15 535.54.03"}),
    (BASE % "12.6.3", A100, {"fits": "550.54.15 535.54.03", "ImageRequirementUnmet": "555.42.06 545.23.08 525.60.13"}),
    (BASE % "12.2.0", A100, {"fits": "535.54.03 525.60.13", "ImageRequirementUnmet": "530.30.02"}),
    (BASE % "12.9.1", A100, {"fits": "570.26 565.57.01 550.54.15 535.54.03", "ImageRequirementUnmet": "555.42.06"}),
    (BASE % "11.8.0", A100,
     {"fits": "515.48.07 510.47.03 470.57.02 450.80.02", "ImageRequirementUnmet": "495.29.05 460.32.03"}),
    (BASE % "11.8.0", RTX, {"fits": "515.48.07 470.57.02", "ImageRequirementUnmet": "450.80.02"}),
    (BASE % "11.2.2", A100, {"fits": "460.27.04 455.45.01 450.80.02"}),
    (BASE % "13.0.1", A100, {"fits": "580.82.07 580.65.06 575.57.08 570.26", "DriverTooOld": "560.35.03"}),
    (BASE % "13.0.1", RTX, {"fits": "580.65.06", "DriverTooOld": "575.57.08 570.26"}),
    (BASE % "12.1.1", A100, {"fits": "530.30.02 525.60.13 470.57.02", "DriverTooOld": "515.65.01"}),
    (BASE % "11.0.3", A100, {"fits": "450.80.02 450.51.06 418.87.01", "DriverTooOld": "410.48"}),
    (BASE % "10.2", T4, {"fits": "440.33.01 418.39", "DriverTooOld": "390.46"}),
    # vllm/vllm-openai is built on nvidia/cuda of the release's own CUDA (docker/Dockerfile ARG CUDA_VERSION)
    (VLLM % "v0.8.5.post1", A100, {"fits": "550.54.15 535.54.03", "ImageRequirementUnmet": "545.23.08"}),
    (VLLM % "v0.10.1.1", A100, {"fits": "570.124.06 535.54.03", "DriverTooOld": "515.65.01"}),
    (VLLM % "v0.9.0", RTX, {"fits": "570.26", "ImageRequirementUnmet": "550.54.15"}),
    (VLLM % "v0.20.0", H100, {"fits": "580.65.06 535.54.03", "DriverTooOld": "520.61.05"}),
    # compute capabilities: those that a toolkit removed are refused, and newer GPUs where a build has no code
    (BASE % "10.2", A100, {"fits": "580.65.06"}),
    (BASE % "11.6.2", H100, {"fits": "580.65.06"}),
    (BASE % "13.0.0", V100, {"ComputeCapabilityUnsupported": "580.65.06"}),
    (TORCH % "1.13.1-cuda11.6", H100, {"fits": "580.65.06"}),
    (TORCH % "2.5.1-cuda12.4", B200, {"ImageWithoutCodeForGPU": "580.65.06"}),
    (TORCH % "2.5.1-cuda12.4", RTX, {"ImageWithoutCodeForGPU": "580.65.06"}),
    (TORCH % "2.7.0-cuda12.8", RTX, {"fits": "570.26", "DriverTooOld": "520.61.05"}),
    # the image has no cuda-compat
    (TORCH % "2.9.0-cuda13.0", A100, {"fits": "580.65.06", "DriverTooOld": "570.26"}),
    ("tensorflow/tensorflow:2.11.0-gpu", L4, {"fits": "450.80.02", "DriverTooOld": "440.33"}),
]  # fmt: skip
TRIPLES = [
    (image, driver, gpu, verdict)
    for image, gpu, verdicts in BLOCKS
    for verdict, drivers in verdicts.items()
    for driver in drivers.split()
]


@pytest.mark.parametrize(
    ("image", "driver", "gpu", "verdict"),
    [pytest.param(*row, id=f"{row[0].rpartition('/')[2]} on {row[1]} {row[2]}") for row in TRIPLES],
)
def test_image_on_driver_and_gpu_under_the_shipped_policies(image: str, driver: str, gpu: str, verdict: str) -> None:
    """P31, F11, F34, F35, F36, P30, P32, S10."""
    refusal = judge_class(demand(pod(gpus(1, image=image))), node(product=gpu, driver=driver).node_class)

    assert verdict == (refusal.code.name if refusal else "fits")
