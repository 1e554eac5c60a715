# SPDX-License-Identifier: Apache-2.0
"""The machine that an image is built for, by its tag and name, against a node; and optional compat libraries."""

from typing import Any

import pytest

from app.placement.engine import judge, total
from tests.builders import container, demand, knowledge, node, pod, policies, policy
from tests.knowledge.test_images import TABLE

IMAGES = knowledge().images
ROWS = [
    pytest.param(row, f"{name.replace('*', 'x')}:{example}", id=f"{name}:{example}")
    for row in TABLE["image_platforms"]
    for name in row.get("images", ["example.com/app"])
    for example in row["examples"]
]
LIMITS = {"nvidia.com/gpu": "1"}
ARM, X86 = {"kubernetes.io/arch": "arm64"}, {"kubernetes.io/arch": "amd64"}


def pod_of(image: str, **variables: str) -> dict[str, Any]:
    """Make a pod of one container with an image and variables."""
    env = [{"name": name, "value": value} for name, value in variables.items()]
    return pod({**container(LIMITS, LIMITS), "image": image, "env": env})


@pytest.mark.parametrize(("row", "image"), ROWS)
def test_example_of_a_row_is_for_its_platform(row: dict[str, Any], image: str) -> None:
    """F34: only a publisher's own row is required; words of a reference are inferred."""
    platform = IMAGES.platform(image)

    assert platform is not None
    assert (platform.architecture, platform.required) == (row["architecture"], "images" in row)
    assert platform.evidence.endswith(", inferred") is not platform.required


@pytest.mark.parametrize(
    ("image", "architecture"),
    [
        ("example.com/app:1.0", None),
        ("example.com/app:1.0-arm64-amd64", None),
        ("arm64.example.com/app:1.0", None),
        ("example.com/charm64:1.0", None),
        ("example.com/app:1.0-gb2000", None),
        ("vllm/vllm-openai:v0.11.0", None),
        ("arm64v8/ubuntu:24.04", "arm64"),
        ("nvidia/cuda-arm64:11.0-base", "arm64"),
        ("lmsysorg/sglang:v0.5.5-cu129-gb200", "arm64"),
        ("quay.io/x/app_x86_64:2", "amd64"),
        ("docker.io/vllm/vllm-openai:v0.17.0-x86_64-cu130", "amd64"),
        ("dustynv/vllm:0.9-r38.2.arm64-sbsa-cu130-24.04", "arm64"),
        ("example.com/app@sha256:0000", None),
    ],
)
def test_architecture_is_read_from_whole_words(image: str, architecture: str | None) -> None:
    """F34."""
    platform = IMAGES.platform(image)

    assert (platform.architecture if platform else None) == architecture


@pytest.mark.parametrize(
    ("image", "labels", "product", "code"),
    [
        ("vllm/vllm-openai:v0.11.0-x86_64", ARM, "NVIDIA-GB200", "ImageForOtherMachine"),
        ("vllm/vllm-openai:v0.11.0-x86_64", X86, "NVIDIA-GB200", None),
        ("vllm/vllm-openai:v0.11.0-x86_64", {}, "NVIDIA-GB200", None),
        ("example.com/app:1-amd64", ARM, "NVIDIA-GB200", None),
        ("nvcr.io/nvidia/l4t-jetpack:r36.4.0", ARM, "NVIDIA-GB200", "ImageForOtherMachine"),
        ("nvcr.io/nvidia/l4t-jetpack:r36.4.0", ARM, "Orin", None),
    ],
)
def test_only_a_sourced_platform_refuses(image: str, labels: dict[str, str], product: str, code: str | None) -> None:
    """F34: what the node does not tell is no reason."""
    refusal = judge(demand(pod_of(image)), node(product=product, labels=labels), recount=True)

    assert (refusal.code.name if refusal else None) == code


def test_inferred_platform_outweighs_every_score() -> None:
    """F34, F56: a node of the other architecture that waits for a driver upgrade still comes first."""
    wanted = demand(pod_of("example.com/app:1-amd64"))
    upgrading = {**X86, "nvidia.com/gpu-driver-upgrade-state": "upgrade-required"}

    assert total(wanted, node(labels=upgrading)) > 2 * total(wanted, node(labels=ARM))


def test_policy_that_infers_nothing_infers_no_platform() -> None:
    """F11: cuda.fromImage decides about all that a tag says."""
    silent = policies(policy("p", "placement: {cuda: {fromImage: false}}"))

    assert demand(pod_of("vllm/vllm-openai:v0.11.0-x86_64"), silent).platforms == ()


@pytest.mark.parametrize(
    ("tag", "value", "depends"),
    [
        ("v0.16.0-cu130", None, False),
        ("v0.17.0-cu130", None, True),
        ("v0.20.0", None, True),
        ("v0.20.0", "1", False),
        ("v0.20.0", " True ", False),
        ("v0.20.0", "0", True),
        ("v0.11.0", None, False),
    ],
)
def test_compat_package_that_is_optional_depends_on_the_variable(tag: str, value: str | None, depends: bool) -> None:
    """F36: never refused, and scored lower where nothing shows that the package is loaded."""
    variables = {} if value is None else {"VLLM_ENABLE_CUDA_COMPATIBILITY": value}
    wanted = demand(pod_of(f"vllm/vllm-openai:{tag}", **variables))
    old = node(product="NVIDIA-A100-SXM4-80GB", labels={"nvidia.com/cuda.driver-version.full": "550.144.03"})

    assert [need.forward_depends for need in wanted.cuda] == [depends]
    assert judge(wanted, old, recount=True) is None
    assert ("VLLM_ENABLE_CUDA_COMPATIBILITY" in wanted.cuda[0].evidence) is depends


@pytest.mark.parametrize(
    ("image", "variables", "product", "driver", "fits"),
    [
        ("vllm/vllm-openai:v0.7.3", {}, "NVIDIA-GeForce-RTX-4090", "535.129.03", False),
        ("vllm/vllm-openai:v0.7.3", {}, "NVIDIA-TITAN-RTX", "545.23.08", False),
        ("vllm/vllm-openai:v0.7.3", {}, "NVIDIA-GeForce-RTX-4090", "550.144.03", True),
        ("vllm/vllm-openai:v0.7.3", {}, "NVIDIA-L4", "535.183.06", True),
        (
            "vllm/vllm-openai:v0.7.3",
            {"LD_LIBRARY_PATH": "/usr/lib/x86_64-linux-gnu"},
            "NVIDIA-GeForce-RTX-4090",
            "535.129.03",
            True,
        ),
        ("vllm/vllm-openai:v0.11.0", {}, "NVIDIA-GeForce-RTX-4090", "550.144.03", False),
        ("vllm/vllm-openai:v0.18.0", {}, "NVIDIA-GeForce-RTX-4090", "575.51.03", True),
        ("nvidia/cuda:12.4.1-runtime-ubuntu22.04", {}, "NVIDIA-GeForce-RTX-4090", "535.129.03", True),
    ],
)
def test_compat_library_that_the_image_forces_fails_on_geforce(
    image: str, variables: dict[str, str], product: str, driver: str, fits: bool
) -> None:
    """CUDA error 804 (vllm-project/vllm#4940, gpustack/gpustack#1254); NVIDIA's own images let the toolkit decide."""
    wanted = demand(pod_of(image, **variables))
    host = node(product=product, labels={"nvidia.com/cuda.driver-version.full": driver})

    assert (judge(wanted, host, recount=True) is None) is fits
