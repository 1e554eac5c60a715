# SPDX-License-Identifier: Apache-2.0
"""The CUDA of images: families by name and tag, months by their tables, and other tags."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import app.knowledge
from app.values.versions import major_minor, parse_version, show_version
from tests.builders import knowledge

IMAGES = knowledge().images
TABLE: dict[str, Any] = yaml.safe_load((Path(app.knowledge.__file__).parent / "image_cuda.yaml").read_text("utf-8"))
EXAMPLES = [
    pytest.param(row, example, id=f"{row['images'][0]}:{example}")
    for row in TABLE["image_families"]
    for example in row["examples"]
]
TORCH, TRITON = "nvcr.io/nvidia/pytorch:%s-py3", "nvcr.io/nvidia/tritonserver:%s-trtllm-python-py3"
MONTHS = [(TORCH % row["month"], row) for row in TABLE["ngc_months"]] + [
    (TRITON % row["month"], row) for row in TABLE["ngc_trtllm_months"]
]


def cuda_of(image: str) -> tuple[str, bool] | None:
    """Return the CUDA version as people write it, and whether it is required."""
    needs = IMAGES.infer(image)
    return (show_version(needs.cuda), needs.required) if needs else None


@pytest.mark.parametrize(("row", "example"), EXAMPLES)
def test_example_of_a_family_is_of_that_family(row: dict[str, Any], example: str) -> None:
    """F11, S10: the example matches its family's grammar, and has a CUDA unless the family is known to have none."""
    inferred = [IMAGES.infer(f"{name.replace('*', 'x')}:{example}") for name in row["images"]]

    assert re.fullmatch(row["tag_regex"], example)
    assert [row["cuda"] != "none"] * len(inferred) == [needs is not None for needs in inferred]
    assert {bool(row.get("carries_compat"))} >= {needs.carries_compat for needs in inferred if needs}


@pytest.mark.parametrize(("row", "example"), EXAMPLES)
def test_unsourced_family_is_a_preference(row: dict[str, Any], example: str) -> None:
    """F11: a need without a source refuses no node, and says that it has no source."""
    inferred = [IMAGES.infer(f"{name.replace('*', 'x')}:{example}") for name in row["images"]]

    assert all(("unsourced" in needs.evidence) is not needs.required for needs in inferred if needs)
    assert not (row.get("unsourced") and any(needs.required for needs in inferred if needs))


