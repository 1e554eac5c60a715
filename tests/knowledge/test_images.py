# SPDX-License-Identifier: Apache-2.0
"""Images: families by name and tag, months by their tables, other tags, and what an environment demands."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import app.knowledge
from app.knowledge.nvidia_require import HostFacts, lowest_cuda, parse_require, requirement_holds
from app.values.versions import Version, major_minor, parse_version, show_version
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
    """Infer: the CUDA version as people write it, and whether it is required."""
    found = IMAGES.infer(image)
    return (show_version(found.cuda), found.required) if found else None


@pytest.mark.parametrize(("row", "example"), EXAMPLES)
def test_example_of_a_family_is_of_that_family(row: dict[str, Any], example: str) -> None:
    """F11, S10: the tag fits its own grammar, and says something unless the family is known to say nothing."""
    inferred = [IMAGES.infer(f"{name.replace('*', 'x')}:{example}") for name in row["images"]]

    assert re.fullmatch(row["tag_regex"], example)
    assert [row["cuda"] != "none"] * len(inferred) == [each is not None for each in inferred]
    assert {bool(row.get("carries_compat"))} >= {each.carries_compat for each in inferred if each}


@pytest.mark.parametrize(("row", "example"), EXAMPLES)
def test_unsourced_family_is_a_preference(row: dict[str, Any], example: str) -> None:
    """F11: what has no source refuses no node, and says that it has none."""
    inferred = [IMAGES.infer(f"{name.replace('*', 'x')}:{example}") for name in row["images"]]

    assert all(("unsourced" in each.evidence) is not each.required for each in inferred if each)
    assert not (row.get("unsourced") and any(each.required for each in inferred if each))


@pytest.mark.parametrize("row", TABLE["image_families"], ids=lambda row: row["images"][0])
def test_family_says_what_its_environment_requires_and_where_that_was_seen(row: dict[str, Any]) -> None:
    """F11: `list` needs the lists, a value is one that the container toolkit would read, and months seen have a row."""
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
        # pytorch, rapids, vllm, sglang: the tag names it
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
    """F11, S10; app/knowledge/image_cuda.yaml."""
    found = cuda_of(image)

    assert (expected, True) == found


@pytest.mark.parametrize(("image", "row"), [pytest.param(*each, id=each[0].rpartition(":")[2]) for each in MONTHS])
def test_month_is_what_its_release_notes_say(image: str, row: dict[str, Any]) -> None:
    """app/knowledge/image_cuda.yaml, ngc_months: a full driver is the native floor, a branch leaves it to the toolkit
    table."""
    driver = parse_version(row["min_driver"])
    listed = row.get("dc_gpu_alt_branches", ())
    branches = tuple((parse_version(each)[0], parse_version(each)) for each in listed)

    found = IMAGES.infer(image)

    assert found is not None
    assert (driver if len(driver) > 1 else None, branches) == (found.native, found.forward)
    assert major_minor(found.cuda) == major_minor(parse_version(".".join(row["cuda"].split(" ")[0].split(".")[:3])))
    assert found.requires is None
    assert bool(row.get("unsourced")) is ("unsourced" in found.evidence)


@pytest.mark.parametrize(
    ("image", "expected"),
    [("24.02", None), ("24.12", None), ("25.02", None), ("25.03", (7, 5)), ("25.10", (7, 5)), ("26.07", (7, 5))],
)
def test_months_from_25_03_on_need_turing(image: str, expected: tuple[int, int] | None) -> None:
    """docs/reference/compatibility.md#cuda; Triton release notes 24.03, 25.03."""
    found = IMAGES.infer(TORCH % image)

    assert found is not None
    assert expected == found.capability_floor


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
        # the last part of the name, where the tag says nothing
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
    """Any other tag pattern = preferred; `cuda12` means 12.0 (docs/reference/compatibility.md#cuda)."""
    found = cuda_of(image)

    assert (expected, False) == found


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
    """Unknown = nothing; images are never fetched (docs/reference/compatibility.md#cuda)."""
    assert cuda_of(image) is None


DIGEST = "@sha256:" + "0" * 64


@pytest.mark.parametrize("prefix", ["", "docker.io/", "index.docker.io/"])
@pytest.mark.parametrize("digest", ["", DIGEST], ids=["tag", "tag and digest"])
@pytest.mark.parametrize(
    "name", ["nvidia/cuda:12.4.1-base-ubuntu22.04", "pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime"]
)
def test_default_registry_and_digest_change_nothing(prefix: str, digest: str, name: str) -> None:
    found = IMAGES.infer(prefix + name + digest)

    assert found is not None
    assert IMAGES.infer(name) == found


