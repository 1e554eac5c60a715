# SPDX-License-Identifier: Apache-2.0
"""FGD as published, against its definition."""

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.policy.demand import DemandClass, ExpectedDemand
from tests.bench.simulate.policies import fgd, popular
from tests.placement.expected_demands import (
    CPU,
    EXPECTED_DEMANDS,
    PRODUCTS,
    SIZES,
    demand_for,
    exact_stranded,
    node_with_gpus,
    sizes_left,
)


@given(EXPECTED_DEMANDS, st.sampled_from(sorted(PRODUCTS)), CPU, SIZES, st.integers(0, 3), st.integers(0, 999))
def test_score_is_the_sigmoid_of_what_the_best_gpu_strands_less(
    expected_demand: ExpectedDemand, product: str, cpu: int | None, sizes: tuple[int, ...], count: int, share: int
) -> None:
    """F52: the published baseline, with the most frequent classes."""
    share = share if count == 1 else 0
    pod_demand = demand_for(count, share, 1000, expected_demand)

    score = fgd(pod_demand, node_with_gpus(sizes, cpu, product))

    popular_classes = popular(expected_demand)
    left = None if cpu is None else cpu - 1000
    gains = [
        exact_stranded(popular_classes, product, cpu, sizes) - exact_stranded(popular_classes, product, left, after)
        for after in sizes_left(sizes, count, share)
    ]
    expected = 100 / (1 + exp(-float(max(gains)) / 1000)) if gains else 0.0
    assert expected / 100 == pytest.approx(score, abs=0.0100001)
    assert 0 <= score <= 1


def test_classes_that_cover_enough_are_kept() -> None:
    """F52: classes with 95 % of the pods seen are kept and scaled to 1, and the rarest are left out."""
    classes = popular(
        ExpectedDemand(((DemandClass(gpus=1), 0.9), (DemandClass(gpus=2), 0.08), (DemandClass(gpus=4), 0.02)))
    )

    assert [(demand_class.gpus, round(share, 9)) for demand_class, share in classes.classes] == [
        (1, round(90 / 98, 9)),
        (2, round(8 / 98, 9)),
    ]
