# SPDX-License-Identifier: Apache-2.0
"""What an image carries decides as a container's start would: its requirement, its CUDA, and its platforms."""

from typing import Any

import pytest

from app.knowledge.image_configs import ImageFacts
from app.kube.pods import read_pod
from app.placement.engine import judge_class
from app.policy.compiled import PolicySet
from app.policy.cuda_needs import show_need
from app.policy.demand import Demand
from app.policy.match import ruling_for
from app.world.image_index import MOST_WANTED, ImageIndex
from app.world.state import State
from app.world.world import RulingCache
from tests.builders import gpus, knowledge, node, pod, policies, policy, shipped
from tests.images.published import CUDA_12_4, CUDA_12_4_ARM, NGC, facts, require

IMAGE = "registry.example/team/serve:v7"
GEFORCE = "NVIDIA-GeForce-RTX-4090"
A6000 = "NVIDIA-RTX-A6000"


def demand_of(document: dict[str, Any], known: ImageFacts | None, policy_set: PolicySet | None = None) -> Demand:
    """Compile the demand of a pod whose images all carry the same."""
    index, read = ImageIndex(), read_pod(document)
    for container in read.containers:
        index.put(container.image, known)
    return ruling_for(index.with_facts(read), {}, policy_set or shipped(), knowledge()).demand


def env(**variables: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in variables.items()]


def verdict(known: ImageFacts | None, image: str = IMAGE, **more: Any) -> str:
    """Return the code by which a node refuses a one-GPU pod; empty if it fits. `env` is the pod's, else the node's."""
    document = pod(gpus(1, image=image, env=more.pop("env", [])), annotations=more.pop("annotations", None))
    found = judge_class(demand_of(document, known, more.pop("policies", None)), node(**more).node_class)
    return found.code.name if found else ""


UNMET, OLD, OTHER = "ImageRequirementUnmet", "DriverTooOld", "ImageForOtherMachine"
ARM = {"labels": {"kubernetes.io/arch": "arm64"}}
AMD = {"labels": {"kubernetes.io/arch": "amd64"}}
BASE = facts(amd64=CUDA_12_4)
BOTH = facts(amd64=CUDA_12_4, arm64=CUDA_12_4_ARM)


