# SPDX-License-Identifier: Apache-2.0
"""CUDA compatibility step by step: native, minor version, forward, requirement unmet, and limits of compute
capability."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.knowledge.cuda_compatibility import (
    AcceptedCompatibility,
    Compatibility,
    CUDANeed,
    DriverList,
    HostFacts,
    judge_driver,
)
from app.policy.cuda_needs import minimum_need
from app.values.versions import Version, parse_version, show_version
from tests.builders import knowledge

CUDA = knowledge().cuda
NATIVE, MINOR, FORWARD = Compatibility.Native, Compatibility.MinorVersion, Compatibility.Forward
OLD, UNMET = Compatibility.TooOld, Compatibility.RequirementUnmet
LISTED = DriverList((12, 4), (550,), frozenset({470, 525, 535}), frozenset({525}))
"""`cuda>=12.4`, with three branches for most brands and one of them for GeForce."""


def host(driver: str, datacenter: bool | None = True) -> HostFacts:
    """Make the facts of a node that a requirement is judged by."""
    version = parse_version(driver)
    return HostFacts(version, CUDA.highest_cuda(version), None, datacenter)


def need(cuda: str, compat: bool = False) -> CUDANeed:
    """Make a need for a CUDA version: that of an annotation, or of a policy whose images carry cuda-compat."""
    return minimum_need(parse_version(cuda), "", knowledge(), compat)


@pytest.mark.parametrize(
    ("cuda", "expected"),
    [
        # CUDA Toolkit Release Notes 13.2, Table "CUDA Toolkit and Corresponding Driver Versions"
        ("13.3", "610.43.02"),
        ("13.2", "595.45.04"),
        ("13.2.2", "595.71.05"),
        ("13.1.1", "590.48.01"),
        ("13.0", "580.65.06"),
        ("13.0.2", "580.95.05"),
        ("12.9.1", "575.57.08"),
        ("12.8", "570.26"),
        ("12.4", "550.54.14"),
        ("12.4.1", "550.54.15"),
        ("12.2.2", "535.104.05"),
        ("12.0", "525.60.13"),
        ("11.8", "520.61.05"),
        ("11.4.4", "470.82.01"),
        ("11.3.1", "465.19.01"),
        ("11.1.1", "455.32"),
        ("11.1", "455.23"),
        ("11.0.3", "450.51.06"),
        ("11.0.2", "450.51.05"),
        ("10.2", "440.33"),
        # there is no such toolkit, so the driver of the next known one counts
        ("12.7", "570.26"),
        ("11.9", "525.60.13"),
    ],
)
def test_toolkit_needs_the_driver_of_its_release_notes(cuda: str, expected: str) -> None:
    """F34."""
    assert parse_version(expected) == CUDA.toolkit(parse_version(cuda)).native


@pytest.mark.parametrize(
    ("cuda", "driver", "expected"),
    [
        # newer than every toolkit with a known driver: 13.4 pairs with R615 (app/knowledge/cuda_driver.yaml)
        pytest.param("13.4", "615.10", NATIVE, id="13.4 on R615"),
        pytest.param("13.4", "610.43.02", MINOR, id="13.4 on R610: minor version"),
        pytest.param("13.4", "580.65.06", MINOR, id="13.4 on R580: minor version"),
        # a major version that no table knows is not native on a driver that reports 13.3
        pytest.param("14.0", "610.43.02", OLD, id="14.0 on R610"),
    ],
)
def test_toolkit_newer_than_the_table_is_not_native_on_older_branches(
    cuda: str, driver: str, expected: Compatibility
) -> None:
    """F34, decision_procedure step 1 and 4."""
    assert expected == judge_driver(need(cuda), host(driver))


@pytest.mark.parametrize(
    ("cuda", "driver", "expected"),
    [
        # step 1: min_driver_linux
        ("12.4.1", "550.54.15", NATIVE),
        ("11.8", "520.61.05", NATIVE),
        ("10.2", "440.33", NATIVE),
        # step 2: minor_version_compat, 525.60.13 for 12, 450.80.02 for 11, 580 for 13, none before 11
        ("12.4.1", "550.54.14", MINOR),
        ("12.9", "525.60.13", MINOR),
        ("11.8", "450.80.02", MINOR),
        ("13.2", "580.65.06", MINOR),
        ("10.2", "418.39", OLD),
        ("12.9", "525.60.12", OLD),
        ("11.8", "450.80.01", OLD),
        # step 3: forward_compat matrix, both editions
        ("13.0", "535.54.03", FORWARD),
        ("13.0", "575.57.08", OLD),
        ("13.0", "550.54.15", OLD),
        ("13.3", "570.26", FORWARD),
        ("13.4", "535.54.03", FORWARD),
    ],
)
def test_procedure_goes_native_minor_forward_no(cuda: str, driver: str, expected: Compatibility) -> None:
    """F34, F36; app/knowledge/cuda_driver.yaml, decision_procedure."""
    assert expected == judge_driver(need(cuda, compat=True), host(driver))


@pytest.mark.parametrize(
    ("driver", "datacenter", "expected"),
    [
        ("550.54.15", True, NATIVE),
        ("550.40.07", True, MINOR),  # below the toolkit's own driver, in the branch that reports its CUDA
        ("535.54.03", True, MINOR),
        ("525.60.13", True, MINOR),
        ("530.30.02", True, UNMET),
        ("545.23.08", True, UNMET),
        ("470.57.02", True, FORWARD),
        ("510.47.03", True, OLD),
        ("525.60.13", False, MINOR),
        ("535.54.03", False, UNMET),
        ("550.40.07", False, MINOR),
        ("470.57.02", False, OLD),
        # a product that no table lists is of any brand that the image names, and not a data-centre GPU
        ("535.54.03", None, MINOR),
        ("470.57.02", None, OLD),
    ],
)
def test_image_starts_on_the_branches_that_its_requirement_names_for_the_brand(
    driver: str, datacenter: bool | None, expected: Compatibility
) -> None:
    """F34: decision_procedure steps 2 to 4."""
    image_need = replace(need("12.4.1"), requires=LISTED, forward=((470, (470,)), (510, (510, 99))))

    assert expected == judge_driver(image_need, host(driver, datacenter))


def test_requirement_holds_where_the_reported_cuda_is_not_known() -> None:
    image_need = replace(need("12.4.1"), requires=LISTED)

    assert judge_driver(image_need, HostFacts((530, 30), None, None, True)) is MINOR


@pytest.mark.parametrize("driver", ["535.54.03", "570.26"])
def test_forward_compatibility_is_for_known_data_centre_gpus_alone(driver: str) -> None:
    """GeForce is not supported, and whether an unlisted product is a data-centre GPU is not known."""
    image_need = need("13.0", compat=True)

    verdicts = [judge_driver(image_need, host(driver, datacenter)) for datacenter in (True, False, None)]

    assert verdicts == [FORWARD, OLD, OLD]


def test_minimum_alone_claims_no_forward_compatibility() -> None:
    """F34: the compat package is part of an image, and neither an annotation nor a policy's minimum tells about it."""
    assert judge_driver(need("13.0"), host("535.54.03")) is OLD


