# SPDX-License-Identifier: Apache-2.0
"""Products: patterns against a slow twin, all names that substring matching would confuse, and the table's columns."""

from itertools import product as pairs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.knowledge.products import Product, normal_form
from app.values.errors import BadInput
from tests.builders import knowledge

PRODUCTS = knowledge().products
ROWS = list(PRODUCTS.by_form.values())
FAMILIES = sorted({row.family for row in ROWS})
TRAPS = [(family, row.label) for family, row in pairs(FAMILIES, ROWS) if family in row.label and family != row.family]
"""Every label that contains the word of a family to which it does not belong."""

WORDS = st.sampled_from(["A10", "A100", "L4", "L40", "H20", "H200", "3e", "SXM4", "80GB", "PCIe", "X", "nvl"])
LABELS = st.lists(WORDS, min_size=1, max_size=4).map("-".join)
GLOBS = st.lists(st.sampled_from(["*", "A10", "A100", "SXM4", "80GB", "X"]), min_size=1, max_size=4).map("-".join)


@pytest.mark.parametrize(("family", "label"), TRAPS, ids=[" in ".join(trap) for trap in TRAPS])
def test_family_never_takes_a_label_that_merely_contains_its_word(family: str, label: str) -> None:
    """F31, P1, P2."""
    assert PRODUCTS.pattern(family).matches(normal_form(label)) is False


@pytest.mark.parametrize(
    ("family", "label"),
    [
        ("A10", "NVIDIA-A100-SXM4-80GB"),
        ("A10", "NVIDIA-A10G"),
        ("L4", "NVIDIA-L40"),
        ("L4", "NVIDIA-L40S"),
        ("L40", "NVIDIA-L40S"),
        ("L2", "NVIDIA-L20"),
        ("H20", "NVIDIA-H200"),
        ("H20", "NVIDIA-H20-3e"),
        ("H20", "NVIDIA-GH200-480GB"),
        ("H200", "NVIDIA-GH200-480GB"),
        ("B200", "NVIDIA-GB200"),
        ("B300", "NVIDIA-GB300"),
    ],
)
def test_traps_hold_every_pair_that_users_met(family: str, label: str) -> None:
    """P1, P2: the test above must not pass for want of examples."""
    assert (family, label) in TRAPS


@pytest.mark.parametrize("family", FAMILIES)
def test_bare_word_means_every_product_of_its_family(family: str) -> None:
    """`H100` means every H100 (docs/reference/compatibility.md#products)."""
    expected = {row.label for row in ROWS if row.family == family}

    matched = {row.label for row in ROWS if PRODUCTS.pattern(family.lower()).matches(normal_form(row.label))}

    assert expected == matched


@pytest.mark.parametrize(
    "label", ["NVIDIA-A300", "NVIDIA-A200", "NVIDIA-A250", "NVIDIA-T40", "NVIDIA-T400", "NVIDIA-H1000", "NVIDIA-L400"]
)
def test_product_of_tomorrow_is_of_no_family_of_today(label: str) -> None:
    """F31: an A300 is no A30, an A200 is no A2, and a T40 is no T4."""
    families = [family for family in FAMILIES if PRODUCTS.pattern(family).matches(normal_form(label))]

    assert families == []


def occurs(tokens: list[str], label: list[str]) -> bool:
    """Tell whether tokens occur in sequence, by trying every place."""
    return any(label[start : start + len(tokens)] == tokens for start in range(len(label)))


@given(st.lists(WORDS, max_size=2), LABELS)
def test_unknown_word_is_a_sequence_of_whole_tokens(words: list[str], label: str) -> None:
    """See docs/reference/compatibility.md#products."""
    word = "-".join(["Z9", *words])

    matches = (
        PRODUCTS.pattern(word).matches(normal_form(f"NVIDIA-{label}-{word}")),
        PRODUCTS.pattern(word).matches(normal_form(f"NVIDIA-{label}")),
    )

    assert (True, occurs(word.lower().split("-"), label.lower().split("-"))) == matches


def stars(glob: list[str], label: list[str]) -> bool:
    """Tell whether a glob matches a whole label, trying every length of one or more tokens for each star."""
    if not glob:
        return not label
    if glob[0] == "*":
        return any(stars(glob[1:], label[taken:]) for taken in range(1, len(label) + 1))
    return bool(label) and glob[0] == label[0] and stars(glob[1:], label[1:])