@pytest.mark.parametrize(
    ("known", "more", "expected"),
    [
        pytest.param(None, {"driver": "470.57.02"}, "", id="nothing known of a company's image"),
        pytest.param(BASE, {"driver": "550.54.15"}, "", id="native"),
        pytest.param(BASE, {"driver": "545.23.08"}, UNMET, id="a branch that is not named"),
        pytest.param(BASE, {"driver": "535.54.03"}, "", id="a branch that is named"),
        pytest.param(BASE, {"driver": "515.43.04"}, UNMET, id="too old"),
        pytest.param(BASE, {"driver": "470.57.02"}, "", id="by the cuda-compat package that it carries"),
        pytest.param(BASE, {"driver": "470.57.02", "product": GEFORCE}, OLD, id="which GeForce does not support"),
        pytest.param(BASE, {"driver": "535.54.03", "product": GEFORCE}, "", id="named for GeForce too"),
        pytest.param(
            facts(amd64=(f"NVIDIA_REQUIRE_CUDA={require('12.4', 535, brands=['tesla', 'nvidia'])}",)),
            {"driver": "535.54.03", "product": GEFORCE},
            UNMET,
            id="not for GeForce",
        ),
        pytest.param(
            facts(amd64=(f"NVIDIA_REQUIRE_CUDA={require('12.4', 535, brands=['tesla'])}",)),
            {"driver": "535.54.03", "product": A6000},
            UNMET,
            id="not for a workstation GPU",
        ),
        pytest.param(
            facts(amd64=(f"NVIDIA_REQUIRE_CUDA={require('12.4', 535, brands=['tesla'])}",)),
            {"driver": "535.54.03", "product": "Tesla-T4"},
            "",
            id="for a Tesla",
        ),
        pytest.param(facts(amd64=("CUDA_VERSION=11.8.0",)), {"driver": "515.43.04"}, UNMET, id="CUDA_VERSION alone"),
        pytest.param(facts(amd64=("CUDA_VERSION=11.8.0",)), {"driver": "520.61.05"}, "", id="CUDA_VERSION is met"),
        pytest.param(facts(amd64=NGC), {"driver": "535.54.03"}, "", id="minor-version compatibility"),
        pytest.param(facts(amd64=NGC), {"driver": "450.80.02"}, OLD, id="driver of another CUDA major version"),
        pytest.param(
            facts(amd64=(*CUDA_12_4, "NVIDIA_DISABLE_REQUIRE=true")),
            {"driver": "515.43.04"},
            "",
            id="lifted by the image",
        ),
        pytest.param(BASE, {"driver": "515.43.04", "env": env(NVIDIA_DISABLE_REQUIRE="1")}, "", id="lifted by the pod"),
        pytest.param(
            facts(amd64=(*CUDA_12_4, "NVIDIA_DISABLE_REQUIRE=true")),
            {"driver": "515.43.04", "env": env(NVIDIA_DISABLE_REQUIRE="false")},
            UNMET,
            id="not lifted by the pod",
        ),
        pytest.param(
            BASE, {"driver": "515.43.04", "env": env(NVIDIA_REQUIRE_CUDA="cuda>=11.0")}, "", id="replaced by the pod"
        ),
        pytest.param(
            BASE, {"driver": "570.26", "env": env(NVIDIA_REQUIRE_MORE="driver>=575")}, UNMET, id="joined by the pod's"
        ),
        pytest.param(
            facts(amd64=(*CUDA_12_4, "NVIDIA_REQUIRE_DRIVER=driver>=560")),
            {"driver": "550.54.15", "env": env(NVIDIA_REQUIRE_CUDA="cuda>=11.0")},
            UNMET,
            id="the image's other requirement stays",
        ),
        pytest.param(BASE, {"driver": "515.43.04", "annotations": {"cuda": "11.7"}}, "", id="the annotation wins"),
        pytest.param(
            BASE,
            {
                "driver": "515.43.04",
                "policies": policies(
                    policy(
                        "own",
                        "priority: 1, placement: {cuda: {fromImage: true, images:"
                        " [{image: 'registry.example/*', cuda: '11.7'}]}}",
                    )
                ),
            },
            "",
            id="a policy's table wins",
        ),
        pytest.param(BASE, ARM, OTHER, id="amd64 alone on a Grace machine"),
        pytest.param(BASE, AMD, "", id="amd64 alone"),
        pytest.param(BOTH, ARM, "", id="both platforms"),
        pytest.param(BOTH, {**ARM, "driver": "535.54.03"}, UNMET, id="a branch that only the list of amd64 names"),
        pytest.param(BOTH, {**AMD, "driver": "535.54.03"}, "", id="which counts on amd64"),
        pytest.param(BOTH, {"driver": "535.54.03"}, "", id="and where the CPU is not known"),
        pytest.param(BOTH, {**ARM, "driver": "550.54.15"}, "", id="a driver that both lists accept"),
        pytest.param(
            BOTH,
            {**ARM, "driver": "535.54.03", "env": env(NVIDIA_REQUIRE_CUDA="cuda>=12.2")},
            "",
            id="the pod's counts",
        ),
        pytest.param(
            BOTH,
            {**ARM, "driver": "535.54.03", "env": env(NVIDIA_REQUIRE_MORE="driver>=500")},
            UNMET,
            id="the pod's joins that of the platform",
        ),
        pytest.param(
            BOTH, {**ARM, "driver": "535.54.03", "env": env(NVIDIA_DISABLE_REQUIRE="1")}, "", id="lifted on both"
        ),
        pytest.param(BOTH, {**ARM, "driver": "515.43.04"}, UNMET, id="a branch that neither list names"),
        pytest.param(
            facts(amd64=CUDA_12_4, arm64=("CUDA_VERSION=11.8.0", "NVIDIA_REQUIRE_CUDA=cuda>=11.8")),
            {"driver": "515.43.04"},
            "",
            id="platforms of different CUDA",
        ),
        pytest.param(
            facts(amd64=("CUDA_VERSION=12.4.1", "NVIDIA_REQUIRE_DRIVER=driver>=570"), arm64=("CUDA_VERSION=12.4.1",)),
            {"driver": "550.54.15"},
            "",
            id="a requirement of one platform",
        ),
        pytest.param(facts(s390x=()), AMD, OTHER, id="no machine with GPUs"),
        pytest.param(facts(amd64=()), {"driver": "470.57.02"}, "", id="no CUDA in it"),
    ],
)
def test_image_is_judged_as_a_start_of_the_container_would(
    known: ImageFacts | None, more: dict[str, Any], expected: str
) -> None:
    assert expected == verdict(known, **more)


