# SPDX-License-Identifier: Apache-2.0
"""The CUDA matrix: whether an image starts and runs on a driver and a GPU. Each row names its source."""

import pytest

from app.placement.engine import judge_class
from tests.builders import demand, gpus, node, pod, policies, policy, ruling

H100, A100, V100, T4, L4 = (
    "NVIDIA-H100-80GB-HBM3",
    "NVIDIA-A100-SXM4-80GB",
    "Tesla-V100-SXM2-32GB",
    "Tesla-T4",
    "NVIDIA-L4",
)
B200, RTX = "NVIDIA-B200", "NVIDIA-GeForce-RTX-4090"
TORCH = "nvcr.io/nvidia/pytorch:%s-py3"
CUDA = "nvidia/cuda:%s-base-ubuntu22.04"
OK, OLD, UNMET = "fits", "DriverTooOld", "ImageRequirementUnmet"
LOW, OUTSIDE = "ComputeCapabilityTooLow", "ComputeCapabilityUnsupported"

RELEASE_NOTES = "CUDA Toolkit Release Notes 13.2, Table CUDA Toolkit and Corresponding Driver Versions"
MINOR = "CUDA Compatibility guide, minor version compatibility: 12.x from 525.60.13, 11.x from 450.80.02, 13.x from 580"
FORWARD = "forward-compatibility matrix (R615 and R575 editions)"
NGC = "Triton / NGC release notes of the month, Driver Requirements"
BACKWARD = "CUDA Compatibility guide: newer drivers run older toolkits"
CAPTURES = "gitlab.com/nvidia/container-images/cuda, NVIDIA_REQUIRE_CUDA in dist/*/*/base/Dockerfile"
PTX = "cuda_driver.yaml sass_rules: PTX is compiled for newer GPUs"
ARCHITECTURES = "docs.nvidia.com, CUDA toolkit, driver and architecture matrix"