@given(GLOBS.filter(lambda glob: 1 <= glob.count("*") <= 3), LABELS)
def test_glob_is_anchored_over_whole_tokens(glob: str, label: str) -> None:
    """See docs/reference/compatibility.md#products."""
    matches = PRODUCTS.pattern(f"NVIDIA-{glob}").matches(normal_form(f"NVIDIA-{label}"))

    assert stars(glob.lower().split("-"), label.lower().split("-")) is matches


@given(LABELS, st.sampled_from(["", "NVIDIA-", "nvidia-", "Tesla-"]), st.sampled_from(["", "-SHARED"]))
@pytest.mark.parametrize("sliced", ["", "-MIG-1g.5gb", "-MIG-1g.5gb.me", "-MIG-1g.24gb-me", "-MIG-INVALID"])
def test_normal_form_drops_vendor_share_and_slice(sliced: str, label: str, vendor: str, shared: str) -> None:
    """The sources are NVIDIA/k8s-device-plugin internal/lm/resource.go and mig-strategy.go, and
    app/knowledge/gpu_products.yaml."""
    assert label.lower() == normal_form(vendor + label + sliced + shared)


@pytest.mark.parametrize(
    "pattern", ["A10*", "*A10", "NVIDIA-A1*0", "A100-SXM*", "A100-*GB", "**", "A100-**", "*-A10*", "A100--*", "-*"]
)
def test_star_inside_a_token_is_bad_input(pattern: str) -> None:
    """`A10*` is an InvalidAnnotation (docs/reference/compatibility.md#products)."""
    with pytest.raises(BadInput):
        PRODUCTS.pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["NVIDIA-A100-SXM4-40GB-SHARED", "NVIDIA-A100-SXM4-40GB-MIG-*", "A100-SXM4-40GB-MIG-1g.5gb", " a100-sxm4-40gb "],
)
def test_suffixes_of_a_pattern_are_dropped_first(pattern: str) -> None:
    """See docs/reference/compatibility.md#products."""
    matched = [row.label for row in ROWS if PRODUCTS.pattern(pattern).matches(normal_form(row.label))]

    assert matched == ["NVIDIA-A100-SXM4-40GB"]


@pytest.mark.parametrize(
    ("typo", "expected"),
    [
        pytest.param("H1000", "H100", id="a digit too many"),
        pytest.param("RTX-A600", "RTX-A6000", id="a digit too few"),
        pytest.param("NVIDIA-H100-80GB-HBM2", "NVIDIA-H100-80GB-HBM3", id="another memory"),
        pytest.param("Quantum-Banana", None, id="nothing is near"),
    ],
)
def test_misspelt_product_is_guessed_or_nothing_is(typo: str, expected: str | None) -> None:
    """F79, P3."""
    assert expected == PRODUCTS.suggest(typo)


def row(label: str) -> Product:
    """Return the row of a label that is in the table."""
    product = PRODUCTS.find(label)
    assert product is not None
    return product


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("NVIDIA-H100-80GB-HBM3", True),
        ("Tesla-V100-SXM2-16GB", True),
        ("NVIDIA-GB200", True),
        ("NVIDIA-GB300", True),
        ("NVIDIA-A100-80GB-PCIe", False),
        ("NVIDIA-H200-NVL", False),
        ("NVIDIA-GH200-480GB", False),
        ("NVIDIA-L40S", False),
    ],
)
def test_nvlink_is_all_to_all_alone(label: str, expected: bool) -> None:
    """Bridges and C2C do not count (docs/reference/compatibility.md#interconnect)."""
    assert expected is row(label).nvlink


@pytest.mark.parametrize(
    ("label", "expected"),
    [("NVIDIA-GeForce-RTX-4090", False), ("NVIDIA-GeForce-RTX-5090", False), ("NVIDIA-A2", True), ("Tesla-T4", True)],
)
def test_geforce_is_no_data_centre_gpu(label: str, expected: bool) -> None:
    """The source is app/knowledge/cuda_driver.yaml, forward_compat."""
    assert expected is row(label).datacenter


@pytest.mark.parametrize("label", ["A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB-SHARED", "nvidia-a100-sxm4-40gb"])
def test_label_of_any_age_finds_its_row(label: str) -> None:
    """The form without `NVIDIA-` is accepted too (app/knowledge/gpu_products.yaml, conventions)."""
    assert row(label).label == "NVIDIA-A100-SXM4-40GB"


def test_label_that_no_row_has_finds_none() -> None:
    assert PRODUCTS.find("NVIDIA-X9000") is None
