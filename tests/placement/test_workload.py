# SPDX-License-Identifier: Apache-2.0
"""The histogram of the workload: it is bounded, it decays, and the expected demand is made from it."""

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
from tests.placement.expected_demands import GPU, PRODUCTS, node_with_gpus


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


def test_histogram_forgets_half_in_a_half_life() -> None:
    """F52: two classes are seen for one half-life each, so the later one has twice the weight."""
    seen = Workload()
    for gpu_count in (1, 2):
        for _ in range(int(HALF_LIFE)):
            seen = seen.seen(DemandClass(gpus=gpu_count))

    expected_demand = seen.expected_demand({})

    assert expected_demand is not None
    shares = {ask.gpus: share for ask, share in expected_demand.classes}
    assert shares[2] / shares[1] == pytest.approx(2.0, rel=0.01)


def test_histogram_is_bounded_and_keeps_the_popular_class() -> None:
    """F52: the histogram holds at most CLASSES_KEPT classes, and its weights stay finite."""
    seen = Workload()
    for number in range(3 * CLASSES_KEPT):
        seen = seen.seen(DemandClass(cpu_milli=number)).seen(DemandClass(gpus=8))

    assert len(seen.weights) == CLASSES_KEPT
    assert max(seen.weights, key=seen.weights.__getitem__) == DemandClass(gpus=8)
    scaled = replace(seen, weight=9.9999e99).seen(DemandClass(gpus=8)).seen(DemandClass(gpus=8))
    assert scaled.weight < 2
    assert max(scaled.weights, key=scaled.weights.__getitem__) == DemandClass(gpus=8)


def test_class_of_a_demand_is_what_decides_where_it_runs() -> None:
    pod_demand = replace(demand(pod(gpus(2), annotations={"products": "T4"})), cpu_milli=4000)

    assert demand_class(pod_demand) == DemandClass(4000, 2, 0, pod_demand.products)
