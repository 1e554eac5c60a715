# SPDX-License-Identifier: Apache-2.0
"""The Fragmentation scorer against a slow twin, on nodes with facts per GPU and on nodes with counts only."""

from dataclasses import replace
from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.nodes.model import Node
from app.placement.capacity_prices import share_prices
from app.placement.engine import judge, total
from app.placement.ranking import scores_without_gpus
from app.placement.scorers import HALF_WAY, fragmentation, packing, spreading
from app.placement.unusable_capacity import MOST_UNITS
from app.policy.demand import DemandClass, ExpectedDemand
from app.policy.schema_placement import ScorerName
from app.values.reasons import Code
from tests.builders import demand, gpus, node, pod
from tests.placement.expected_demands import (
    CPU,
    EXPECTED_DEMANDS,
    GPU,
    PRODUCTS,
    SIZES,
    T4,
    demand_for,
    exact_stranded,
    expected_from_classes,
    node_with_gpus,
)


def exact_waste(expected_demand: ExpectedDemand, product: str, cpu: int | None, sizes: tuple[int, ...]) -> Fraction:
    """Compute the waste class by class, in exact fractions."""
    asks = [(ask, Fraction(probability)) for ask, probability in expected_demand.classes if ask.gpus]
    everything = sum(probability for _, probability in asks)
    if not asks:
        return Fraction(0)
    waste = exact_stranded(ExpectedDemand(tuple(asks)), product, cpu, sizes) / everything  # type: ignore[arg-type]
    gpu = sum(probability * (ask.share_milli or 1000 * ask.gpus) for ask, probability in asks)
    hunger = Fraction(85, 100) * sum(probability * ask.cpu_milli for ask, probability in asks) / gpu
    if cpu is not None and hunger:
        fed = cpu / hunger
        waste += max(Fraction(0), sum(sizes) - fed) + Fraction(1, 10) * max(Fraction(0), fed - sum(sizes))
    return waste


def exact_scarcity(expected_demand: ExpectedDemand, product: str) -> Fraction:
    """Compute the scarcity cost of a thousandth of a GPU of a product.

    The only product constraint in these expected demands is on the T4.
    """
    free = dict(expected_demand.free)
    if not any(free.values()):
        return Fraction(0)
    cost = Fraction(1, 10) * (1 - Fraction(free[product], max(free.values())))
    demanded = sum(
        Fraction(probability) * (ask.share_milli or 1000 * ask.gpus) for ask, probability in expected_demand.classes
    )
    bound = sum(
        Fraction(probability) * (ask.share_milli or 1000 * ask.gpus)
        for ask, probability in expected_demand.classes
        if ask.products
    )
    return cost + bound / demanded * sum(free.values()) / max(free["t4"], 1) if bound and product == "t4" else cost