@pytest.mark.parametrize("row", TABLE["image_families"], ids=lambda row: row["images"][0])
def test_family_says_what_its_environment_requires_and_where_that_was_seen(row: dict[str, Any]) -> None:
    """F11: `list` needs the lists, a value must be one that the container toolkit reads, and known months have a
    row."""
    requires = row.get("requires")
    seen = {
        month
        for entry in TABLE["require_seen_sources"]
        if entry["images"] in row["images"]
        for month in entry["months"]
    }

    assert requires in (None, "list", "cuda>=9.0")
    assert requires != "cuda>=9.0" or set(row["requires_seen"]) <= seen
    assert requires is None or row.get("carries_compat")


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        # docs.nvidia.com DL frameworks support matrix; triton compatibility.md
        ("nvcr.io/nvidia/pytorch:24.05-py3", "12.4.1"),
        ("nvcr.io/nvidia/pytorch:24.05-py3-igpu", "12.4.1"),
        ("nvcr.io/nvidia/pytorch:25.08-py3", "13.0.1"),
        ("nvcr.io/nvidia/tensorflow:23.03-tf2-py3", "12.1"),
        ("nvcr.io/nvidia/tritonserver:24.05-py3", "12.4.1"),
        ("nvcr.io/nvidia/tritonserver:24.05-trtllm-python-py3", "12.3.2"),
        ("nvcr.io/nvidia/tritonserver:25.04-vllm-python-py3", "12.9"),
        ("nvcr.io/nvidia/tritonserver:24.10-py3-min", "12.6.2"),
        ("nvcr.io/nvidia/vllm:25.10-py3", "13.0.2"),
        ("nvcr.io/nvidia/sglang:25.10.post1-py3", "13.0.2"),
        ("nvcr.io/nvidia/pytorch:22.06-py3", "11.7.1"),
        # nvidia container-images/cuda supported-tags
        ("nvidia/cuda:12.4.0-base-ubuntu22.04", "12.4"),
        ("nvidia/cuda:11.3.0-cudnn8-devel-ubuntu20.04", "11.3"),
        ("nvidia/cuda:12.9.2-cudnn-devel-ubuntu22.04", "12.9.2"),
        ("nvidia/cuda:13.0.1-runtime-ubi9", "13.0.1"),
        ("nvidia/cuda:11.8.0-devel", "11.8"),
        ("nvcr.io/nvidia/cuda:12.4.1-base-rockylinux9", "12.4.1"),
        # pytorch, rapids, vllm, sglang: the tag names CUDA
        ("pytorch/pytorch:2.11.0-cuda12.8-cudnn9-devel", "12.8"),
        ("pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime", "12.1"),
        ("rapidsai/base:24.10-cuda12.5-py3.11", "12.5"),
        ("rapidsai/notebooks:25.12-cuda13-py3.13", "13.0"),
        ("nvcr.io/nvidia/rapidsai/base:25.12-cuda12-py3.12", "12.0"),
        ("vllm/vllm-openai:v0.11.0-cu129", "12.9"),
        ("vllm/vllm-openai:v0.11.0-cu130-aarch64", "13.0"),
        ("rayproject/ray:2.9.0-py310-cu118", "11.8"),
        ("rayproject/ray-ml:2.46.0-py311-cu121-aarch64", "12.1"),
        # vllm: docker/Dockerfile ARG CUDA_VERSION of the release
        ("vllm/vllm-openai:v0.5.4", "12.4.1"),
        ("vllm/vllm-openai:v0.8.5.post1", "12.4.1"),
        ("vllm/vllm-openai:v0.9.0", "12.8.1"),
        ("vllm/vllm-openai:v0.10.1.1", "12.8.1"),
        ("vllm/vllm-openai:v0.11.0", "12.8.1"),
        ("vllm/vllm-openai:v0.11.1", "12.9.1"),
        ("vllm/vllm-openai:v0.19.1-aarch64", "12.9.1"),
        ("vllm/vllm-openai:v0.20.0", "13.0.2"),
        ("vllm/vllm-openai:v0.24.0-x86_64", "13.0.2"),
        # release notes of NGC containers of 2020 and 2021
        ("nvcr.io/nvidia/pytorch:20.12-py3", "11.1.1"),
        ("nvcr.io/nvidia/pytorch:21.05-py3", "11.3"),
        ("nvcr.io/nvidia/tensorflow:21.10-tf1-py3", "11.4.2"),
        ("nvcr.io/nvidia/tritonserver:21.12-py3", "11.5"),
        # tables by version
        ("ghcr.io/huggingface/text-generation-inference:3.1.1", "12.4"),
        ("ghcr.io/huggingface/text-generation-inference:3.3.7", "12.4"),
        ("ghcr.io/huggingface/text-generation-inference:1.2.0", "12.1"),
        ("ghcr.io/huggingface/text-generation-inference:1.4.1", "12.1"),
        ("ghcr.io/huggingface/text-generation-inference:2.0.4", "12.1"),
        ("ghcr.io/huggingface/text-generation-inference:2.3.0", "12.4"),
        ("ghcr.io/huggingface/text-generation-inference:0.9.4", "11.8"),
        ("tensorflow/tensorflow:2.14.0-gpu", "11.8"),
        ("tensorflow/tensorflow:2.11.1-gpu-jupyter", "11.2"),
        ("tensorflow/tensorflow:2.16.1-gpu", "12.3"),
        ("tensorflow/tensorflow:2.18.0-gpu", "12.5"),
        ("tensorflow/tensorflow:2.0.4-gpu", "10.0"),
        ("tensorflow/tensorflow:1.15.5-gpu-py3", "10.0"),
        ("tensorflow/tensorflow:1.12.0-devel-gpu-py3", "9.0"),
    ],
)
def test_family_and_tag_tell_the_toolkit(image: str, expected: str) -> None:
    """F11, S10: the source is app/knowledge/image_cuda.yaml."""
    assert (expected, True) == cuda_of(image)


@pytest.mark.parametrize(("image", "row"), [pytest.param(*month, id=month[0].rpartition(":")[2]) for month in MONTHS])
def test_month_is_what_its_release_notes_say(image: str, row: dict[str, Any]) -> None:
    """A full driver version is the native minimum; for a branch, the toolkit table counts (image_cuda.yaml,
    ngc_months)."""
    driver = parse_version(row["min_driver"])
    listed = row.get("dc_gpu_alt_branches", ())
    branches = tuple((parse_version(branch)[0], parse_version(branch)) for branch in listed)

    inferred = IMAGES.infer(image)

    assert inferred is not None
    assert (driver if len(driver) > 1 else None, branches) == (inferred.native, inferred.forward)
    assert major_minor(inferred.cuda) == major_minor(parse_version(".".join(row["cuda"].split(" ")[0].split(".")[:3])))
    assert inferred.requires is None
    assert bool(row.get("unsourced")) is ("unsourced" in inferred.evidence)


