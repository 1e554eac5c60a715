# SPDX-License-Identifier: Apache-2.0
"""MIG profiles: sizes belong to a product and are never compared by name; resource names and minimum profiles."""

import pytest

from app.knowledge.mig_profiles import SliceSize, nominal_size, parse_profile, profile_of
from app.values.errors import BadInput
from tests.builders import knowledge

MIG = knowledge().mig
A100_40, A100_80, A30 = "NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-80GB", "NVIDIA-A30"
GIB = 1024


@pytest.mark.parametrize(
    ("product", "profile", "compute", "gib"),
    [
        (A100_40, "1g.5gb", 1, 5),
        (A100_40, "1g.10gb", 1, 10),
        (A100_40, "7g.40gb", 7, 40),
        (A100_80, "1g.10gb", 1, 10),
        (A100_80, "1g.10gb.me", 1, 10),
        (A100_80, "3g.40gb", 3, 40),
        (A30, "1g.6gb", 1, 6),
        (A30, "2g.12gb", 2, 12),
        ("NVIDIA-H100-80GB-HBM3", "1g.20gb", 1, 20),
        ("NVIDIA-H100-NVL", "1g.24gb", 1, 24),
        ("NVIDIA-H200", "1g.18gb", 1, 18),
        ("NVIDIA-H200", "1g.35gb", 1, 35),
        ("NVIDIA-H200-SHARED", "1g.18gb", 1, 18),
        (f"{A100_40}-MIG-1g.5gb", "1g.5gb", 1, 5),
    ],
)
def test_size_is_that_of_the_product(product: str, profile: str, compute: int, gib: int) -> None:
    """The source is app/knowledge/mig_profiles.yaml (MIG user guide, supported-mig-profiles)."""
    size = MIG.size(product, profile)

    assert size is not None
    assert (size.compute, size.memory_mib) == (compute, gib * GIB)


@pytest.mark.parametrize("product", [None, "NVIDIA-X9000", "Tesla-T4"], ids=["unknown", "not in the table", "no MIG"])
def test_size_without_a_row_is_read_off_the_name(product: str | None) -> None:
    assert SliceSize(2, 20 * GIB) == MIG.size(product, "2g.20gb")


@pytest.mark.parametrize(
    ("large", "small", "expected"),
    [
        pytest.param("1g.10gb", "1g.10gb", True, id="itself"),
        pytest.param("2g.20gb", "1g.10gb", True, id="larger in both"),
        pytest.param("1g.10gb", "1g.5gb", True, id="more memory"),
        pytest.param("1g.20gb", "2g.10gb", False, id="more memory, less compute"),
        pytest.param("4g.20gb", "3g.40gb", False, id="more compute, less memory"),
        pytest.param("1g.5gb", "1g.10gb", False, id="less memory"),
        pytest.param("7g.80gb", "4g.40gb", True, id="all of a GPU"),
        pytest.param("1g.100gb", "1g.20gb", True, id="as text 100 would be less"),
        pytest.param("1g.10gb.me", "1g.10gb", True, id="media engines besides"),
        pytest.param("1g.10gb", "1g.10gb.me", False, id="no media engines of its own"),
        pytest.param("2g.20gb", "1g.10gb.me", False, id="larger, and without JPEG and OFA"),
        pytest.param("7g.80gb", "1g.10gb.me", True, id="all of a GPU has its media engines"),
        pytest.param("1g.24gb.me.all", "1g.24gb.me", True, id="all media engines"),
        pytest.param("1g.24gb.me", "1g.24gb.me.all", False, id="not all media engines"),
        pytest.param("1g.24gb", "1g.24gb-me", True, id="more than none"),
        pytest.param("2g.48gb-me", "1g.24gb", False, id="none where some are asked"),
        pytest.param("1g.24gb.gfx", "1g.24gb", True, id="graphics besides"),
        pytest.param("2g.48gb", "1g.24gb.gfx", False, id="no graphics"),
    ],
)
def test_slice_covers_what_is_no_larger_in_compute_and_memory(large: str, small: str, expected: bool) -> None:
    """F59 (docs/reference/sharing-and-memory.md#mig-at-least)."""
    one, other = nominal_size(large), nominal_size(small)
    assert one is not None
    assert other is not None

    assert expected is one.covers(other)


