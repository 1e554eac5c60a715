# SPDX-License-Identifier: Apache-2.0
"""CUDA compatibility step by step: native, minor version, forward, requirement unmet; floors and ceilings of GPUs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.knowledge.cuda_compatibility import AcceptedCompatibility, Compatibility, CUDANeed, DriverList, judge_driver
from app.knowledge.nvidia_require import HostFacts
from app.placement.engine import judge_class
from app.policy.cuda_needs import minimum_need
from app.values.versions import Version, parse_version, show_version
from tests.builders import demand, gpus, knowledge, node, pod

CUDA = knowledge().cuda
NATIVE, MINOR, FORWARD = Compatibility.Native, Compatibility.MinorVersion, Compatibility.Forward
OLD, UNMET = Compatibility.TooOld, Compatibility.RequirementUnmet
LISTED = DriverList((12, 4), (550,), frozenset({470, 525, 535}), frozenset({525}))
"""`cuda>=12.4`, three branches named for most brands, one of them for GeForce."""


def host(driver: str, datacenter: bool | None = True) -> HostFacts:
    """Make what a node answers."""
    version = parse_version(driver)
    return HostFacts(version, CUDA.highest_cuda(version), None, datacenter)


def need(cuda: str, compat: bool = False) -> CUDANeed:
    """Ask for a CUDA version as an annotation does, or as a policy does whose images carry cuda-compat."""
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
        # no such toolkit: the driver of the next known one above it
        ("12.7", "570.26"),
        ("11.9", "525.60.13"),
    ],
)
def test_toolkit_needs_the_driver_of_its_release_notes(cuda: str, expected: str) -> None:
    """F34."""
    found = CUDA.toolkit(parse_version(cuda)).native

    assert parse_version(expected) == found


@pytest.mark.parametrize(
    ("cuda", "driver", "expected"),
    [
        # newer than every toolkit with a driver of its own: 13.4 pairs with R615 (app/knowledge/cuda_driver.yaml)
        pytest.param("13.4", "615.10", NATIVE, id="13.4 on R615"),
        pytest.param("13.4", "610.43.02", MINOR, id="13.4 on R610: minor version"),
        pytest.param("13.4", "580.65.06", MINOR, id="13.4 on R580: minor version"),
        # a major version of which nothing is known is not native on a driver that reports 13.3
        pytest.param("14.0", "610.43.02", OLD, id="14.0 on R610"),
    ],
)
def test_toolkit_newer_than_the_table_is_not_native_on_older_branches(
    cuda: str, driver: str, expected: Compatibility
) -> None:
    """F34, decision_procedure step 1 and 4."""
    found = judge_driver(need(cuda), host(driver))

    assert expected == found


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
    found = judge_driver(need(cuda, compat=True), host(driver))

    assert expected == found


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
        # an unlisted product is taken to be of a brand that the image names, and not to be a data-centre GPU
        ("535.54.03", None, MINOR),
        ("470.57.02", None, OLD),
    ],
)
def test_image_starts_on_the_branches_that_its_requirement_names_for_the_brand(
    driver: str, datacenter: bool | None, expected: Compatibility
) -> None:
    """F34; decision_procedure steps 2 to 4."""
    asked = replace(need("12.4.1"), requires=LISTED, forward=((470, (470,)), (510, (510, 99))))

    found = judge_driver(asked, host(driver, datacenter))

    assert expected == found


def test_requirement_holds_where_the_reported_cuda_is_not_known() -> None:
    asked = replace(need("12.4.1"), requires=LISTED)

    found = judge_driver(asked, HostFacts((530, 30), None, None, True))

    assert found is MINOR


@pytest.mark.parametrize("driver", ["535.54.03", "570.26"])
def test_forward_compatibility_is_for_known_data_centre_gpus_alone(driver: str) -> None:
    """GeForce is not supported; of an unlisted product nobody knows."""
    asked = need("13.0", compat=True)

    found = [judge_driver(asked, host(driver, datacenter)) for datacenter in (True, False, None)]

    assert found == [FORWARD, OLD, OLD]


def test_minimum_alone_claims_no_forward_compatibility() -> None:
    """F34: the package is in an image, which an annotation or a policy's minimum says nothing of."""
    found = judge_driver(need("13.0"), host("535.54.03"))

    assert found is OLD


