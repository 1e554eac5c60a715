# SPDX-License-Identifier: Apache-2.0
"""The unusable capacity, against its definition, with facts per GPU and with counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.placement.unusable_capacity import placements, unusable_milli
from app.policy.demand import ExpectedDemand
from tests.placement.expected_demands import CPU, EXPECTED_DEMANDS, PRODUCTS, SIZES, exact_stranded, sizes_left


@given(EXPECTED_DEMANDS, st.sampled_from([None, *PRODUCTS]), CPU, SIZES)
def test_unusable_capacity_is_what_the_definition_says(
    expected_demand: ExpectedDemand, product: str | None, cpu: int | None, sizes: tuple[int, ...]
) -> None:
    """F52, F61."""
    expected = float(exact_stranded(expected_demand, product, cpu, sizes))

    assert expected == pytest.approx(unusable_milli(expected_demand, product, cpu, sizes))


@given(SIZES, st.integers(0, 3), st.integers(1, 1000))
def test_every_choice_of_gpus_is_tried_once_and_the_fullest_gpu_first(
    sizes: tuple[int, ...], count: int, share: int
) -> None:
    """F52: whole GPUs are interchangeable, so only one choice of them is tried."""
    assert set(sizes_left(sizes, count, 0)) == set(placements(sizes, count, 0))

    left = placements(sizes, 1, share)
    assert set(sizes_left(sizes, 1, share)) == set(left)
    assert len(set(left)) == len(left)
    if left:
        tightest = min(size for size in sizes if size >= share)
        assert sorted([*sizes, tightest - share]) == sorted([*left[0], tightest])
