# SPDX-License-Identifier: Apache-2.0
"""FGD as published, against its definition."""

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.policy.expected_demand import DemandClass, ExpectedDemand
from app.simulate.fgd import fgd, popular
from tests.placement.ahead import CPU, OUTLOOKS, PRODUCTS, SIZES, asking, plainly, shown, ways


@given(OUTLOOKS, st.sampled_from(sorted(PRODUCTS)), CPU, SIZES, st.integers(0, 3), st.integers(0, 999))
def test_score_is_the_sigmoid_of_what_the_best_gpu_strands_less(
    expected_demand: ExpectedDemand, product: str, cpu: int | None, sizes: tuple[int, ...], count: int, share: int
) -> None:
    """F52: the published baseline; the classes that cover enough."""
    share = share if count == 1 else 0
    asked = asking(count, share, 1000, expected_demand)

    score = fgd(asked, shown(sizes, cpu, product))

    kept = popular(expected_demand)
    left = None if cpu is None else cpu - 1000
    gains = [
        plainly(kept, product, cpu, sizes) - plainly(kept, product, left, after) for after in ways(sizes, count, share)
    ]
    expected = 100 / (1 + exp(-float(max(gains)) / 1000)) if gains else 0.0
    assert expected / 100 == pytest.approx(score, abs=0.0100001)
    assert 0 <= score <= 1


def test_classes_that_cover_enough_are_kept() -> None:
    """F52: 95 % of what was seen, scaled to 1; the rarest are left out."""
    classes = popular(
        ExpectedDemand(((DemandClass(gpus=1), 0.9), (DemandClass(gpus=2), 0.08), (DemandClass(gpus=4), 0.02)))
    )

    assert [(demand_class.gpus, round(share, 9)) for demand_class, share in classes.classes] == [
        (1, round(90 / 98, 9)),
        (2, round(8 / 98, 9)),
    ]
