# SPDX-License-Identifier: Apache-2.0
"""Requirements of images: the lists of nvidia/cuda images, and NVIDIA_REQUIRE_* variables judged on a node."""

import pytest

from app.knowledge.cuda_compatibility import HostFacts, lowest_cuda, parse_require, requirement_holds
from app.values.versions import Version, parse_version
from tests.builders import knowledge

IMAGES = knowledge().images


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
    """The lists are NVIDIA_REQUIRE_CUDA in nvidia/cuda's Dockerfiles; from 12.5 on no list names a GeForce."""
    inferred = IMAGES.infer(f"nvidia/cuda:{tag}")

    assert inferred is not None
    assert inferred.requires is not None
    assert [branches, consumer] == [set(inferred.requires.branches), set(inferred.requires.consumer_branches)]


@pytest.mark.parametrize(
    "tag",
    ["11.3.1-base", "13.2.0-base", "13.0.2-base", "9.2-base"],
    ids=["any driver", "no list read", "list read of 13.0.0 alone", "no branch"],
)
def test_cuda_base_image_whose_list_refuses_nothing_or_is_not_known_has_none(tag: str) -> None:
    """A driver is refused only if every published variant of the image refuses it."""
    inferred = IMAGES.infer(f"nvidia/cuda:{tag}")

    assert inferred is not None
    assert inferred.requires is None


def host(
    driver: str, cuda: str = "", capability: str = "", datacenter: str = "yes", product: str | None = None
) -> HostFacts:
    """Make the facts of a node; without a label, its CUDA is the one that the driver's branch reports."""
    version = parse_version(driver)
    reported = parse_version(cuda) if cuda else knowledge().cuda.highest_cuda(version)
    least = parse_version(capability) if capability else None
    return HostFacts(version, reported, least, datacenter == "yes", product)


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
        pytest.param("moon>=1", "535.54.03", {}, False, id="unknown property is invalid"),
        pytest.param("cuda>=12.0 moon>=1", "535.54.03", {}, True, id="invalid behind one that holds"),
        pytest.param("moon>=1 cuda>=12.0", "535.54.03", {}, False, id="invalid before one that holds"),
        pytest.param("cuda>=99,moon>=1 cuda>=12.0", "535.54.03", {}, True, id="invalid behind one that does not"),
        pytest.param("CUDA>=12.0", "535.54.03", {}, True, id="any case"),
        pytest.param(",cuda>=12.0,,", "535.54.03", {}, True, id="empty clauses"),
        pytest.param("cuda!12.2", "535.54.03", {}, False, id="half an operator"),
        pytest.param("cuda==12.2", "535.54.03", {}, False, id="no operator"),
        pytest.param("cuda>=12.2\t", "535.54.03", {}, False, id="only spaces separate"),
        pytest.param("brand>tesla", "535.54.03", {}, False, id="brands have no order"),
        pytest.param("brand=Tesla", "535.54.03", {"product": "tesla-t4"}, True, id="brand in any case"),
        pytest.param("brand=tesla", "535.54.03", {"product": "rtx-a6000"}, False, id="workstation GPU is no Tesla"),
        pytest.param("brand=quadrortx", "535.54.03", {"product": "rtx-a6000"}, True, id="its brand by its driver"),
        pytest.param("brand=nvidia", "535.54.03", {"product": "h100-80gb-hbm3"}, True, id="brand of a new GPU"),
        pytest.param("brand=grid", "535.54.03", {"product": "h100-80gb-hbm3"}, False, id="no vGPU"),
        pytest.param(
            "brand=titan",
            "535.54.03",
            {"product": "geforce-rtx-4090", "datacenter": "no"},
            False,
            id="another consumer brand",
        ),
        pytest.param("cuda=>12", "535.54.03", {}, False, id="no comparison"),
        pytest.param("cuda>=new", "535.54.03", {}, False, id="no version"),
    ],
)
def test_requirement_is_judged_as_the_container_toolkit_does(
    require: str, driver: str, more: dict[str, str], expected: bool
) -> None:
    """The sources are docs/reference/compatibility.md#cuda and NVIDIA/libnvidia-container src/cli/dsl.c."""
    assert expected is requirement_holds(parse_require([require]), host(driver, **more))


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
    assert expected == lowest_cuda(parse_require(values))


def test_several_variables_must_all_hold() -> None:
    """The container toolkit joins several NVIDIA_REQUIRE_* variables by AND."""
    verdicts = [
        requirement_holds(parse_require(["cuda>=12.0", second]), host("535.54.03"))
        for second in ("driver>=1", "driver>=999")
    ]

    assert verdicts == [True, False]