@pytest.mark.parametrize(
    ("image", "expected"),
    [("24.02", None), ("24.12", None), ("25.02", None), ("25.03", (7, 5)), ("25.10", (7, 5)), ("26.07", (7, 5))],
)
def test_months_from_25_03_on_need_turing(image: str, expected: tuple[int, int] | None) -> None:
    """The sources are docs/reference/compatibility.md#cuda and Triton's release notes 24.03 and 25.03."""
    inferred = IMAGES.infer(TORCH % image)

    assert inferred is not None
    assert expected == inferred.capability_floor


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("registry.example/train:1.0-cuda12.4.1-runtime", "12.4.1"),
        ("registry.example/train:cuda11.8", "11.8"),
        ("registry.example/train:1.0-cuda12-py3", "12.0"),
        ("registry.example/train:0.5.0-cu121", "12.1"),
        ("registry.example/train:cu118", "11.8"),
        ("registry.example/train:v1_cu130", "13.0"),
        ("pytorch/pytorch:nightly-cuda12.4-x", "12.4"),
        ("registry.example:5000/team/train:2-cu124", "12.4"),
        ("registry.example/nvidia/pytorch:24.05-cuda12.4", "12.4"),
        ("registry.example/train:cuda-13.3.0", "13.3"),
        ("registry.example/train:torch2.4.1cu124", "12.4"),
        ("nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0", "12.5"),
        # the last part of the name counts where the tag has no CUDA
        ("registry.example/train-cu118:1", "11.8"),
        ("registry.example/cuda-12.4-runtime", "12.4"),
        ("registry.example/train-cuda11.8:2-cu124", "12.4"),
        # families, months and versions without a source
        ("lmsysorg/sglang:v0.4.6-cu124", "12.4"),
        ("lmsysorg/sglang:v0.4.6.post1-cu124-srt", "12.4"),
        ("nvcr.io/nvidia/pytorch:23.01-py3", "12.0.1"),
        ("tensorflow/tensorflow:2.20.0-gpu", "12.5"),
        ("vllm/vllm-openai:v0.4.2", "12.1"),
        ("rayproject/ray:2.9.0-gpu", "11.8"),
        ("rayproject/ray:2.46.0-py310-gpu", "12.1"),
    ],
)
def test_other_tag_that_names_cuda_is_a_preference(image: str, expected: str) -> None:
    """The CUDA of any other tag is preferred, and `cuda12` means 12.0 (docs/reference/compatibility.md#cuda)."""
    assert (expected, False) == cuda_of(image)


@pytest.mark.parametrize(
    "image",
    [
        pytest.param("train", id="no tag"),
        pytest.param("train:1", id="plain"),
        pytest.param("", id="empty"),
        pytest.param(":", id="colon alone"),
        pytest.param("@sha256:0", id="digest alone"),
        pytest.param("registry.example:5000/train", id="port is no tag"),
        pytest.param("registry.example:5000/cuda12.4/train:1", id="CUDA in the path"),
        pytest.param("registry.example/train:12.4", id="number alone"),
        pytest.param("registry.example/train:cu12", id="two digits"),
        pytest.param("registry.example/train:cu1245", id="four digits"),
        pytest.param("registry.example/train:focus121", id="inside a word"),
        pytest.param("registry.example/nvidia/pytorch:24.05-py3", id="a mirror is another image"),
        pytest.param("nvcr.io.example/nvidia/pytorch:24.05-py3", id="another registry"),
        pytest.param("nvcr.io/nvidia/pytorch:99.01-py3", id="month of the future"),
        pytest.param("nvcr.io/nvidia/pytorch:21.03-py3", id="month that the table lacks"),
        pytest.param("nvcr.io/nvidia/pytorch:latest", id="latest"),
        pytest.param("nvcr.io/nvidia/pytorch@sha256:0", id="family by digest"),
        pytest.param("nvcr.io/nvidia/nemo:24.07", id="built on an earlier month"),
        pytest.param("nvcr.io/nim/meta/llama:1.3.0", id="its environment decides"),
        pytest.param("ollama/ollama:0.11.11", id="picks its CUDA by driver"),
        pytest.param("vllm/vllm-openai:v0.25.0", id="release after the table"),
        pytest.param("vllm/vllm-openai:v0.1.7", id="release before the table"),
        pytest.param("vllm/vllm-openai:latest", id="latest of a family"),
        pytest.param("tensorflow/tensorflow:2.14.0", id="only -gpu contains CUDA"),
        pytest.param("ghcr.io/huggingface/text-generation-inference:3.1.1-rocm", id="another vendor"),
        pytest.param("ghcr.io/huggingface/text-generation-inference:3.3.8", id="after the table"),
        pytest.param("nvidia/cuda:latest", id="no such tag"),
        pytest.param("NVIDIA/CUDA:12.4.0-base", id="names are lower case"),
    ],
)
def test_unknown_image_infers_nothing(image: str) -> None:
    """An unknown image needs nothing; images are never fetched (docs/reference/compatibility.md#cuda)."""
    assert cuda_of(image) is None


DIGEST = "@sha256:" + "0" * 64


@pytest.mark.parametrize("prefix", ["", "docker.io/", "index.docker.io/"])
@pytest.mark.parametrize("digest", ["", DIGEST], ids=["tag", "tag and digest"])
@pytest.mark.parametrize(
    "name", ["nvidia/cuda:12.4.1-base-ubuntu22.04", "pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime"]
)
def test_default_registry_and_digest_change_nothing(prefix: str, digest: str, name: str) -> None:
    inferred = IMAGES.infer(prefix + name + digest)

    assert inferred is not None
    assert IMAGES.infer(name) == inferred


@pytest.mark.parametrize(
    "image", ["a" * 1_000_000, "a:" + "cu1" * 300_000, "x/" * 200_000 + "y:1-" * 50_000], ids=["name", "tag", "path"]
)
def test_endless_reference_is_answered(image: str) -> None:
    """No input makes a regular expression run for seconds."""
    assert IMAGES.infer(image) is None
