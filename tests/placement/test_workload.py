# SPDX-License-Identifier: Apache-2.0
"""The expected demand, and the capacity that is unusable for it, against its definition."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.placement.scheduler_demand import FREE_STEPS, demand_class, expected_from_weights, free_floor, free_step
from app.placement.unusable_capacity import placements
from app.policy.demand import DemandClass, ExpectedDemand
from tests.builders import demand, gpus, node, pod
from tests.placement.expected_demands import (
    CPU,
    EXPECTED_DEMANDS,
    GPU,
    PRODUCTS,
    SIZES,
    exact_stranded,
    free_by_product,
    node_with_gpus,
    sizes_left,
    unusable_milli,
)


def test_histogram_expects_what_was_seen_the_most_popular_first() -> None:
    """F52: weights are scaled to a sum of 1, together with the free GPUs by product."""
    expected_demand = expected_from_weights(
        {DemandClass(gpus=2): 10.0, DemandClass(gpus=1): 30.0}, {"t4": 1000, "h100": 0}
    )

    assert expected_demand is not None
    assert expected_demand.classes == ((DemandClass(gpus=1), 0.75), (DemandClass(gpus=2), 0.25))
    assert expected_demand.free == (("h100", 0), ("t4", 1000))
    assert expected_from_weights({}, {}) is None


def test_free_gpus_are_summed_by_product() -> None:
    """F51: facts per GPU and counts are summed alike; a product without free GPUs is listed too."""
    used_up = node(product=PRODUCTS["h100-80gb-hbm3"], offers={GPU: 8}, used={GPU: 8})
    nodes = [node_with_gpus((1000, 530)), node_with_gpus((1000,)), used_up]

    free = free_by_product([*nodes, replace(nodes[0], node_class=replace(nodes[0].node_class, product=None))])

    assert free["t4"] == 2530
    assert free["h100-80gb-hbm3"] == 0
    assert None not in free


def test_order_in_which_classes_were_counted_changes_nothing() -> None:
    """F52: sums of floating-point numbers depend on their order, so that equal weights need one."""
    weights = {DemandClass(cpu, gpus): 1.0 for cpu in (0, 1000, 2000) for gpus in (1, 2, 8)}
    forward, backward = expected_from_weights(weights, {}), expected_from_weights(dict(reversed(weights.items())), {})

    assert forward is not None
    assert backward is not None
    assert forward.classes == backward.classes


@given(free=st.integers(0, 100_000), more=st.integers(0, 10_000), busy=st.integers(0, 100_000))
def test_free_capacity_is_rounded_within_a_step(free: int, more: int, busy: int) -> None:
    """F51: more is never less, a step is a quarter of a doubling, and no product is without any."""
    whole = free + more + busy
    floor = free_floor(whole)
    low, high = free_step(free, whole)

    assert low < free + floor <= high <= (free + floor) * 2 ** (1 / FREE_STEPS) + 2
    assert free_step(high - floor, whole) == (low, high)
    assert high <= free_step(free + more, whole)[1]


def test_class_of_a_demand_is_what_decides_where_it_runs() -> None:
    pod_demand = replace(demand(pod(gpus(2), annotations={"products": "T4"})), cpu_milli=4000)

    assert demand_class(pod_demand) == DemandClass(4000, 2, 0, pod_demand.products)


def test_product_without_any_capacity_has_one_step() -> None:
    """F51: nodes whose devices were all withdrawn, while a claim or a share is still counted free."""
    assert [free_step(free, 0) for free in (0, 1, 1000)] == [(-1, 1), (1, 2), (862, 1025)]


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
