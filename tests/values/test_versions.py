# SPDX-License-Identifier: Apache-2.0
"""Versions are compared field by field as numbers, never as text (app/knowledge/cuda_driver.yaml, version_compare)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.values.errors import VersionError
from app.values.versions import Version, major_minor, parse_minimum, parse_version, show_version

FIELDS = st.lists(st.integers(0, 999_999), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("12.4", (12, 4), id="CUDA"),
        pytest.param("12.0", (12,), id="trailing zeros are dropped"),
        pytest.param("0", (0,), id="zero is kept"),
        pytest.param("580", (580,), id="a branch"),
        pytest.param("455.32", (455, 32), id="a driver with two fields"),
        pytest.param("570.26", (570, 26), id="another"),
        pytest.param("535.54.03", (535, 54, 3), id="leading zero"),
        pytest.param("570.124.06", (570, 124, 6), id="leading zero, three digits before"),
        pytest.param(" 550.54.15 ", (550, 54, 15), id="spaces around"),
        pytest.param("1.2.3.4", (1, 2, 3, 4), id="four fields"),
    ],
)
def test_version_is_read_as_numbers(text: str, expected: Version) -> None:
    assert expected == parse_version(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ".",
        "12.",
        ".4",
        "12..4",
        "v12.4",
        "12.4-rc1",
        "12,4",
        "1.2.3.4.5",
        "1234567",
        "-1",
        "+1",
        "1e3",
        "12.4 12.5",
        "latest",
        "١٢.٤",
        "12.４",
    ],
)
def test_text_that_is_no_version_is_refused(text: str) -> None:
    """Versions are digits with dots (docs/reference/policy.md#annotations)."""
    with pytest.raises(VersionError):
        parse_version(text)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        pytest.param("9.2", "10.0", id="as text 9.2 would be newer"),
        pytest.param("450.80.02", "450.119.03", id="as text .80 would be newer"),
        pytest.param("525.60.13", "525.105.17", id="as text .60 would be newer"),
        pytest.param("535.54.03", "535.54.13", id="third field"),
        pytest.param("550.54.14", "550.54.15", id="last step"),
        pytest.param("570.26", "570.124.06", id="two fields and three"),
        pytest.param("580", "580.65.06", id="a branch and its driver"),
        pytest.param("99.9", "100", id="more digits"),
    ],
)
def test_numbers_decide_which_is_newer(older: str, newer: str) -> None:
    assert parse_version(older) < parse_version(newer)


@given(FIELDS)
def test_leading_zeros_change_nothing(fields: list[int]) -> None:
    """NVIDIA/k8s-device-plugin internal/lm/nvml.go keeps leading zeros in labels."""
    plain = ".".join(str(field) for field in fields)

    assert parse_version(plain) == parse_version(".".join(f"{field:06d}" for field in fields))


@given(FIELDS, FIELDS)
def test_order_is_that_of_the_fields_filled_up_with_zeros(one: list[int], other: list[int]) -> None:
    left, right = (parse_version(".".join(map(str, fields))) for fields in (one, other))

    filled = [tuple(fields + [0] * (4 - len(fields))) for fields in (one, other)]

    assert (filled[0] < filled[1], filled[0] == filled[1]) == (left < right, left == right)


@given(FIELDS)
def test_shown_version_is_read_back_as_itself(fields: list[int]) -> None:
    version = parse_version(".".join(map(str, fields)))

    assert version == parse_version(show_version(version))


@pytest.mark.parametrize(
    ("text", "shown"),
    [("12", "12.0"), ("12.0", "12.0"), ("12.4", "12.4"), ("12.4.1", "12.4.1"), ("9.0", "9.0"), ("580", "580.0")],
)
def test_version_is_shown_with_two_fields_at_least(text: str, shown: str) -> None:
    assert shown == show_version(parse_version(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("12.4.1", (12, 4)), ("12.4", (12, 4)), ("12.0.1", (12,)), ("13", (13,)), ("11.8.0", (11, 8))],
)
def test_release_is_major_and_minor(text: str, expected: Version) -> None:
    assert expected == major_minor(parse_version(text))


@pytest.mark.parametrize("text", ["12.4", ">=12.4", ">= 12.4", " >=12.4 "])
def test_wish_may_carry_the_sign(text: str) -> None:
    """A leading `>=` is optional in the annotation grammar (docs/reference/policy.md#annotations)."""
    assert parse_minimum(text) == (12, 4)


@pytest.mark.parametrize("text", [">12.4", "=12.4", "==12.4", "<=12.4", ">=>=12.4", ">=", "12.4+"])
def test_other_signs_are_refused(text: str) -> None:
    with pytest.raises(VersionError):
        parse_minimum(text)


def test_refusal_shows_only_the_start_of_a_long_text() -> None:
    with pytest.raises(VersionError) as raised:
        parse_version("9" * 100_000)

    assert len(str(raised.value)) < 200
