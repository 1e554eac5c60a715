# SPDX-License-Identifier: Apache-2.0
"""Pod annotations: their grammar, and the evidence from which a CUDA need comes.

See docs/reference/policy.md#annotations and docs/reference/compatibility.md#cuda.
"""

import pytest

from app.policy.annotations import PodAnnotations, read_annotations
from app.policy.needs import ALLOWED_PRODUCTS, DENIED_PRODUCTS, SHARING
from app.policy.schema_placement import SharingWish
from app.values.reasons import ADMISSION_MESSAGE_LIMIT, Code
from tests.builders import container, gpus, knowledge, pod, ruling

LABELS = (
    "NVIDIA-A10",
    "NVIDIA-A10G",
    "NVIDIA-A100-SXM4-40GB",
    "A100-SXM4-80GB",
    "NVIDIA-A100-80GB-PCIe",
    "NVIDIA-L4",
    "NVIDIA-L40",
    "NVIDIA-L40S",
    "NVIDIA-H100-80GB-HBM3",
    "NVIDIA-H100",
    "NVIDIA-H100-NVL",
    "NVIDIA-H20",
    "NVIDIA-H20-3e",
    "NVIDIA-H200",
    "NVIDIA-GH200-480GB",
    "Tesla-T4",
)
"""Product labels of the families that other schedulers confuse (P1, P2)."""

FIRST = "gpu-usher.io/"


def read(key: str, value: str) -> PodAnnotations:
    """Read one annotation."""
    return read_annotations({FIRST + key: value}, knowledge().products)


def allowed(text: str) -> set[str]:
    """List the labels that a `products` annotation allows."""
    annotated = read("products", text)
    assert annotated.invalid == ()
    products = knowledge().products
    rows = {label: product for label in LABELS if (product := products.find(label))}
    forms = {
        label: product.label.lower().removeprefix("nvidia-").removeprefix("tesla-") for label, product in rows.items()
    }
    allow, deny = ALLOWED_PRODUCTS.of(annotated.needs), DENIED_PRODUCTS.of(annotated.needs) or ()
    kept = {label for label in LABELS if not any(pattern.matches(forms[label]) for pattern in deny)}
    if allow is None:
        return kept
    return {label for label in kept if any(pattern.matches(forms[label]) for pattern in allow)}