@pytest.mark.parametrize(
    ("tag", "branches", "consumer"),
    [
        ("11.8.0-base", {450, 470, 510, 515}, {470, 510, 515}),
        ("12.1.0-base", {470, 525}, {470, 525}),
        ("12.2.2-base", {470, 525}, {470, 525}),
        ("12.4.0-base", {470, 525, 535}, {470, 525, 535}),
        ("12.5.1-base", {470, 535, 550}, set()),
        ("12.6.3-base", {470, 535, 550}, set()),
        ("12.8.1-devel", {470, 535, 550, 560, 565}, set()),
        ("12.9.1-devel", {535, 550, 560, 565, 570}, set()),
        ("13.0.0-base", {535, 550, 565, 570, 575}, set()),
    ],
)
def test_cuda_base_image_names_the_branches_it_starts_on(tag: str, branches: set[int], consumer: set[int]) -> None:
    """From NVIDIA_REQUIRE_CUDA in nvidia/cuda's Dockerfiles; from 12.5 on no list names a GeForce."""
    found = IMAGES.infer(f"nvidia/cuda:{tag}")

    assert found is not None
    assert found.requires is not None
    assert [branches, consumer] == [set(found.requires.branches), set(found.requires.consumer_branches)]


@pytest.mark.parametrize(
    "tag",
    ["11.3.1-base", "13.2.0-base", "13.0.2-base", "9.2-base"],
    ids=["any driver", "no list read", "list read of 13.0.0 alone", "no branch"],
)
def test_cuda_base_image_whose_list_refuses_nothing_or_is_not_known_has_none(tag: str) -> None:
    """Only what every published variant of an image refuses is refused."""
    found = IMAGES.infer(f"nvidia/cuda:{tag}")

    assert found is not None
    assert found.requires is None


@pytest.mark.parametrize(
    "image",
    ["a" * 1_000_000, "a:" + "cu1" * 300_000, "x/" * 200_000 + "y:1-" * 50_000],
    ids=["name", "tag", "path"],
)
def test_endless_reference_is_answered(image: str) -> None:
    """No input makes the regular expressions run away."""
    assert IMAGES.infer(image) is None


def host(driver: str, cuda: str = "", capability: str = "", datacenter: str = "yes") -> HostFacts:
    """Make what a node answers; without a label, the CUDA is what its driver's branch reports."""
    version = parse_version(driver)
    found = parse_version(cuda) if cuda else knowledge().cuda.highest_cuda(version)
    return HostFacts(version, found, parse_version(capability) if capability else None, datacenter == "yes")


@pytest.mark.parametrize(
    ("require", "driver", "more", "expected"),
    [
        pytest.param("cuda>=12.4", "550.54.15", {}, True, id="reported CUDA"),
        pytest.param("cuda>=12.4", "545.23.08", {}, False, id="reports 12.3"),
        pytest.param("cuda>=12.4", "545.23.08", {"cuda": "12.4"}, True, id="the label counts"),
        pytest.param("cuda>=12.4 brand=tesla,driver>=535,driver<536", "535.54.03", {}, True, id="or"),
        pytest.param("cuda>=12.4 brand=tesla,driver>=535,driver<536", "536.1", {"cuda": "12.2"}, False, id="and"),
        pytest.param("brand=geforce", "535.54.03", {"datacenter": "no"}, True, id="brand"),
        pytest.param("brand=geforce", "535.54.03", {}, False, id="other brand"),
        pytest.param("brand!=geforce", "535.54.03", {}, True, id="not that brand"),
        pytest.param("arch>=8.0", "535.54.03", {"capability": "7.5"}, False, id="architecture"),
        pytest.param("arch>=8.0", "535.54.03", {}, True, id="unknown is taken to hold"),
        pytest.param("cuda!=12.2", "535.54.03", {}, False, id="not equal"),
        pytest.param("cuda=12.2", "535.54.03", {}, True, id="equal"),
        pytest.param("cuda<12.3,cuda>12.1", "535.54.03", {}, True, id="between"),
        pytest.param("cuda<=12.1", "535.54.03", {}, False, id="at most"),
        pytest.param("moon>=1", "535.54.03", {}, True, id="unknown property is skipped"),
        pytest.param("cuda=>12", "535.54.03", {}, False, id="no comparison"),
        pytest.param("cuda>=new", "535.54.03", {}, False, id="no version"),
    ],
)
def test_requirement_is_judged_as_the_container_toolkit_does(
    require: str, driver: str, more: dict[str, str], expected: bool
) -> None:
    """docs/reference/compatibility.md#cuda; NVIDIA/nvidia-container-toolkit internal/requirements."""
    found = requirement_holds(parse_require([require]), host(driver, **more))

    assert expected is found


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["cuda>=12.4 brand=tesla,driver>=470"], (12, 4)),
        (["cuda>=12.4 cuda>=11.8"], (11, 8)),
        (["cuda>=12.4", "cuda>=11.8"], (12, 4)),
        (["driver>=535"], None),
        (["cuda<13"], None),
        ([" ", ""], None),
    ],
    ids=["with branches", "alternatives: lowest", "variables: highest", "driver alone", "upper bound", "empty"],
)
def test_requirement_asks_for_its_lowest_cuda(values: list[str], expected: Version | None) -> None:
    found = lowest_cuda(parse_require(values))

    assert expected == found


def test_several_variables_must_all_hold() -> None:
    """The container toolkit's rule: NVIDIA_REQUIRE_* variables are joined by and."""
    found = [
        requirement_holds(parse_require(["cuda>=12.0", second]), host("535.54.03"))
        for second in ("driver>=1", "driver>=999")
    ]

    assert found == [True, False]
