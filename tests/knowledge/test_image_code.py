# SPDX-License-Identifier: Apache-2.0
"""What frameworks were compiled for: the form and the sources of image_code.yaml, and verdicts on GPUs by it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import app.knowledge
from app.knowledge.image_code import parse_target
from app.placement.class_filters import lacks_code, lacks_code_words
from app.placement.engine import judge
from app.values.versions import parse_version
from tests.builders import demand, knowledge, node
from tests.knowledge.image_verdicts import GPU, GPUS, IMAGES, PAGE, page, verdict
from tests.knowledge.test_image_platforms import ARM, X86, pod_of
from tests.placement.twin_images import built_for, has_code

TABLE: list[dict[str, Any]] = yaml.safe_load(
    (Path(app.knowledge.__file__).parent / "image_code.yaml").read_text("utf-8")
)["frameworks"]
ROWS = [
    pytest.param(family, row, id=f"{family['framework']}-{row['since']}-{row.get('cuda', 'any')}")
    for family in TABLE
    for row in family["builds"]
]
SOURCE = re.compile(r"[\w.-]+/[\w.-]+(?:#\d+| [\w./-]+)|docs\.nvidia\.com/\S+")
"""OWNER/REPOSITORY#NUMBER, OWNER/REPOSITORY and a path in it, or a page of NVIDIA's documentation."""
BUILDS = knowledge().image_code
TORCH = "pytorch/pytorch:%s-runtime"
B200, B300, GH200 = "NVIDIA-B200", "NVIDIA-B300-SXM6-AC", "NVIDIA-GH200-480GB"
P100, V100, T4 = "Tesla-P100-PCIE-16GB", "Tesla-V100-SXM2-16GB", "Tesla-T4"


def code_of(image: str, product: str, labels: dict[str, str]) -> str | None:
    """Give the code of the first refusal by the filters."""
    refusal = judge(demand(pod_of(image)), node(product=product, labels=labels), recount=True)
    return refusal.code.name if refusal else None


@pytest.mark.parametrize(
    "row", [row for family in TABLE for row in family["builds"]], ids=lambda row: row["source"][:40]
)
def test_row_names_its_source_and_the_date_of_it(row: dict[str, Any]) -> None:
    """F35: a row that refuses names a file, an issue or a page of the publisher, or of who read the packages."""
    assert all(SOURCE.match(source) for source in row["source"].split("; ")), row["source"]
    assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", str(row["date"]))
    assert set(row.get("platforms", ())) | set(row.get("code", ())) <= {"amd64", "arm64"}
    assert set(row["code"]) == set(row.get("platforms", ("amd64", "arm64")))
    assert parse_version(row["since"]) <= parse_version(row["until"])


@pytest.mark.parametrize(("family", "row"), ROWS)
def test_tag_of_a_row_is_of_that_row(family: dict[str, Any], row: dict[str, Any]) -> None:
    """F35: a tag that explain proposes is of the form of the family, and the row is about it."""
    for tag in row.get("tags", ()):
        written = tag.format_map({"kind": "runtime", "arch": "", "py": "3.12", "variant": "server"})
        build = BUILDS.build(f"{family['images'][0]}:{written}")

        assert build is not None, written
        assert row["source"] in build.evidence, written


@pytest.mark.parametrize(
    ("target", "capabilities", "others"),
    [
        ("8.0", "8.0 8.6 8.9", "7.5 9.0 12.0"),
        ("8.6", "8.6 8.9", "8.0 9.0"),
        ("9.0a", "9.0", "9.1 10.0"),
        ("10.0", "10.0 10.3", "11.0 12.0"),
        ("12.0+PTX", "12.0 12.1 13.0", "10.3 11.0"),
        ("5.0-virtual", "5.0 6.1 12.0", "3.7"),
        ("9.0a+PTX", "9.0", "10.0"),
    ],
)
def test_code_runs_within_its_major_number_and_ptx_on_all_newer_gpus(
    target: str, capabilities: str, others: str
) -> None:
    """F35: cuda_driver.yaml sass_rules."""
    read = parse_target(target)

    assert all(read.runs_on(parse_version(capability)) for capability in capabilities.split())
    assert not any(read.runs_on(parse_version(capability)) for capability in others.split())


@pytest.mark.parametrize("text", ["", "sm_90", "9", "9.0b", "9.0+ptx"])
def test_other_words_are_no_target(text: str) -> None:
    with pytest.raises(ValueError, match="compute capability"):
        parse_target(text)