@given(st.sampled_from(sorted(CUDA.native)), st.integers(0, 200), st.booleans())
def test_newer_driver_always_runs_an_older_toolkit(cuda: Version, branches: int, datacenter: bool) -> None:
    """The rule is the backward compatibility of the CUDA Compatibility guide."""
    cuda_need = minimum_need(cuda, "", knowledge())
    newer = HostFacts((cuda_need.native[0] + branches, *cuda_need.native[1:]), None, None, datacenter)

    assert judge_driver(cuda_need, newer) is NATIVE


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (AcceptedCompatibility.Native, "550.54.15"),
        (AcceptedCompatibility.MinorVersion, "525.60.13"),
        (AcceptedCompatibility.ForwardCompatible, "525.60.13"),
    ],
)
def test_floor_in_messages_is_the_effective_one(accept: AcceptedCompatibility, expected: str) -> None:
    """The message shows the lowest driver that `accept` allows (docs/reference/compatibility.md#cuda)."""
    assert expected == show_version(need("12.4.1").floor(accept))


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        ("615.1", "13.4"),
        ("580.95.05", "13.0"),
        ("565.57.01", "12.7"),
        ("535.54.03", "12.2"),
        ("450.80.02", "11.0"),
        ("390.46", None),
    ],
)
def test_branch_reports_its_highest_cuda(driver: str, expected: str | None) -> None:
    """The table is app/knowledge/cuda_driver.yaml, driver_branches."""
    highest = CUDA.highest_cuda(parse_version(driver))

    assert expected == (show_version(highest) if highest else None)