def exact_gain(
    expected_demand: ExpectedDemand, made: Node, product: str, sizes: tuple[int, ...], asked: tuple[int, int]
) -> Fraction:
    """Compute the gain of placing a pod that asks for one core on the fullest GPU that has room for it."""
    count, share = asked
    left = list(sizes)
    loss = 0.0
    if share:
        tightest = min(size for size in sizes if size >= share)
        left[left.index(tightest)] -= share
        if (prices := share_prices(expected_demand)) is not None:
            after, cells = max(0, tightest // 10 - -(-share // 10)), -(-share // 10)
            loss = max(0.0, prices.worth[tightest // 10] - prices.worth[after] - prices.price[cells])
    else:
        for _ in range(count):
            left[left.index(1000)] = 0
    cpu = made.free_cpu_milli
    before = exact_waste(expected_demand, product, cpu, sizes)
    after_it = exact_waste(expected_demand, product, None if cpu is None else cpu - 1000, tuple(left))
    beside = 0 if count else Fraction(sum(sizes), 10)
    scarce = exact_scarcity(expected_demand, product) * (share or 1000 * count)
    return before - after_it - 20_000 * Fraction(loss) - scarce - beside


def level_of(score: float) -> float:
    """Convert the score back into levels of the gain."""
    side = 2 * score - 1
    return HALF_WAY * side / (1 - abs(side))


@given(EXPECTED_DEMANDS, st.sampled_from(sorted(PRODUCTS)), CPU, SIZES, st.integers(0, 3), st.integers(0, 999))
def test_score_is_the_level_of_what_is_gained(
    expected_demand: ExpectedDemand, product: str, cpu: int | None, sizes: tuple[int, ...], count: int, share: int
) -> None:
    """F51, F52, F55: with facts per GPU, as `simulate` and DRA have them."""
    share = share if count == 1 else 0
    pod_demand, made = demand_for(count, share, 1000, expected_demand), node_with_gpus(sizes, cpu, product)
    pod_demand = pod_demand if count else replace(pod_demand, resources=())
    room = max(sizes, default=0) >= share if share else sizes.count(1000) >= count

    score = fragmentation(pod_demand, made)

    assert 0 <= score <= 1
    if not count and not sizes:
        return
    if not room:
        assert score == 0.0
        return
    levels = exact_gain(expected_demand, made, product, sizes, (count, share)) / 40
    assert level_of(score) == pytest.approx(round(level_of(score)), abs=1e-6)
    assert round(level_of(score)) in {floor(levels - Fraction(1, 10**7)), floor(levels + Fraction(1, 10**7))}


@given(EXPECTED_DEMANDS, st.sampled_from(sorted(PRODUCTS)), CPU, st.integers(0, 8), st.integers(1, 4))
def test_counts_of_a_device_plugin_stand_for_whole_gpus(
    expected_demand: ExpectedDemand, product: str, cpu: int | None, free: int, count: int
) -> None:
    """F52, F55: a node whose device plugin reports counts only is scored by its idle GPUs."""
    made = node(product=PRODUCTS[product], offers={GPU: 8}, used={GPU: 8 - free})
    plugged = replace(made, free_cpu_milli=cpu)

    score = fragmentation(demand_for(count, 0, 1000, expected_demand), plugged)

    assert score == fragmentation(
        demand_for(count, 0, 1000, expected_demand), node_with_gpus((1000,) * free, cpu, product)
    )
    if free >= count:
        levels = exact_gain(expected_demand, plugged, product, (1000,) * free, (count, 0)) / 40
        assert level_of(score) == pytest.approx(floor(levels), abs=1.000001)


def test_pod_leaves_the_product_alone_that_others_cannot_do_without() -> None:
    """F51: scarcity counts where the demand for a product was seen, and a little before anybody asked for one."""
    bound, free = DemandClass(gpus=1, products=T4), {"t4": 2000, "h100-80gb-hbm3": 8000}
    for asks in ([DemandClass(gpus=1), bound], [DemandClass(gpus=1)]):
        pod_demand = demand_for(1, expected_demand=expected_from_classes(asks, free))

        assert fragmentation(pod_demand, node_with_gpus((1000,), product="h100-80gb-hbm3")) > fragmentation(
            pod_demand, node_with_gpus((1000,), product="t4")
        )


def test_node_that_claims_a_billion_gpus_costs_no_more_than_others() -> None:
    """F55, F125."""
    expected_demand = expected_from_classes([DemandClass(gpus=1)])
    made = node(offers={GPU: 10**9})

    assert 0 <= fragmentation(demand_for(1, expected_demand=expected_demand), made) <= 1
    assert fragmentation(demand_for(MOST_UNITS + 1, expected_demand=expected_demand), made) == 0.0


def test_nodes_are_packed_where_nothing_is_expected_or_slices_or_claims_are_asked() -> None:
    """F49, F52: packing decides before any demand was seen, and for MIG slices and claims, which the gradient does not
    cover."""
    slices = demand(pod(gpus(1, "nvidia.com/mig-1g.10gb")))
    begun, expected_demand = node(offers={GPU: 8}, used={GPU: 4}), expected_from_classes([DemandClass(gpus=1)])
    cut = node(offers={"nvidia.com/mig-1g.10gb": 7}, used={"nvidia.com/mig-1g.10gb": 3})
    claims = replace(slices, resources=(), claims=(("gpu.nvidia.com", 1),), expected_demand=expected_demand)

    assert fragmentation(demand_for(1), begun) == packing(demand_for(1), begun) == 5 / 8
    assert fragmentation(replace(slices, expected_demand=expected_demand), cut) == packing(slices, cut) == 4 / 7
    assert fragmentation(claims, begun) == packing(claims, begun)


def test_pod_goes_where_its_share_leaves_whole_gpus_alone() -> None:
    """F52, F61: half a GPU goes to a GPU of which half is already in use."""
    pod_demand = demand_for(1, 500, expected_demand=expected_from_classes([DemandClass(gpus=1), DemandClass(gpus=2)]))

    begun, idle = (
        fragmentation(pod_demand, node_with_gpus(sizes)) for sizes in ((1000, 1000, 500), (1000, 1000, 1000))
    )

    assert begun > idle


def test_pod_without_gpu_goes_where_its_cpu_is_not_missed() -> None:
    """F52: a CPU pod uses the CPU of a node whose GPUs are taken before the CPU of nodes with idle GPUs."""
    expected_demand = expected_from_classes([DemandClass(cpu_milli=8000, gpus=1)])
    pod_demand = replace(demand_for(0, cpu=4000, expected_demand=expected_demand), resources=())

    assert fragmentation(pod_demand, node_with_gpus((0,), 8000)) > fragmentation(
        pod_demand, node_with_gpus((1000,), 8000)
    )


def test_pod_without_gpu_leaves_idle_nodes_alone_even_if_their_cpu_is_plenty() -> None:
    """F52: else kube-scheduler spreads such pods over all idle nodes, and pods that need a whole node find none."""
    expected_demand = expected_from_classes([DemandClass(cpu_milli=1000, gpus=1)])
    pod_demand = replace(demand_for(0, cpu=1000, expected_demand=expected_demand), resources=())
    free = [(0,) * 8, (1000,) * 4 + (0,) * 4, (1000,) * 8]

    totals = [total(pod_demand, node_with_gpus(gpus, 128_000)) for gpus in free]

    assert scores_without_gpus([*totals, total(pod_demand, node_with_gpus(free[0], 64_000))]) == [7, 6, 5, 7]


@pytest.mark.parametrize(
    ("sizes", "share", "fits"), [((190,), 190, True), ((190, 0), 191, False), ((), 1, False), ((1000, 0), 999, True)]
)
def test_share_fits_a_gpu_that_has_as_much_left(sizes: tuple[int, ...], share: int, fits: bool) -> None:
    """F27: with facts per GPU, the message names the thousandths that are wanted."""
    made = replace(node_with_gpus(sizes), node_class=node_with_gpus((1000,)).node_class)

    rejection = judge(demand_for(1, share), made, recount=True)

    assert fits == (rejection is None)
    assert rejection is None or (rejection.code, f"{share} thousandths" in rejection.message) == (
        Code.InsufficientGPUs,
        True,
    )


def test_share_on_counted_gpus_takes_a_whole_unit() -> None:
    """F27: a device plugin's count does not say how much of a GPU is left."""
    assert judge(demand_for(1, 100), node(offers={GPU: 1}, used={GPU: 1}), recount=True) is not None
    assert judge(demand_for(1, 100), node(offers={GPU: 1}), recount=True) is None


def test_packing_of_a_share_looks_into_the_gpus() -> None:
    """F49."""
    assert packing(demand_for(1, 500), node_with_gpus((1000, 500))) == 0.5
    assert spreading(demand_for(1, 500), node_with_gpus((1000, 500))) == 0.5


def test_outlook_is_part_of_what_verdicts_are_remembered_by() -> None:
    """F52: two expected demands are never equal, so no cached verdict of the old one is used."""
    asks = [DemandClass(gpus=1)]
    one, other = (demand_for(1, expected_demand=expected_from_classes(asks)) for _ in range(2))

    assert one != other
    assert one == replace(one)
    assert total(replace(one, scores=((ScorerName.Fragmentation, 1),)), node()) != 0


def test_pod_without_gpu_goes_to_a_node_without_before_any_other() -> None:
    """F52: nodes without GPUs come first, even if their free CPU is not counted."""
    pod_demand = replace(
        demand_for(0, cpu=4000, expected_demand=expected_from_classes([DemandClass(cpu_milli=1000, gpus=1)])),
        resources=(),
    )

    assert (
        fragmentation(pod_demand, node(product=None, offers={}))
        == 1.0
        > fragmentation(pod_demand, node_with_gpus((0,), 64_000))
    )