@pytest.mark.parametrize(
    ("image", "known", "driver", "expected"),
    [
        ("nvidia/cuda:12.4.1-base-ubuntu22.04", facts(amd64=("CUDA_VERSION=11.8.0",)), "520.61.05", ""),
        ("nvidia/cuda:11.8.0-base-ubuntu22.04", facts(amd64=CUDA_12_4), "515.43.04", UNMET),
        ("nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8", facts(amd64=CUDA_12_4), "515.43.04", UNMET),
    ],
    ids=["a name that says too much", "a name that says too little", "a name that says nothing"],
)
def test_config_wins_over_the_name(image: str, known: ImageFacts, driver: str, expected: str) -> None:
    assert expected == verdict(known, image=image, driver=driver)


def test_evidence_names_the_config() -> None:
    known = demand_of(pod(gpus(1, image=IMAGE)), BASE)

    assert [show_need(need) for need in known.cuda] == [
        "CUDA 12.4.1 (container main: image's config, CUDA 12.4.1; its cuda-compat-12-4 also allows driver R470, R525"
        " on data-centre GPUs (policy field cuda.accept))"
    ]
    assert [platform.evidence for platform in known.platforms] == ["container main: image's config"]


def test_jetson_image_still_runs_on_its_boards_alone() -> None:
    """An index says arm64; that an image of l4t-base runs on a Jetson alone, its name says."""
    document = pod(gpus(1, image="nvcr.io/nvidia/l4t-base:r36.2.0"))

    platforms = demand_of(document, facts(arm64=())).platforms

    assert {platform.architecture for platform in platforms} == {"arm64"}
    assert any(platform.products for platform in platforms)


def test_fact_that_comes_later_changes_the_ruling_of_the_same_template() -> None:
    state, read = State(knowledge()), read_pod(pod(gpus(1, image=IMAGE)))
    rulings = RulingCache()
    before = rulings.of(read, {}, shipped(), state).demand.cuda

    state.images.put(IMAGE, BASE)
    after = rulings.of(read, {}, shipped(), state).demand.cuda
    state.images.put(IMAGE, None)

    assert not before
    assert len(after) == 1
    assert rulings.of(read, {}, shipped(), state).demand.cuda == before


def test_only_images_of_gpu_pods_are_wanted_and_only_while_they_are_read() -> None:
    state, rulings = State(knowledge()), RulingCache()
    documents = [pod(gpus(1, image="a")), pod({"name": "main", "image": "b"}), pod(gpus(1, image="c"))]

    rulings.of(read_pod(documents[0]), {}, shipped(), state)
    state.images.reading = True
    for document in documents[1:]:
        rulings.of(read_pod(document), {}, shipped(), state)

    assert list(state.images.wanted) == ["c"]


def test_number_of_wanted_references_is_bounded() -> None:
    index = ImageIndex()

    for number in range(MOST_WANTED + 10):
        index.want(read_pod(pod(gpus(1, image=f"image:{number}"))))

    assert len(index.wanted) == MOST_WANTED