@pytest.mark.parametrize(
    ("cuda", "capability", "served", "targeted"),
    [
        # compute_capability_removals: refused
        pytest.param("13.0", "7.0", False, False, id="Volta left in 13.0"),
        pytest.param("13.0", "6.1", False, False, id="Pascal left in 13.0"),
        pytest.param("13.0", "5.2", False, False, id="Maxwell left in 13.0"),
        pytest.param("13.0", "7.5", True, True, id="Turing stays"),
        pytest.param("12.9", "5.0", True, True, id="Maxwell until 12.9"),
        pytest.param("12.0", "3.7", False, False, id="Kepler left in 12.0"),
        pytest.param("11.8", "3.5", True, True, id="Kepler 3.5 until 11.8"),
        pytest.param("11.0", "3.0", False, False, id="Kepler 3.0 left in 11.0"),
        # compute_capability_first_toolkit: PTX serves a newer GPU if the image has any, but machine code does not
        pytest.param("11.7", "9.0", True, False, id="Hopper from 11.8"),
        pytest.param("11.8", "9.0", True, True, id="Hopper"),
        pytest.param("12.6", "10.0", True, False, id="Blackwell from 12.8"),
        pytest.param("12.6", "12.0", True, False, id="RTX Blackwell from 12.8"),
        pytest.param("10.2", "8.0", True, False, id="Ampere from 11.0"),
        pytest.param("9.2", "7.5", True, True, id="sm_70 code runs on 7.5"),
        pytest.param("8.0", "7.0", True, False, id="Volta from 9.0"),
        # sass_rules: cubin for X.y runs on X.z with z >= y
        pytest.param("11.0", "8.6", True, True, id="sm_80 code runs on 8.6"),
        pytest.param("11.0", "8.9", True, True, id="sm_80 code runs on 8.9"),
        pytest.param("12.8", "10.3", True, True, id="sm_100 code runs on 10.3"),
        pytest.param("12.8", "12.1", True, True, id="sm_120 code runs on 12.1"),
        pytest.param("10.2", "8.7", True, False, id="8.7 is an Ampere (gpu_products.yaml, architectures)"),
        # no row states it, so it is unknown, as B200 is for 12.4
        pytest.param("12.4", "13.0", True, False, id="a capability that no row knows"),
        pytest.param("13.3", "13.0", True, False, id="the same on the newest toolkit"),
    ],
)
def test_toolkit_serves_gpus_until_it_removes_them(cuda: str, capability: str, served: bool, targeted: bool) -> None:
    """F35, P32: GPUs that a toolkit removed are refused; those without known machine code only lower the score."""
    gpu, version = parse_version(capability), parse_version(cuda)

    assert served is (gpu not in CUDA.unsupported(version))
    if served:
        assert targeted is (gpu in CUDA.targets(version))


def test_unknown_driver_is_never_judged() -> None:
    """An unknown driver has a reason of its own, DriverUnknown (docs/reference/compatibility.md#unknown-facts)."""
    with pytest.raises(ValueError, match="wants a known driver"):
        judge_driver(need("12.4"), HostFacts(None, None, None, True))