H100 = {"NVIDIA-H100-80GB-HBM3", "NVIDIA-H100", "NVIDIA-H100-NVL"}
A100 = {"NVIDIA-A100-SXM4-40GB", "A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("A10", {"NVIDIA-A10"}, id="A10 is not A100, nor A10G (P1)"),
        pytest.param("L4", {"NVIDIA-L4"}, id="L4 is not L40"),
        pytest.param("L40", {"NVIDIA-L40"}, id="L40 is not L40S"),
        pytest.param("H20", {"NVIDIA-H20"}, id="H20 is not H200 (P2), and H20-3e is a family of its own"),
        pytest.param("H20-3e", {"NVIDIA-H20-3e"}, id="H20-3e"),
        pytest.param("H200", {"NVIDIA-H200"}, id="H200 is not GH200"),
        pytest.param("T4", {"Tesla-T4"}, id="T4"),
        pytest.param("H100", H100, id="a bare word is the family"),
        pytest.param("h100", H100, id="letter case is ignored"),
        pytest.param("NVIDIA-H100", {"NVIDIA-H100"}, id="a name with the vendor is that exact label"),
        pytest.param("Tesla-T4", {"Tesla-T4"}, id="Tesla is a vendor prefix"),
        pytest.param("nvidia-h100-80gb-hbm3", {"NVIDIA-H100-80GB-HBM3"}, id="an exact label in lower case"),
        pytest.param("A100-SXM4-40GB", {"NVIDIA-A100-SXM4-40GB"}, id="an alias without the vendor"),
        pytest.param("NVIDIA-A100-SXM4-80GB-SHARED", {"A100-SXM4-80GB"}, id="-SHARED is dropped"),
        pytest.param("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", {"A100-SXM4-80GB"}, id="-MIG-* is dropped"),
        pytest.param("SXM4", {"NVIDIA-A100-SXM4-40GB", "A100-SXM4-80GB"}, id="an unknown word is a token"),
        pytest.param("80GB-HBM3", {"NVIDIA-H100-80GB-HBM3"}, id="tokens occur in sequence"),
        pytest.param("HBM3-80GB", set(), id="tokens in another order do not"),
        pytest.param("NVIDIA-A100-SXM4-*", {"NVIDIA-A100-SXM4-40GB", "A100-SXM4-80GB"}, id="glob"),
        pytest.param("A100-*", A100, id="a star is one or more tokens"),
        pytest.param("H100-*", H100 - {"NVIDIA-H100"}, id="a star is never none"),
        pytest.param("SXM4-*", set(), id="a glob is anchored"),
        pytest.param("*-SXM4-*", {"NVIDIA-A100-SXM4-40GB", "A100-SXM4-80GB"}, id="a star in front"),
        pytest.param("A10, L4", {"NVIDIA-A10", "NVIDIA-L4"}, id="any of these"),
        pytest.param("A10,L4", {"NVIDIA-A10", "NVIDIA-L4"}, id="spaces do not matter"),
        pytest.param("!A100", set(LABELS) - A100, id="an exclamation mark excludes"),
        pytest.param("A100, !A100-80GB-PCIe", A100 - {"NVIDIA-A100-80GB-PCIe"}, id="allow and exclude"),
        pytest.param("!NVIDIA-H100-*, H100", {"NVIDIA-H100"}, id="excluding by a glob"),
    ],
)
def test_products_are_matched_by_whole_tokens(text: str, expected: set[str]) -> None:
    """P1, P2."""
    assert expected == allowed(text)


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        pytest.param("cuda", "12.4", "cuda", (12, 4), id="cuda"),
        pytest.param("cuda", ">=12.4", "cuda", (12, 4), id="cuda, with the sign"),
        pytest.param("cuda", "12.4.1", "cuda", (12, 4, 1), id="cuda, three fields"),
        pytest.param("compute-capability", "8.9", "compute_capability", (8, 9), id="compute capability"),
        pytest.param("compute-capability", ">=9.0", "compute_capability", (9,), id="9.0 and 9 are one"),
        pytest.param("gpu-memory", "40Gi", "memory_mib", 40_960, id="memory"),
        pytest.param("gpu-memory", "80GB", "memory_mib", 81_920, id="80GB is the wish 80Gi"),
        pytest.param("interconnect", "NVLink", "nvlink", True, id="interconnect"),
        pytest.param("sharing", "Exclusive", "sharing", SharingWish.Exclusive, id="exclusive"),
        pytest.param("sharing", "Shared", "sharing", SharingWish.Shared, id="shared"),
        pytest.param("sharing", "Any", "sharing", SharingWish.Any, id="either"),
        pytest.param("mig-profile", "1g.10gb", "mig_profile", ("1g.10gb", False), id="exact profile"),
        pytest.param("mig-profile", ">=1g.10gb", "mig_profile", ("1g.10gb", True), id="at least a profile"),
        pytest.param("mig-profile", "1g.10gb+me", "mig_profile", ("1g.10gb.me", False), id="profile with media"),
    ],
)
def test_annotation_becomes_a_need(key: str, value: str, field: str, expected: object) -> None:
    annotated = read(key, value)

    assert {need.demand_field: value for need, value in annotated.needs.items()} == {field: expected}
    assert not annotated.invalid
    assert not annotated.warnings