@given(st.sampled_from(sorted(CUDA.native)), st.integers(0, 200), st.booleans())
def test_newer_driver_always_runs_an_older_toolkit(cuda: Version, branches: int, datacenter: bool) -> None:
    """CUDA Compatibility guide: backward compatibility."""
    asked = minimum_need(cuda, "", knowledge())
    newer = HostFacts((asked.native[0] + branches, *asked.native[1:]), None, None, datacenter)

    found = judge_driver(asked, newer)

    assert found is NATIVE


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (AcceptedCompatibility.Native, "550.54.15"),
        (AcceptedCompatibility.MinorVersion, "525.60.13"),
        (AcceptedCompatibility.ForwardCompatible, "525.60.13"),
    ],
)
def test_floor_in_messages_is_the_effective_one(accept: AcceptedCompatibility, expected: str) -> None:
    """The message shows the effective floor under `accept` (docs/reference/compatibility.md#cuda)."""
    found = show_version(need("12.4.1").floor(accept))

    assert expected == found


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
    """app/knowledge/cuda_driver.yaml, driver_branches."""
    found = CUDA.highest_cuda(parse_version(driver))

    assert expected == (show_version(found) if found else None)


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
        # compute_capability_first_toolkit: a newer GPU is served by PTX, if the image has any, and not by machine code
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
        # no row speaks of it: unknown, as B200 is for 12.4
        pytest.param("12.4", "13.0", True, False, id="a capability that no row knows"),
        pytest.param("13.3", "13.0", True, False, id="the same on the newest toolkit"),
    ],
)
def test_toolkit_serves_gpus_until_it_removes_them(cuda: str, capability: str, served: bool, targeted: bool) -> None:
    """F35, P32: what a toolkit removed is refused; what it is not known to make machine code for is a doubt."""
    gpu, version = parse_version(capability), parse_version(cuda)

    assert served is (gpu not in CUDA.unsupported(version))
    if served:
        assert targeted is (gpu in CUDA.targets(version))


def test_unknown_driver_is_never_judged() -> None:
    """DriverUnknown is its own reason (docs/reference/compatibility.md#unknown-facts)."""
    with pytest.raises(ValueError, match="wants a known driver"):
        judge_driver(need("12.4"), HostFacts(None, None, None, True))


NGC, TRTLLM = "nvcr.io/nvidia/pytorch:%s-py3", "nvcr.io/nvidia/tritonserver:%s-trtllm-python-py3"
BASE, TORCH, VLLM = (
    "nvidia/cuda:%s-base-ubuntu22.04",
    "pytorch/pytorch:%s-cudnn9-runtime",
    "vllm/vllm-openai:%s",
)
A100, H100, V100, T4, L4 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-NVL", "Tesla-V100-PCIE-16GB", "Tesla-T4", "NVIDIA-L4"
B200, RTX = "NVIDIA-B200", "NVIDIA-GeForce-RTX-5090"
BLOCKS: list[tuple[str, str, dict[str, str]]] = [
    # NGC images carry `cuda>=9.0`: minor-version compatibility holds on every branch; older ones that the release notes
    # of the month name, each from the driver named, are forward compatible
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
    # cuda-compat-13-2 for data-centre GPUs on 535, 570, 580, 590 (forward-compatibility matrix); 575 rests on nothing
    (NGC % "26.04", H100, {"fits": "580.95.05 570.124.06 535.54.03", "DriverTooOld": "575.57.08 550.54.15"}),
    (NGC % "26.04", RTX, {"fits": "580.95.05", "DriverTooOld": "570.124.06"}),
    (NGC % "25.10", A100, {"fits": "570.124.06 535.54.03", "DriverTooOld": "575.57.08 565.57.01 550.54.15"}),
    # months without a list: plain minor-version compatibility (docs/reference/compatibility.md#cuda)
    (NGC % "22.04", A100, {"fits": "510.47.03 495.29.05 450.80.02", "DriverTooOld": "450.51.06"}),
    (NGC % "23.02", A100, {"fits": "525.85.12 525.60.13", "DriverTooOld": "520.61.05"}),
    (NGC % "24.06", A100, {"fits": "555.42.02 550.54.15 525.60.13", "DriverTooOld": "515.65.01"}),
    (NGC % "21.10", A100, {"fits": "470.57.02 450.80.02 418.40.04", "DriverTooOld": "418.39"}),
    (TRTLLM % "24.05", A100, {"fits": "545.23.08 525.60.13", "DriverTooOld": "525.60.12"}),
    # a month from memory is a preference
    (NGC % "23.01", A100, {"fits": "525.85.12 418.39"}),
    # Triton release notes 25.03: compute capability 7.5 from there on; matrix of architectures before
    (NGC % "25.01", V100, {"fits": "570.86.10"}),
    (NGC % "25.08", T4, {"fits": "580.82.07 580.65.06 570.26", "DriverTooOld": "575.57.08"}),
    (NGC % "25.08", V100, {"ComputeCapabilityTooLow": "580.82.07"}),
    (NGC % "26.06", B200, {"fits": "610.43.02 595.45.04 580.65.06 570.124.06", "DriverTooOld": "575.57.08"}),
    # nvidia/cuda Dockerfiles, NVIDIA_REQUIRE_CUDA: `cuda>=X.Y`, which the toolkit's own branch reports, or a branch
    # named; it carries cuda-compat for those that are older than minor-version compatibility
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
    # compute capabilities: what a toolkit removed is refused, a newer GPU is not
    (BASE % "10.2", A100, {"fits": "580.65.06"}),
    (BASE % "11.6.2", H100, {"fits": "580.65.06"}),
    (BASE % "13.0.0", V100, {"ComputeCapabilityUnsupported": "580.65.06"}),
    (TORCH % "1.13.1-cuda11.6", H100, {"fits": "580.65.06"}),
    (TORCH % "2.5.1-cuda12.4", B200, {"fits": "580.65.06"}),
    (TORCH % "2.5.1-cuda12.4", RTX, {"fits": "580.65.06"}),
    (TORCH % "2.7.0-cuda12.8", RTX, {"fits": "570.26", "DriverTooOld": "520.61.05"}),
    # no cuda-compat in the image
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