NAMES = sorted(MIG.sizes)


@pytest.mark.parametrize(("product", "profile"), NAMES, ids=[" ".join(row) for row in NAMES])
def test_every_profile_of_the_table_can_be_asked_and_sized(product: str, profile: str) -> None:
    """P12, F57, P13: every profile's name is valid in annotations and resources."""
    read = parse_profile(profile), profile_of(f"nvidia.com/mig-{profile}"), nominal_size(profile)

    assert ((profile, False), profile, MIG.size(product, profile)) == read


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("nvidia.com/mig-1g.10gb", "1g.10gb"),
        ("nvidia.com/mig-1g.10gb.shared", "1g.10gb"),
        ("nvidia.com/mig-1g.10gb.me", "1g.10gb.me"),
        ("nvidia.com/mig-1g.10gb.me.shared", "1g.10gb.me"),
        ("nvidia.com/mig-1g.24gb-me", "1g.24gb-me"),
        ("nvidia.com/mig-1g.24gb.me.all", "1g.24gb.me.all"),
        ("nvidia.com/mig-4g.96gb.gfx", "4g.96gb.gfx"),
        ("nvidia.com/gpu", None),
        ("nvidia.com/gpu.shared", None),
        ("amd.com/gpu", None),
        ("cpu", None),
    ],
)
def test_resource_names_its_profile(resource: str, expected: str | None) -> None:
    """See docs/reference/sharing-and-memory.md#mig-at-least."""
    assert expected == profile_of(resource)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1g.10gb", ("1g.10gb", False)),
        (">=1g.10gb", ("1g.10gb", True)),
        (" >= 1g.10gb ", ("1g.10gb", True)),
        ("1g.10gb+me", ("1g.10gb.me", False)),
        ("1g.10gb.me", ("1g.10gb.me", False)),
        ("1g.24gb-me", ("1g.24gb-me", False)),
        ("1g.24gb+me.all", ("1g.24gb.me.all", False)),
        (">=4g.96gb+gfx", ("4g.96gb.gfx", True)),
    ],
)
def test_wish_is_written_as_resources_write_it(text: str, expected: tuple[str, bool]) -> None:
    """Every `+` is a `.` in the resource's name (docs/reference/sharing-and-memory.md#mig-at-least)."""
    assert expected == parse_profile(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ">=",
        "1g",
        "10gb",
        "1g.10",
        "1g10gb",
        "g.10gb",
        "1g.gb",
        "1c.2g.20gb",
        ">1g.10gb",
        "1G.10GB",
        "1g.10gb.x",
        "١g.10gb",
    ],
)
def test_text_that_is_no_profile_is_bad_input(text: str) -> None:
    """The device plugin does not offer profiles whose compute instance is smaller than the GPU instance (1c.2g)."""
    with pytest.raises(BadInput, match="mig-profile: got"):
        parse_profile(text)


@pytest.mark.parametrize("product", ["tesla-t4", "t4", "l40s", "a10", "x9000"])
def test_product_without_mig_has_no_profiles(product: str) -> None:
    """The products are those of app/knowledge/mig_profiles.yaml, not_mig_capable."""
    assert MIG.profiles(product) == ()


@pytest.mark.parametrize(
    ("product", "compute", "gib"),
    [("a100-sxm4-40gb", 7, 40), ("a100-sxm4-80gb", 7, 80), ("a30", 4, 24), ("h200", 7, 141)],
)
def test_largest_profile_is_the_whole_gpu(product: str, compute: int, gib: int) -> None:
    """The source is app/knowledge/mig_profiles.yaml."""
    assert SliceSize(compute, gib * GIB) == MIG.size(product, MIG.profiles(product)[-1])