@pytest.mark.parametrize("name", ["training", "inference", "batch-inference", "notebook"])
def test_workload_class_is_read(name: str) -> None:
    assert name == read("workload-class", name).workload_class


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("products", "", id="no product"),
        pytest.param("products", "H100,,H200", id="nothing between commas"),
        pytest.param("products", "H100,", id="a comma too many"),
        pytest.param("products", "!", id="excluding nothing"),
        pytest.param("products", "!!H100", id="excluding twice"),
        pytest.param("products", "A10*", id="a star inside a token"),
        pytest.param("products", "H100 H200", id="a space inside a name"),
        pytest.param("products", "H100;H200", id="a semicolon"),
        pytest.param("products", "A100--PCIe", id="an empty token"),
        pytest.param("products", "x" * 64, id="longer than a label value"),
        pytest.param("cuda", "", id="no version"),
        pytest.param("cuda", "v12.4", id="a letter before the version"),
        pytest.param("cuda", "12.x", id="a letter in the version"),
        pytest.param("cuda", "<=12.4", id="at most"),
        pytest.param("cuda", "12.4, 12.6", id="two versions"),
        pytest.param("compute-capability", "sm_80", id="an architecture"),
        pytest.param("gpu-memory", "lots", id="no amount"),
        pytest.param("gpu-memory", "0", id="zero memory"),
        pytest.param("gpu-memory", "-1Gi", id="negative memory"),
        pytest.param("interconnect", "InfiniBand", id="another network"),
        pytest.param("sharing", "Sometimes", id="another sharing"),
        pytest.param("mig-profile", "1g", id="half a profile"),
        pytest.param("mig-profile", "<=1g.10gb", id="at most a profile"),
        pytest.param("workload-class", "gaming", id="another class"),
    ],
)
def test_bad_syntax_is_an_invalid_annotation_that_names_its_key(key: str, value: str) -> None:
    annotated = read(key, value)

    assert [Code.InvalidAnnotation] == [problem.code for problem in annotated.invalid]
    assert FIRST + key in annotated.invalid[0].message
    assert len(annotated.invalid[0].message) < ADMISSION_MESSAGE_LIMIT


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        pytest.param("L40SS", "L40S", id="a letter too many"),
        pytest.param("H1000", "H100", id="a digit too many"),
        pytest.param("!L40SS", "L40S", id="excluded"),
    ],
)
def test_misspelt_product_is_kept_and_warned_of_with_the_name_meant(text: str, meant: str) -> None:
    """P3."""
    expected = [f"unknown GPU product {text.removeprefix('!')}, did you mean {meant}?"]

    annotated = read("products", text)

    assert expected == [warning for _, warning in annotated.unknown_products]
    assert not annotated.invalid
    assert [text.removeprefix("!")] == [pattern.text for patterns in annotated.needs.values() for pattern in patterns]


def test_unknown_product_without_a_neighbour_is_warned_of_and_kept() -> None:
    expected = ["unknown GPU product QQQQ-7777"]

    annotated = read("products", "QQQQ-7777")

    assert expected == [warning for _, warning in annotated.unknown_products]
    assert ALLOWED_PRODUCTS in annotated.needs


def test_unknown_key_of_ours_is_warned_of_and_ignored() -> None:
    annotated = read("produts", "H100")

    assert len(annotated.warnings) == 1
    assert "gpu-usher.io/produts" in annotated.warnings[0]
    assert PodAnnotations(warnings=annotated.warnings) == annotated


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({}, id="none"),
        pytest.param({"example.com/products": "A10*"}, id="of somebody else"),
        pytest.param({"gpu-usher.io/decision": "{"}, id="our record"),
    ],
)
def test_annotations_that_ask_nothing_of_us_need_nothing(annotations: dict[str, str]) -> None:
    assert PodAnnotations() == read_annotations(annotations, knowledge().products)


def test_every_bad_annotation_is_named() -> None:
    annotations = {FIRST + "cuda": "new", FIRST + "gpu-memory": "lots", FIRST + "sharing": "Any"}

    annotated = read_annotations(annotations, knowledge().products)

    assert [Code.InvalidAnnotation] * 2 == [problem.code for problem in annotated.invalid]
    assert SharingWish.Any is SHARING.of(annotated.needs)


CUDA_12_4 = "nvidia/cuda:12.4.0-base-ubuntu22.04"
CUDA_11_8 = "nvidia/cuda:11.8.0-base-ubuntu22.04"
TORCH = "example.com/torch:2.1-cu121"