@pytest.mark.parametrize(
    ("image", "product", "labels", "expected"),
    [
        (TORCH % "2.7.0-cuda12.6-cudnn9", B200, X86, "ImageWithoutCodeForGPU"),  # state-spaces/mamba#867
        (TORCH % "2.7.0-cuda12.8-cudnn9", B200, X86, None),
        (TORCH % "2.7.0-cuda12.8-cudnn9", B300, X86, None),  # code for 10.0 runs on 10.3
        (TORCH % "2.7.0-cuda12.8-cudnn9", V100, X86, "ImageWithoutCodeForGPU"),  # pytorch/pytorch#157517
        (TORCH % "2.8.0-cuda12.8-cudnn9", V100, X86, None),
        (TORCH % "2.8.0-cuda12.8-cudnn9", P100, X86, "ImageWithoutCodeForGPU"),
        (TORCH % "2.9.1-cuda12.6-cudnn9", P100, X86, None),
        (TORCH % "2.3.0-cuda12.1-cudnn8", GH200, ARM, "ImageWithoutCodeForGPU"),  # pytorch/pytorch#125094
        (TORCH % "2.7.0-cuda12.8-cudnn9", GH200, ARM, "ImageForOtherMachine"),  # pytorch/pytorch#157139
        (TORCH % "2.13.0-cuda13.0-cudnn9", GH200, ARM, "ImageForOtherMachine"),  # NVIDIA-NeMo/labs-molt#122
        (TORCH % "3.9.0-cuda12.4-cudnn9", B200, X86, None),
        (TORCH % "2.0.1-cuda11.7-cudnn8", B200, X86, None),
        ("ghcr.io/pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel", B200, X86, "ImageWithoutCodeForGPU"),
        ("docker.io/vllm/vllm-openai:v0.8.5", B200, X86, "ImageWithoutCodeForGPU"),
        ("vllm/vllm-openai:v0.9.0", V100, X86, "ImageWithoutCodeForGPU"),
        ("vllm/vllm-openai:v0.11.0", V100, X86, None),
        ("vllm/vllm-openai:v0.11.0", P100, X86, "ImageWithoutCodeForGPU"),
        ("vllm/vllm-openai:v0.11.0", GH200, ARM, None),
        ("vllm/vllm-openai:v0.9.0", GH200, ARM, "ImageForOtherMachine"),
        ("ghcr.io/huggingface/text-generation-inference:3.3.4", B200, X86, "ImageWithoutCodeForGPU"),
        ("vllm/vllm-openai:v0.17.0", "NVIDIA-L40S", ARM, None),  # its code for 8.7 runs on 8.9
        ("vllm/vllm-openai:v0.22.1-cu129-ubuntu2404", V100, X86, "ImageWithoutCodeForGPU"),
        ("ghcr.io/huggingface/text-generation-inference:3.3.7", P100, X86, "ImageWithoutCodeForGPU"),
        (TORCH % "2.14.0-cuda12.6-cudnn9", GH200, ARM, None),
        (f"{TORCH % '2.7.0-cuda12.6-cudnn9'}@sha256:{'0' * 64}", B200, X86, "ImageWithoutCodeForGPU"),
    ],
)
def test_publishers_own_build_decides(image: str, product: str, labels: dict[str, str], expected: str | None) -> None:
    """F35, F34."""
    assert expected == code_of(image, product, labels)


def test_build_without_a_source_is_told_and_scored() -> None:
    """F35: conda's builds also had PTX, which another build of the same tag may not have."""
    wanted, b200 = demand(pod_of(TORCH % "2.0.1-cuda11.7-cudnn8")), node(product=B200, labels=X86).node_class

    lacking = lacks_code(wanted, b200)

    assert lacking is not None
    assert "an image of PyTorch 2.0.1 of CUDA 11.7 is not known to have code" in lacks_code_words(lacking, [b200])
    assert lacks_code(wanted, node(product=T4, labels=X86).node_class) is None


@pytest.mark.parametrize(
    ("image", "original"),
    [
        ("registry.corp/mirror/pytorch/pytorch:2.7.0-cuda12.6-cudnn9-runtime", "pytorch/pytorch"),
        ("registry.corp:5000/pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel", "pytorch/pytorch"),
        ("mirror.gcr.io/vllm/vllm-openai:v0.8.5", "vllm/vllm-openai"),
        (
            "harbor.corp/ghcr/huggingface/text-generation-inference:3.3.6",
            "ghcr.io/huggingface/text-generation-inference",
        ),
    ],
)
def test_copy_in_another_registry_is_inferred_told_and_not_refused(image: str, original: str) -> None:
    """F35: whoever copies an image keeps its path and its tag, which is no proof."""
    wanted = demand(pod_of(image))

    lacking = lacks_code(wanted, node(product=B200, labels=X86).node_class)

    assert code_of(image, B200, X86) is None
    assert lacking is not None
    assert f"(if it is a copy of {original})" in lacks_code_words(lacking, [node(product=B200, labels=X86).node_class])
    assert BUILDS.nearest_image(image, (10, 0), "amd64") is None