MATRIX: list[tuple[str, str, str, str, str, str]] = [
    # (image, driver, GPU, accept, verdict, source)
    # NGC 24.05 = CUDA 12.4.1, without a list of branches: plain minor-version compatibility
    (TORCH % "24.05", "580.95.05", A100, "MinorVersion", OK, RELEASE_NOTES),
    (TORCH % "24.05", "550.54.15", A100, "Native", OK, RELEASE_NOTES),
    (TORCH % "24.05", "550.54.14", A100, "Native", OLD, RELEASE_NOTES),
    (TORCH % "24.05", "550.54.14", A100, "MinorVersion", OK, MINOR),
    (TORCH % "24.05", "545.23.08", A100, "MinorVersion", OK, MINOR),
    (TORCH % "24.05", "545.23.08", A100, "Native", OLD, RELEASE_NOTES),
    (TORCH % "24.05", "535.104.05", A100, "MinorVersion", OK, MINOR),
    (TORCH % "24.05", "535.104.05", A100, "Native", OLD, RELEASE_NOTES),
    (TORCH % "24.05", "525.85.12", A100, "MinorVersion", OK, MINOR),
    (TORCH % "24.05", "525.60.13", A100, "MinorVersion", OK, MINOR),
    (TORCH % "24.05", "525.60.12", A100, "MinorVersion", OLD, MINOR),
    (TORCH % "24.05", "470.57.02", A100, "MinorVersion", OLD, MINOR),
    (TORCH % "24.05", "470.57.02", A100, "ForwardCompatible", OK, CAPTURES),
    (TORCH % "24.05", "510.47.03", A100, "ForwardCompatible", OLD, FORWARD),
    (TORCH % "24.05", "470.57.02", RTX, "ForwardCompatible", OLD, "CUDA Compatibility guide: data-centre GPUs only"),
    # NGC 23.10 = CUDA 12.2.2, branches 450.51, 470.57, 510.47, 525.85, 535.86
    (TORCH % "23.10", "535.104.05", A100, "MinorVersion", OK, RELEASE_NOTES),
    (TORCH % "23.10", "535.86.10", A100, "MinorVersion", OK, NGC),
    (TORCH % "23.10", "535.54.03", A100, "MinorVersion", OK, MINOR),
    (TORCH % "23.10", "530.30.02", A100, "MinorVersion", OK, MINOR),
    (TORCH % "23.10", "525.85.12", A100, "MinorVersion", OK, NGC),
    (TORCH % "23.10", "525.60.13", A100, "MinorVersion", OK, MINOR),
    (TORCH % "23.10", "525.85.12", A100, "Native", OLD, RELEASE_NOTES),
    (TORCH % "23.10", "510.47.03", A100, "MinorVersion", OLD, MINOR),
    (TORCH % "23.10", "510.47.03", A100, "ForwardCompatible", OK, NGC),
    (TORCH % "23.10", "470.57.02", A100, "ForwardCompatible", OK, NGC),
    (TORCH % "23.10", "450.51.06", A100, "ForwardCompatible", OK, NGC),
    (TORCH % "23.10", "460.32.03", A100, "ForwardCompatible", OLD, NGC),
    # NGC 24.03 = CUDA 12.4.0; the notes say 545, the toolkit's own driver is 550.54.14
    (TORCH % "24.03", "550.54.14", A100, "Native", OK, RELEASE_NOTES),
    (TORCH % "24.03", "545.23.08", A100, "Native", OLD, RELEASE_NOTES),
    (TORCH % "24.03", "545.23.08", A100, "MinorVersion", OK, NGC),
    (TORCH % "24.03", "530.30.02", A100, "MinorVersion", OK, MINOR),
    # NGC 22.05 = CUDA 11.7
    (TORCH % "22.05", "515.43.04", A100, "Native", OK, RELEASE_NOTES),
    (TORCH % "22.05", "470.57.02", A100, "MinorVersion", OK, NGC),
    (TORCH % "22.05", "495.29.05", A100, "MinorVersion", OK, MINOR),
    (TORCH % "22.05", "580.95.05", V100, "MinorVersion", OK, BACKWARD),
    # compute capability: minimums of NGC, minimums and maximums of toolkits
    (TORCH % "25.03", "570.124.06", V100, "MinorVersion", LOW, "Triton release notes 25.03: compute capability 7.5"),
    (TORCH % "25.03", "570.124.06", T4, "MinorVersion", OK, "Triton release notes 25.03: compute capability 7.5"),
    (TORCH % "24.05", "570.124.06", V100, "MinorVersion", OK, ARCHITECTURES),
    (CUDA % "13.0.0", "580.65.06", V100, "MinorVersion", OUTSIDE, ARCHITECTURES),
    (CUDA % "13.0.0", "580.65.06", T4, "MinorVersion", OK, ARCHITECTURES),
    (CUDA % "12.9.0", "580.65.06", V100, "MinorVersion", OK, ARCHITECTURES),
    (CUDA % "11.7.1", "580.95.05", H100, "MinorVersion", OK, PTX),
    (CUDA % "11.8.0", "580.95.05", H100, "MinorVersion", OK, ARCHITECTURES),
    (CUDA % "11.4.3", "580.95.05", L4, "MinorVersion", OK, "CUDA binary compatibility: sm_80 code runs on 8.9"),
    (CUDA % "12.4.1", "580.95.05", B200, "MinorVersion", OK, PTX),
    (CUDA % "12.8.0", "580.95.05", B200, "MinorVersion", OK, ARCHITECTURES),
    # CUDA base images carry their requirement: 12.4 names 470, 525, 535; 12.8 names 470, 535, 550, 560, 565
    (CUDA % "12.4.1", "550.54.15", A100, "Native", OK, RELEASE_NOTES),
    (CUDA % "12.4.1", "545.23.08", A100, "MinorVersion", UNMET, CAPTURES),
    (CUDA % "12.4.1", "535.54.03", A100, "MinorVersion", OK, CAPTURES),
    (CUDA % "12.4.1", "525.60.13", A100, "MinorVersion", OK, CAPTURES),
    (CUDA % "12.4.1", "470.57.02", A100, "MinorVersion", OLD, MINOR),
    (CUDA % "12.4.1", "470.57.02", A100, "ForwardCompatible", OK, CAPTURES),
    (CUDA % "12.8.0", "550.54.15", A100, "MinorVersion", OK, CAPTURES),
    (CUDA % "12.8.0", "560.35.03", A100, "MinorVersion", OK, CAPTURES),
    (CUDA % "12.8.0", "570.124.06", A100, "Native", OK, RELEASE_NOTES),
    (CUDA % "12.2.0", "530.30.02", A100, "MinorVersion", UNMET, CAPTURES),
    (CUDA % "13.0.0", "575.57.08", A100, "MinorVersion", OLD, MINOR),
    (CUDA % "13.0.0", "575.57.08", A100, "ForwardCompatible", OK, CAPTURES),
    (CUDA % "13.0.0", "535.104.05", A100, "ForwardCompatible", OK, FORWARD),
    (CUDA % "13.0.0", "545.23.08", A100, "ForwardCompatible", OLD, FORWARD),
    (CUDA % "13.2.0", "580.65.06", A100, "MinorVersion", OK, MINOR),
    (CUDA % "13.2.0", "570.124.06", A100, "ForwardCompatible", OK, FORWARD),
    (CUDA % "13.2.0", "550.54.15", A100, "ForwardCompatible", OLD, FORWARD),
    # other families: tags that name CUDA, without a requirement of their own
    ("pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime", "545.23.08", A100, "MinorVersion", OK, MINOR),
    ("pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime", "520.61.05", A100, "MinorVersion", OLD, MINOR),
    ("docker.io/pytorch/pytorch:2.7.0-cuda12.8-cudnn9-runtime", "535.54.03", A100, "ForwardCompatible", OK, MINOR),
    ("rapidsai/base:25.12-cuda13-py3.13", "580.65.06", A100, "MinorVersion", OK, RELEASE_NOTES),
    ("rapidsai/base:25.12-cuda13-py3.13", "570.124.06", A100, "MinorVersion", OLD, MINOR),
    ("vllm/vllm-openai:v0.11.0-cu129", "535.54.03", A100, "MinorVersion", OK, CAPTURES),
    ("nvcr.io/nvidia/tritonserver:25.03-trtllm-python-py3", "570.124.06", A100, "Native", OK, NGC),
    # an image that no table knows decides nothing, and a CUDA tag of such an image is only a preference
    ("registry.example/train:1", "418.39", T4, "Native", OK, "an unknown tag needs nothing"),
    ("registry.example/train:1-cu124", "418.39", T4, "Native", OK, "another tag pattern is preferred"),
    ("ollama/ollama:0.11.11", "470.57.02", T4, "Native", OK, "ollama Dockerfile: picks its CUDA by driver"),
    ("nvcr.io/nvidia/nemo:24.07", "470.57.02", T4, "MinorVersion", OK, "NeMo is built on an earlier month"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("image", "driver", "gpu", "accept", "verdict", "source"),
    [pytest.param(*row, id=f"{row[0].rpartition('/')[2]} on {row[1]} {row[2]} {row[3]}") for row in MATRIX],
)
def test_image_on_driver_and_gpu(image: str, driver: str, gpu: str, accept: str, verdict: str, source: str) -> None:
    """F11, F34, F35, F36, P30, P32, S10."""
    accepting = policies(policy("p", f"placement: {{cuda: {{fromImage: true, accept: {accept}}}}}"))

    refusal = judge_class(demand(pod(gpus(1, image=image)), accepting), node(product=gpu, driver=driver).node_class)

    assert verdict == (refusal.code.name if refusal else OK), source


def test_matrix_is_large_enough() -> None:
    assert len(MATRIX) >= 60
    assert len({row[:4] for row in MATRIX}) == len(MATRIX)


@pytest.mark.parametrize(
    ("containers", "annotations", "evidence"),
    [
        ([gpus(1, image=TORCH % "24.05")], {"cuda": "11.8"}, "annotation gpu-usher.io/cuda"),
        (
            [gpus(1, image=TORCH % "24.05", env=[{"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=11.0"}])],
            {},
            "container main: environment NVIDIA_REQUIRE_*",
        ),
        ([gpus(1, image="registry.example/ml/train:7")], {}, "container main: image table of policy p"),
        (
            [gpus(1, image=TORCH % "26.04")],
            {},
            "container main: image tag 26.04-py3 = NGC 26.04 = CUDA 13.2.1; its cuda-compat-13-2"
            " also allows driver R535, R570 on data-centre GPUs (policy field cuda.accept)",
        ),
        (
            [gpus(1, image="pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime")],
            {},
            "container main: image tag 2.4.0-cuda12.4-cudnn9-runtime = CUDA 12.4",
        ),
    ],
    ids=["annotation", "environment", "policy table", "month, with cuda-compat", "tag"],
)  # fmt: skip
def test_need_shows_its_evidence(
    containers: list[dict[str, object]], annotations: dict[str, str], evidence: str
) -> None:
    """F11: the order is annotation, environment, policy's table, tag; a compat package names the deciding field."""
    table = "{fromImage: true, images: [{image: registry.example/ml/*, cuda: '12.2'}]}"

    needs = ruling(
        pod(*containers, annotations=annotations), policies(policy("p", f"placement: {{cuda: {table}}}"))
    ).demand.cuda

    assert [evidence] == [need.evidence for need in needs]


@pytest.mark.parametrize(
    ("accept", "expected"), [("", OK), ("accept: ForwardCompatible", OK), ("accept: MinorVersion", OLD)]
)
def test_policy_says_whether_forward_compatibility_is_enough(accept: str, expected: str) -> None:
    """F34: forward compatibility is enough unless a policy is stricter."""
    policy_set = policies(policy("p", f"placement: {{cuda: {{fromImage: true, {accept}}}}}"))
    hopper = node(product=H100, driver="570.124.06").node_class

    refusal = judge_class(demand(pod(gpus(1, image=TORCH % "26.04")), policy_set), hopper)

    assert expected == (refusal.code.name if refusal else OK)


@pytest.mark.parametrize(
    ("accept", "driver", "expected"),
    [
        (
            "MinorVersion",
            "570.124.06",
            "CUDA driver too old: wants >= 580, or policy field cuda.accept: ForwardCompatible",
        ),
        ("Native", "580.65.06", "CUDA driver too old: wants >= 595.58.03, or policy field cuda.accept: MinorVersion"),
        ("MinorVersion", "550.54.15", "CUDA driver too old: wants >= 580"),
    ],
)
def test_refusal_names_the_setting_under_which_the_driver_would_do(accept: str, driver: str, expected: str) -> None:
    """F34, P23."""
    policy_set = policies(policy("p", f"placement: {{cuda: {{fromImage: true, accept: {accept}}}}}"))

    refusal = judge_class(
        demand(pod(gpus(1, image=TORCH % "26.04")), policy_set), node(product=H100, driver=driver).node_class
    )

    assert refusal is not None
    assert refusal.message == expected


@pytest.mark.parametrize(("compat", "expected"), [("", OLD), (", compat: true", OK)])
def test_policy_says_which_of_its_own_images_carry_the_package(compat: str, expected: str) -> None:
    """F34: images that the policy's table does not list are assumed to carry nothing."""
    row = f"{{image: registry.example/*, cuda: '13.0'{compat}}}"
    policy_set = policies(policy("p", f"placement: {{cuda: {{images: [{row}]}}}}"))
    hopper = node(product=H100, driver="535.54.03").node_class

    refusal = judge_class(demand(pod(gpus(1, image="registry.example/a:1")), policy_set), hopper)

    assert expected == (refusal.code.name if refusal else OK)


def test_what_is_from_memory_is_a_preference_and_says_so() -> None:
    """F11: NGC 23.01 has no source in the table."""
    pod_demand = ruling(pod(gpus(1, image=TORCH % "23.01"))).demand

    assert not pod_demand.cuda
    assert [wish.evidence for wish in pod_demand.preferred_cuda] == [
        "container main: image tag 23.01-py3 = NGC 23.01 = CUDA 12.0.1, unsourced"
    ]


@pytest.mark.parametrize("product", [None, "NVIDIA-FOO-9000"], ids=["no label", "not in the table"])
def test_unknown_product_has_no_forward_compatibility_and_no_brand_refused(product: str | None) -> None:
    """F34: an unknown fact neither accepts nor refuses."""
    newer, named = (node(product=product, driver=driver).node_class for driver in ("570.124.06", "535.54.03"))

    assert judge_class(demand(pod(gpus(1, image=TORCH % "26.04"))), newer) is not None
    assert judge_class(demand(pod(gpus(1, image=CUDA % "12.8.1"))), named) is None


def test_cuda_is_no_need_of_pods_that_ask_no_nvidia_gpu() -> None:
    """F34: an NVIDIA image in a pod with AMD GPUs needs no NVIDIA driver, whatever the policy does with unknown
    facts."""
    policy_set = policies(policy("p", "placement: {unknownFacts: Refuse, cuda: {fromImage: true, minimum: '12.4'}}"))
    other = pod(gpus(1, "amd.com/gpu", image=CUDA % "12.4.1"))
    beside = pod(gpus(1, image=CUDA % "11.8.0", name="a"), gpus(1, "amd.com/gpu", image=CUDA % "13.0.0", name="b"))

    assert not (*demand(other, policy_set).cuda, *demand(other, policy_set).preferred_cuda)
    assert {need.cuda for need in demand(beside, policy_set).cuda} == {(12, 4), (11, 8)}


def test_highest_need_of_several_containers_decides() -> None:
    """Each container with a GPU is judged by itself, and a container without one is not.

    See docs/reference/compatibility.md#cuda.
    """
    several = pod(
        gpus(1, image=CUDA % "11.8.0", name="a"),
        gpus(1, image=CUDA % "12.2.0", name="b"),
        {"name": "c", "image": CUDA % "13.0.0"},
    )

    assert judge_class(demand(several), node(driver="525.60.13").node_class) is None
    assert judge_class(demand(several), node(driver="520.61.05").node_class) is not None


@pytest.mark.parametrize(
    ("require", "driver", "fits"),
    [
        ("cuda>=12.2", "535.54.03", True),
        ("cuda>=12.2", "525.60.13", False),
        ("cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=nvidia,driver>=525,driver<526", "525.60.13", True),
        ("cuda>=12.4 brand=tesla,driver>=470,driver<471", "525.60.13", False),
        ("driver>=530", "535.54.03", True),
        ("driver>=530", "525.60.13", False),
        ("nonsense", "580.95.05", False),
        ("arch>=9.0", "580.95.05", True),
        ("planet=earth", "525.60.13", False),
        ("", "418.39", True),
    ],
)
def test_environment_is_judged_literally(require: str, driver: str, fits: bool) -> None:
    """As in the container toolkit, a comma is AND and a space is OR (docs/reference/compatibility.md#cuda)."""
    pod_demand = demand(pod(gpus(1, env=[{"name": "NVIDIA_REQUIRE_CUDA", "value": require}])))

    assert fits is (judge_class(pod_demand, node(driver=driver).node_class) is None)
