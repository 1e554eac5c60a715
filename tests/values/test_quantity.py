# SPDX-License-Identifier: Apache-2.0
"""Quantities: laws that hold for every number, and memory requirements in any unit that people write."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.values.errors import QuantityError
from app.values.quantity import LARGEST, parse_mib, parse_quantity
from tests.oracles.quantities import MULTIPLIERS as SCALES


@pytest.mark.parametrize("suffix", SCALES, ids=[suffix or "none" for suffix in SCALES])
def test_suffix_multiplies(suffix: str) -> None:
    """Fault 36."""
    assert 3 * SCALES[suffix] == parse_quantity(f"3{suffix}")


@given(st.integers(-(2**62), 2**62), st.integers(0, 9))
def test_number_is_read_back_exactly(number: int, places: int) -> None:
    text = f"{number}e-{places}"

    assert Fraction(number, 10**places) == parse_quantity(text)


@given(st.integers(0, 2**70), st.sampled_from(sorted(SCALES)))
def test_no_amount_is_beyond_what_kubernetes_holds(number: int, suffix: str) -> None:
    """Larger numbers are capped (quantity.go)."""
    assert min(number * SCALES[suffix], Fraction(LARGEST)) == parse_quantity(f"{number}{suffix}")


@given(st.integers(0, 2**62), st.sampled_from(sorted(SCALES)))
def test_sign_mirrors_the_amount(number: int, suffix: str) -> None:
    assert -parse_quantity(f"+{number}{suffix}") == parse_quantity(f"-{number}{suffix}")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("٢", id="Arabic digit"),
        pytest.param("\uff12Gi", id="fullwidth digit"),
        pytest.param("1.٥", id="Arabic digit after the point"),
        pytest.param("1e٣", id="Arabic exponent"),
        pytest.param("2\n", id="new line"),
        pytest.param("2 ", id="trailing space"),
        pytest.param("1ki", id="ki"),
        pytest.param("1K", id="K is no decimal suffix"),
        pytest.param("1b", id="bytes"),
        pytest.param("50%", id="percentage (F8)"),
        pytest.param("inf", id="inf"),
        pytest.param("1.2.3", id="two points"),
        pytest.param(".", id="point alone"),
        pytest.param("-", id="sign alone"),
        pytest.param("1e+", id="exponent without digits"),
    ],
)
def test_text_outside_the_grammar_is_refused(text: str) -> None:
    """A <digit> is 0 to 9 (quantity.go); docs/reference/control-plane.md#requests-of-the-api-server has the regular
    expression."""
    with pytest.raises(QuantityError):
        parse_quantity(text)


def test_huge_exponent_costs_nothing_and_is_capped() -> None:
    """Fault 36."""
    assert parse_quantity("1e999") == LARGEST


def test_refusal_shows_only_the_start_of_a_long_text() -> None:
    with pytest.raises(QuantityError) as raised:
        parse_quantity("x" * 100_000)

    assert len(str(raised.value)) < 200


@given(st.integers(1, 2**20), st.sampled_from(["G", "GB", "Gi", "GiB", " GB", " GiB"]))
def test_gigabytes_of_memory_are_gibibytes_however_written(number: int, unit: str) -> None:
    """`80Gi` and `80GB` mean the same (docs/reference/sharing-and-memory.md#memory)."""
    assert number * 1024 == parse_mib(f"{number}{unit}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("1", 1, id="one byte is one MiB, rounded up"),
        pytest.param("1048576", 1, id="exactly one MiB in bytes"),
        pytest.param("1048577", 2, id="one byte more"),
        pytest.param("0.5Gi", 512, id="half a GiB"),
        pytest.param("1.5GB", 1536, id="one and a half GB"),
        pytest.param("81559Mi", 81_559, id="what an H100 reports"),
        pytest.param("  40Gi ", 40_960, id="spaces around"),
        pytest.param("1T", 2**20, id="a terabyte"),
    ],
)
def test_memory_is_rounded_up_to_mib(text: str, expected: int) -> None:
    assert expected == parse_mib(text)


@pytest.mark.parametrize("text", ["0", "0Gi", "-1Gi", "Gi", "", "much", "40 Gigs"])
def test_memory_that_is_no_positive_amount_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_mib(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", True), ("1000m", True), ("1.0", True), ("0", True), ("-2", True), ("500m", False), ("1.5", False)],
)
def test_whole_amount_is_an_integer_however_written(text: str, expected: bool) -> None:
    """F8."""
    assert expected is (parse_quantity(text).denominator == 1)
