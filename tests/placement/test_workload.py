# SPDX-License-Identifier: Apache-2.0
"""The histogram of the workload: bounded, decayed, and the outlook of it."""

from dataclasses import replace

import pytest

from app.placement.workload import (
    CLASSES_KEPT,
    HALF_LIFE,
    Workload,
    demand_class,
    expected_from_weights,
    free_by_product,
)
from app.policy.expected_demand import DemandClass
from tests.builders import demand, gpus, node, pod
from tests.placement.ahead import GPU, PRODUCTS, shown


def test_histogram_expects_what_was_seen_the_most_popular_first() -> None:
    """F52: scaled to 1, with what is free by product."""
    found = expected_from_weights({DemandClass(gpus=2): 10.0, DemandClass(gpus=1): 30.0}, {"t4": 1000, "h100": 0})

    assert found is not None
    assert found.classes == ((DemandClass(gpus=1), 0.75), (DemandClass(gpus=2), 0.25))
    assert found.free == (("h100", 0), ("t4", 1000))
    assert expected_from_weights({}, {}) is None


def test_free_gpus_are_summed_by_product() -> None:
    """F51: facts per GPU and counts alike; a product that is used up is known too."""
    used_up = node(product=PRODUCTS["h100-80gb-hbm3"], offers={GPU: 8}, used={GPU: 8})
    nodes = [shown((1000, 530)), shown((1000,)), used_up]

    found = free_by_product([*nodes, replace(nodes[0], node_class=replace(nodes[0].node_class, product=None))])

    assert found["t4"] == 2530
    assert found["h100-80gb-hbm3"] == 0
    assert None not in found


def test_histogram_forgets_half_in_a_half_life() -> None:
    """F52: two equal halves of one half-life each: the later counts double."""
    seen = Workload()
    for gpu_count in (1, 2):
        for _ in range(int(HALF_LIFE)):
            seen = seen.seen(DemandClass(gpus=gpu_count))

    expected_demand = seen.expected_demand({})

    assert expected_demand is not None
    shares = {ask.gpus: share for ask, share in expected_demand.classes}
    assert shares[2] / shares[1] == pytest.approx(2.0, rel=0.01)


def test_histogram_is_bounded_and_keeps_the_popular_class() -> None:
    """F52: whatever is asked, it holds CLASSES_KEPT classes; and weights stay numbers."""
    seen = Workload()
    for number in range(3 * CLASSES_KEPT):
        seen = seen.seen(DemandClass(cpu_milli=number)).seen(DemandClass(gpus=8))

    assert len(seen.weights) == CLASSES_KEPT
    assert max(seen.weights, key=seen.weights.__getitem__) == DemandClass(gpus=8)
    scaled = replace(seen, weight=9.9999e99).seen(DemandClass(gpus=8)).seen(DemandClass(gpus=8))
    assert scaled.weight < 2
    assert max(scaled.weights, key=scaled.weights.__getitem__) == DemandClass(gpus=8)


def test_class_of_a_demand_is_what_decides_where_it_runs() -> None:
    asked = replace(demand(pod(gpus(2), annotations={"products": "T4"})), cpu_milli=4000)

    assert demand_class(asked) == DemandClass(4000, 2, 0, asked.products)