@pytest.mark.parametrize(
    ("image", "env", "annotation", "required", "wished"),
    [
        pytest.param(CUDA_12_4, {}, None, [(12, 4)], [], id="tag of a known family: required"),
        pytest.param("nvcr.io/nvidia/pytorch:24.05-py3", {}, None, [(12, 4, 1)], [], id="month of NGC: required"),
        pytest.param(TORCH, {}, None, [], [(12, 1)], id="tag of another image: preferred"),
        pytest.param("train:1", {}, None, [], [], id="tag that tells nothing: nothing"),
        pytest.param(CUDA_11_8, {}, "12.4", [(12, 4)], [], id="annotation before image"),
        pytest.param(CUDA_12_4, {}, "11.8", [(11, 8)], [], id="annotation before image, though lower"),
        pytest.param(CUDA_11_8, {"NVIDIA_REQUIRE_CUDA": "cuda>=12.2"}, None, [(12, 2)], [], id="environment first"),
        pytest.param("train:1", {"NVIDIA_REQUIRE_CUDA": "cuda>=12.2"}, "12.4", [(12, 4)], [], id="annotation first"),
        pytest.param(CUDA_12_4, {"NVIDIA_DISABLE_REQUIRE": "1"}, None, [], [(12, 4)], id="lifted: tag is preferred"),
        pytest.param(CUDA_12_4, {"NVIDIA_DISABLE_REQUIRE": "true"}, None, [], [(12, 4)], id="lifted by true"),
        pytest.param(CUDA_12_4, {"NVIDIA_DISABLE_REQUIRE": "false"}, None, [(12, 4)], [], id="not lifted by false"),
        pytest.param(CUDA_12_4, {"NVIDIA_DISABLE_REQUIRE": "1"}, "12.2", [(12, 2)], [], id="annotation is not lifted"),
    ],
)
def test_cuda_need_comes_from_the_first_evidence(
    image: str,
    env: dict[str, str],
    annotation: str | None,
    required: list[tuple[int, ...]],
    wished: list[tuple[int, ...]],
) -> None:
    variables = [{"name": name, "value": value} for name, value in env.items()]
    document = pod(gpus(1, image=image, env=variables), annotations={"cuda": annotation} if annotation else None)

    demand = ruling(document).demand

    assert required == [need.cuda for need in demand.cuda]
    assert wished == [need.cuda for need in demand.preferred_cuda]


def test_lifted_requirement_of_an_image_leaves_no_list_of_driver_branches() -> None:
    document = pod(gpus(1, image=CUDA_12_4, env=[{"name": "NVIDIA_DISABLE_REQUIRE", "value": "1"}]))

    (wish,) = ruling(document).demand.preferred_cuda

    assert wish.requires is None


def test_each_container_that_asks_for_a_gpu_has_its_own_need_and_says_where_from() -> None:
    expected = {(11, 8), (12, 4)}
    one, other = gpus(1, image=CUDA_11_8), gpus(1, image=CUDA_12_4) | {"name": "second"}
    idle = container({"cpu": "1"}, image="nvidia/cuda:13.0.0-base-ubuntu22.04")

    needs = ruling(pod(one, other, idle)).demand.cuda

    assert expected == {need.cuda for need in needs}
    assert all("tag" in need.evidence for need in needs)


@pytest.mark.parametrize(
    ("text", "meant"), [("40", "40Gi"), (">=80", "80Gi"), ("40960", "40960Mi"), ("40.5", "40Gi"), ("40m", "40Gi")]
)
def test_memory_without_a_unit_is_refused_with_the_one_that_is_meant(text: str, meant: str) -> None:
    """F8: Kubernetes reads a number as bytes."""
    reason = read("gpu-memory", text).invalid[0]
    assert reason.code is Code.InvalidAnnotation
    assert f"did you mean {meant}?" in reason.message


def test_memory_in_bytes_is_read() -> None:
    """F8: enough of them to be meant."""
    assert read("gpu-memory", str(40 * 2**30)).invalid == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("40Mi", "is less than a CUDA context needs; did you mean 40Gi?", id="too little"),
        pytest.param(
            "40000Gi", "is more than any known GPU has, which is 277Gi; did you mean 40000Mi?", id="GiB for MiB"
        ),
        pytest.param("500Gi", "is more than any known GPU has, which is 277Gi", id="more than any GPU has"),
        pytest.param("400Ti", "is more than any known GPU has, which is 277Gi", id="too much"),
        pytest.param("100Mi", None, id="just enough"),
        pytest.param("277Gi", None, id="as much as there is"),
    ],
)
def test_memory_that_no_pod_needs_or_no_gpu_has_is_told_and_stays_in_force(text: str, told: str | None) -> None:
    """F19."""
    annotated = read("gpu-memory", text)

    assert annotated.needs
    assert annotated.warnings == (() if told is None else (f"gpu-usher.io/gpu-memory: {text} {told}",))


def test_refusal_of_a_workload_class_names_all_of_them_and_the_one_that_is_meant() -> None:
    """F8."""
    wants = "wants training, inference, batch-inference or notebook"
    assert read("workload-class", "trainig").invalid[0].message.endswith(f"{wants}; did you mean training?")
    assert read("workload-class", "notbook").invalid[0].message.endswith(f"{wants}; did you mean notebook?")
    assert read("workload-class", "xyzzy").invalid[0].message.endswith(wants)
