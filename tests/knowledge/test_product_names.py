# SPDX-License-Identifier: Apache-2.0
"""Product names match by whole tokens: all pairs that substring matching confuses, and a law for the whole table."""

import pytest

from app.knowledge.products import normal_form
from app.values.errors import BadInput
from tests.builders import knowledge

PRODUCTS = knowledge().products
LABELS = sorted(product.label for product in PRODUCTS.by_form.values())

PRO_6000 = "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"
CONFUSED = [
    # (what is asked for, what it is, what substring matching would also match)
    ("A10", ["NVIDIA-A10"], ["NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-80GB-PCIe", "NVIDIA-A10G", "NVIDIA-A100X"]),
    ("A10G", ["NVIDIA-A10G"], ["NVIDIA-A10", "NVIDIA-A100-SXM4-80GB"]),
    ("A100", ["NVIDIA-A100-80GB-PCIe", "A100-SXM4-40GB"], ["NVIDIA-A10", "NVIDIA-A100X", "NVIDIA-A1000"]),
    ("A2", ["NVIDIA-A2"], ["NVIDIA-RTX-A2000", "NVIDIA-A20", "NVIDIA-A30"]),
    ("A16", ["NVIDIA-A16"], ["NVIDIA-A10", "NVIDIA-A160"]),
    ("A30", ["NVIDIA-A30"], ["NVIDIA-A300", "NVIDIA-A40"]),
    ("A40", ["NVIDIA-A40"], ["NVIDIA-RTX-A4000", "NVIDIA-A400"]),
    ("A800", ["NVIDIA-A800-SXM4-80GB"], ["NVIDIA-A100-SXM4-80GB"]),
    ("L4", ["NVIDIA-L4"], ["NVIDIA-L40", "NVIDIA-L40S"]),
    ("L40", ["NVIDIA-L40"], ["NVIDIA-L4", "NVIDIA-L40S"]),
    ("L40S", ["NVIDIA-L40S"], ["NVIDIA-L4", "NVIDIA-L40"]),
    ("L2", ["NVIDIA-L2"], ["NVIDIA-L20"]),
    ("L20", ["NVIDIA-L20"], ["NVIDIA-L2"]),
    ("T4", ["Tesla-T4", "NVIDIA-T4"], ["NVIDIA-T400", "NVIDIA-T4G", "Tesla-T40"]),
    ("H20", ["NVIDIA-H20"], ["NVIDIA-H200", "NVIDIA-H20-3e", "NVIDIA-GH200-480GB"]),
    ("H20-3e", ["NVIDIA-H20-3e"], ["NVIDIA-H20", "NVIDIA-H200"]),
    ("H200", ["NVIDIA-H200", "NVIDIA-H200-NVL"], ["NVIDIA-H20", "NVIDIA-GH200-480GB", "NVIDIA-GH200-144G-HBM3e"]),
    ("GH200", ["NVIDIA-GH200-480GB", "NVIDIA-GH200-144G-HBM3e"], ["NVIDIA-H200", "NVIDIA-H20"]),
    ("H100", ["NVIDIA-H100", "NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-NVL"], ["NVIDIA-H1000", "NVIDIA-GH100"]),
    ("H800", ["NVIDIA-H800", "NVIDIA-H800-PCIe"], ["NVIDIA-A800-80GB-PCIe"]),
    ("B200", ["NVIDIA-B200"], ["NVIDIA-GB200"]),
    ("GB200", ["NVIDIA-GB200"], ["NVIDIA-B200"]),
    ("B300", ["NVIDIA-B300-SXM6-AC"], ["NVIDIA-GB300"]),
    ("GB300", ["NVIDIA-GB300"], ["NVIDIA-B300-SXM6-AC"]),
    ("V100", ["Tesla-V100-SXM2-16GB", "Tesla-V100-PCIE-32GB"], ["NVIDIA-A100-SXM4-40GB", "NVIDIA-V1000"]),
    ("RTX-PRO-6000", [PRO_6000], ["NVIDIA-RTX-6000-Ada-Generation", "NVIDIA-RTX-A6000"]),
    ("RTX-A6000", ["NVIDIA-RTX-A6000"], ["NVIDIA-RTX-6000-Ada-Generation", PRO_6000]),
    ("NVIDIA-H100", ["NVIDIA-H100", "H100"], ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe"]),
    ("NVIDIA-H200", ["NVIDIA-H200"], ["NVIDIA-H200-NVL"]),
    ("NVIDIA-A100-SXM4-*", ["NVIDIA-A100-SXM4-40GB"], ["NVIDIA-A100-80GB-PCIe", "NVIDIA-A100-SXM-64GB"]),
    ("SXM4", ["NVIDIA-A100-SXM4-40GB", "NVIDIA-A800-SXM4-80GB"], ["NVIDIA-A100-SXM-64GB", "NVIDIA-B300-SXM6-AC"]),
    ("A100-80GB", ["NVIDIA-A100-80GB-PCIe"], ["NVIDIA-A100-SXM4-80GB", "NVIDIA-A800-80GB-PCIe"]),
]  # fmt: skip


@pytest.mark.parametrize(("word", "meant", "others"), CONFUSED, ids=[row[0] for row in CONFUSED])
@pytest.mark.parametrize("suffix", ["", "-SHARED", "-MIG-1g.10gb", "-MIG-1g.10gb.me-SHARED", "-MIG-INVALID"])
def test_product_is_that_one_and_no_other(word: str, meant: list[str], others: list[str], suffix: str) -> None:
    """F31, P1, P2."""
    pattern = PRODUCTS.pattern(word)

    assert [label for label in meant if not pattern.matches(normal_form(label + suffix))] == []
    assert [label for label in others if pattern.matches(normal_form(label + suffix))] == []


@pytest.mark.parametrize("label", LABELS)
def test_canonical_name_means_itself_alone(label: str) -> None:
    """F31: no canonical product matches another's name."""
    pattern = PRODUCTS.pattern(label)

    assert [other for other in LABELS if pattern.matches(normal_form(other))] == [label]


def test_families_share_no_product() -> None:
    """F31: a family is a set of products, and no two families have a product in common."""
    counted = [form for forms in PRODUCTS.families.values() for form in forms]

    assert sorted(counted) == sorted(PRODUCTS.by_form)


@pytest.mark.parametrize("spelling", ["h100", "H100", "h100-80gb-hbm3", "nvidia-h100-80gb-hbm3"])
def test_letter_case_does_not_count(spelling: str) -> None:
    assert PRODUCTS.pattern(spelling).matches("h100-80gb-hbm3")


@pytest.mark.parametrize(
    "wrong", ["A10*", "*0", "", " ", "A-", "-A", "A--B", "A B", "A/B", "x" * 64, "*-*-*-*", "A.*-*"]
)
def test_bad_pattern_is_bad_input(wrong: str) -> None:
    """A star stands for whole tokens only (docs/reference/compatibility.md#products)."""
    with pytest.raises(BadInput, match="product: got"):
        PRODUCTS.pattern(wrong)


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("H10O", "H100"), ("A1OO", "A100"), ("L4OS", "L40S"), ("GH20", "GH200"), ("NVIDIA-A30X", "NVIDIA-A30")],
)
def test_misspelt_name_is_answered_with_the_one_that_was_meant(typo: str, meant: str) -> None:
    """F79, P3."""
    assert not PRODUCTS.names_any(PRODUCTS.pattern(typo))
    assert meant == PRODUCTS.suggest(typo)