@pytest.mark.parametrize(
    "image",
    [
        "pytorch/pytorch",
        "pytorch/pytorch:latest",
        f"pytorch/pytorch@sha256:{'0' * 64}",
        "pytorch/pytorch:2.7.0-CUDA12.6-CUDNN9-RUNTIME",
        "ghcr.io/pytorch/pytorch-nightly:2.10.0.dev20251101-cuda13.0-cudnn9-runtime",
        "myteam/pytorch:2.7.0-cuda12.6-cudnn9-runtime",
        "notpytorch/pytorch:2.7.0-cuda12.6-cudnn9-runtime",
        "rocm/pytorch:rocm6.4_ubuntu24.04_py3.12_pytorch_release_2.6.0",
        "vllm/vllm-openai-rocm:v0.17.0",
        "vllm/vllm-openai:nightly",
        "vllm/vllm-openai:v0.17.0-arm64",
        "vllm/vllm-openai:v0.30.0",
        "ollama/ollama:0.32.5-rocm",
        "ghcr.io/huggingface/text-generation-inference:3.3.6-rocm",
        "",
    ],
)
def test_image_that_no_row_is_about_is_not_judged(image: str) -> None:
    """F35: another tag, a nightly build, another vendor, a name that only looks alike."""
    assert BUILDS.build(image) is None


def test_build_that_is_known_needs_no_guess_by_its_toolkit() -> None:
    """F35: ollama's images have PTX for GPUs that are newer than their CUDA."""
    wanted = demand(pod_of("ollama/ollama:0.11.11"))

    assert lacks_code(wanted, node(product=B200, labels=X86).node_class) is None


@pytest.mark.parametrize(
    ("image", "capability", "architecture", "expected"),
    [
        (TORCH % "2.7.0-cuda12.6-cudnn9", "10.0", "amd64", TORCH % "2.7.0-cuda12.8-cudnn9"),
        ("pytorch/pytorch:2.7.0-cuda12.6-cudnn9-devel", "10.0", None, "pytorch/pytorch:2.7.0-cuda12.8-cudnn9-devel"),
        (TORCH % "2.6.0-cuda12.6-cudnn9", "12.0", "amd64", TORCH % "2.7.0-cuda12.8-cudnn9"),
        (TORCH % "2.8.0-cuda12.8-cudnn9", "6.0", "amd64", TORCH % "2.8.0-cuda12.6-cudnn9"),
        (TORCH % "2.7.0-cuda12.8-cudnn9", "9.0", "arm64", None),
        ("vllm/vllm-openai:v0.9.0", "9.0", "arm64", "vllm/vllm-openai:v0.10.2"),
        ("vllm/vllm-openai:v0.20.0", "7.0", "amd64", "vllm/vllm-openai:v0.17.0"),
        ("example.com/app:1", "9.0", "amd64", None),
    ],
)
def test_nearest_tag_has_the_code(image: str, capability: str, architecture: str | None, expected: str | None) -> None:
    """F83: the next newer release or CUDA of the same repository, else the newest older one."""
    assert expected == BUILDS.nearest_image(image, parse_version(capability), architecture)


def test_page_of_verdicts_is_that_of_the_engine() -> None:
    """F35: forty published images or more on fourteen models of GPU or more, amd64 and arm64."""
    assert len(IMAGES) >= 40
    assert len(GPUS) >= 14
    assert {gpu.architecture for gpu in GPUS} == {"amd64", "arm64"}
    assert PAGE.read_text("utf-8") == page(), "run: make generated"


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("image", IMAGES)
def test_nothing_fits_where_the_publishers_build_says_no(image: str, gpu: GPU) -> None:
    """F35, F34: by a second reading of image_code.yaml, which shares no code with the first."""
    machine = built_for(image)
    starts = machine in (None, gpu.architecture)

    if not (starts and has_code(image, gpu.capability, gpu.architecture)):
        assert verdict(image, gpu) not in ("fits", "told")
