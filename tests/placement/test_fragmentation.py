# SPDX-License-Identifier: Apache-2.0
"""The Fragmentation scorer against a slow twin, with facts per GPU and with counts."""

from dataclasses import replace
from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.nodes.model import Node
from app.placement.engine import judge, total
from app.placement.fragmentation import HALF_WAY, fragmentation
from app.placement.packing import packing, spreading
from app.placement.ranking import wire_scores
from app.placement.share_prices import share_prices
from app.placement.unusable_capacity import MOST_UNITS
from app.placement.workload import expected_from_classes
from app.policy.expected_demand import DemandClass, ExpectedDemand
from app.policy.schema_placement import ScorerName
from app.values.reasons import Code
from tests.builders import demand, gpus, node, pod
from tests.placement.ahead import CPU, GPU, OUTLOOKS, PRODUCTS, SIZES, T4, asking, plainly, shown


def wasted(expected_demand: ExpectedDemand, product: str, cpu: int | None, sizes: tuple[int, ...]) -> Fraction:
    """Compute the waste class by class, in fractions."""
    asks = [(ask, Fraction(probability)) for ask, probability in expected_demand.classes if ask.gpus]
    everything = sum(probability for _, probability in asks)
    if not asks:
        return Fraction(0)
    found = plainly(ExpectedDemand(tuple(asks)), product, cpu, sizes) / everything  # type: ignore[arg-type]
    gpu = sum(probability * (ask.share_milli or 1000 * ask.gpus) for ask, probability in asks)
    hunger = Fraction(85, 100) * sum(probability * ask.cpu_milli for ask, probability in asks) / gpu
    if cpu is not None and hunger:
        fed = cpu / hunger
        found += max(Fraction(0), sum(sizes) - fed) + Fraction(1, 10) * max(Fraction(0), fed - sum(sizes))
    return found


def scarce(expected_demand: ExpectedDemand, product: str) -> Fraction:
    """Compute what a milli of a product costs; the one constraint of these outlooks is on the T4."""
    free = dict(expected_demand.free)
    if not any(free.values()):
        return Fraction(0)
    found = Fraction(1, 10) * (1 - Fraction(free[product], max(free.values())))
    asked = sum(Fraction(each) * (ask.share_milli or 1000 * ask.gpus) for ask, each in expected_demand.classes)
    bound = sum(
        Fraction(each) * (ask.share_milli or 1000 * ask.gpus) for ask, each in expected_demand.classes if ask.products
    )
    return found + bound / asked * sum(free.values()) / max(free["t4"], 1) if bound and product == "t4" else found


def gained(
    expected_demand: ExpectedDemand, made: Node, product: str, sizes: tuple[int, ...], asked: tuple[int, int]
) -> Fraction:
    """Compute the gain of placing a pod that wants a core, on the GPU that is fullest."""
    count, share = asked
    left = list(sizes)
    loss = 0.0
    if share:
        tightest = min(size for size in sizes if size >= share)
        left[left.index(tightest)] -= share
        if (known := share_prices(expected_demand)) is not None:
            after, cells = max(0, tightest // 10 - -(-share // 10)), -(-share // 10)
            loss = max(0.0, known.worth[tightest // 10] - known.worth[after] - known.price[cells])
    else:
        for _ in range(count):
            left[left.index(1000)] = 0
    cpu = made.free.cpu_milli
    before = wasted(expected_demand, product, cpu, sizes)
    after_it = wasted(expected_demand, product, None if cpu is None else cpu - 1000, tuple(left))
    return before - after_it - 20_000 * Fraction(loss) - scarce(expected_demand, product) * (share or 1000 * count)


def level_of(score: float) -> float:
    """Turn the score back into levels."""
    side = 2 * score - 1
    return HALF_WAY * side / (1 - abs(side))


@given(OUTLOOKS, st.sampled_from(sorted(PRODUCTS)), CPU, SIZES, st.integers(0, 3), st.integers(0, 999))
def test_score_is_the_level_of_what_is_gained(
    expected_demand: ExpectedDemand, product: str, cpu: int | None, sizes: tuple[int, ...], count: int, share: int
) -> None:
    """F51, F52, F55: with facts per GPU (simulate, DRA)."""
    share = share if count == 1 else 0
    asked, made = asking(count, share, 1000, expected_demand), shown(sizes, cpu, product)
    asked = asked if count else replace(asked, resources=())
    room = max(sizes, default=0) >= share if share else sizes.count(1000) >= count

    found = fragmentation(asked, made)

    assert 0 <= found <= 1
    if not count and not sizes:
        return
    if not room:
        assert found == 0.0
        return
    levels = gained(expected_demand, made, product, sizes, (count, share)) / 40
    assert level_of(found) == pytest.approx(round(level_of(found)), abs=1e-6)
    assert round(level_of(found)) in {floor(levels - Fraction(1, 10**7)), floor(levels + Fraction(1, 10**7))}


@given(OUTLOOKS, st.sampled_from(sorted(PRODUCTS)), CPU, st.integers(0, 8), st.integers(1, 4))
def test_counts_of_a_device_plugin_stand_for_whole_gpus(
    expected_demand: ExpectedDemand, product: str, cpu: int | None, free: int, count: int
) -> None:
    """F52, F55: with facts by count, as a device plugin gives them, a node is worth what its idle GPUs are."""
    made = node(product=PRODUCTS[product], offers={GPU: 8}, used={GPU: 8 - free})
    plugged = replace(made, free=replace(made.free, cpu_milli=cpu))

    found = fragmentation(asking(count, 0, 1000, expected_demand), plugged)

    assert found == fragmentation(asking(count, 0, 1000, expected_demand), shown((1000,) * free, cpu, product))
    if free >= count:
        levels = gained(expected_demand, plugged, product, (1000,) * free, (count, 0)) / 40
        assert level_of(found) == pytest.approx(floor(levels), abs=1.000001)


@given(OUTLOOKS, st.lists(st.tuples(st.sampled_from(sorted(PRODUCTS)), CPU, SIZES), min_size=2, max_size=12))
def test_answers_are_integers_of_the_wire(
    expected_demand: ExpectedDemand, fleet: list[tuple[str, int | None, tuple[int, ...]]]
) -> None:
    """F48, F55: all scorers of the default together; equal levels, equal totals."""
    asked = asking(1, 0, 1000, expected_demand)
    totals = [total(asked, shown(sizes, cpu, product)) for product, cpu, sizes in fleet]

    answers = wire_scores([f"n{number}" for number in range(len(fleet))], totals, True)

    assert all(0 <= each <= 1 for each in totals)
    assert all(type(each) is int and 0 <= each <= 10 for each in answers)
    assert answers.count(10) == 1
    assert answers[totals.index(max(totals))] in (9, 10) or len(set(totals)) == 1


def test_pod_leaves_the_product_alone_that_others_cannot_do_without() -> None:
    """F51: scarcity, seen; and a little of it before anybody asked for a product."""
    bound, free = DemandClass(gpus=1, products=T4), {"t4": 2000, "h100-80gb-hbm3": 8000}
    for asks in ([DemandClass(gpus=1), bound], [DemandClass(gpus=1)]):
        asked = asking(1, expected_demand=expected_from_classes(asks, free))

        assert fragmentation(asked, shown((1000,), product="h100-80gb-hbm3")) > fragmentation(
            asked, shown((1000,), product="t4")
        )


def test_node_that_claims_a_billion_gpus_costs_no_more_than_others() -> None:
    """F55, F125."""
    expected_demand = expected_from_classes([DemandClass(gpus=1)])
    made = node(offers={GPU: 10**9})

    assert 0 <= fragmentation(asking(1, expected_demand=expected_demand), made) <= 1
    assert fragmentation(asking(MOST_UNITS + 1, expected_demand=expected_demand), made) == 0.0


def test_nodes_are_packed_where_nothing_is_expected_or_slices_or_claims_are_asked() -> None:
    """F49, F52: a cold start, and layouts that the gradient does not know."""
    slices = demand(pod(gpus(1, "nvidia.com/mig-1g.10gb")))
    begun, expected_demand = node(offers={GPU: 8}, used={GPU: 4}), expected_from_classes([DemandClass(gpus=1)])
    cut = node(offers={"nvidia.com/mig-1g.10gb": 7}, used={"nvidia.com/mig-1g.10gb": 3})
    claims = replace(slices, resources=(), claims=(("gpu.nvidia.com", 1),), expected_demand=expected_demand)

    assert fragmentation(asking(1), begun) == packing(asking(1), begun) == 5 / 8
    assert fragmentation(replace(slices, expected_demand=expected_demand), cut) == packing(slices, cut) == 4 / 7
    assert fragmentation(claims, begun) == packing(claims, begun)


def test_pod_goes_where_its_share_leaves_whole_gpus_alone() -> None:
    """F52, F61: half a GPU beside half a GPU in use."""
    asked = asking(1, 500, expected_demand=expected_from_classes([DemandClass(gpus=1), DemandClass(gpus=2)]))

    begun, idle = (fragmentation(asked, shown(sizes)) for sizes in ((1000, 1000, 500), (1000, 1000, 1000)))

    assert begun > idle


def test_pod_without_gpu_goes_where_its_cpu_is_not_missed() -> None:
    """F52: the CPU of a node whose GPUs are taken, before that of idle ones."""
    expected_demand = expected_from_classes([DemandClass(cpu_milli=8000, gpus=1)])
    asked = replace(asking(0, cpu=4000, expected_demand=expected_demand), resources=())

    assert fragmentation(asked, shown((0,), 8000)) > fragmentation(asked, shown((1000,), 8000))


@pytest.mark.parametrize(
    ("sizes", "share", "fits"),
    [((190,), 190, True), ((190, 0), 191, False), ((), 1, False), ((1000, 0), 999, True)],
)
def test_share_fits_a_gpu_that_has_as_much_left(sizes: tuple[int, ...], share: int, fits: bool) -> None:
    """F27: per-GPU facts; the message names what is wanted."""
    made = replace(shown(sizes), node_class=shown((1000,)).node_class)

    found = judge(asking(1, share), made, recount=True)

    assert fits == (found is None)
    assert found is None or (found.code, f"{share} thousandths" in found.message) == (Code.InsufficientGPUs, True)


def test_share_on_counted_gpus_takes_a_whole_unit() -> None:
    """F27: a device plugin's count does not say what is left of a GPU."""
    assert judge(asking(1, 100), node(offers={GPU: 1}, used={GPU: 1}), recount=True) is not None
    assert judge(asking(1, 100), node(offers={GPU: 1}), recount=True) is None


def test_packing_of_a_share_looks_into_the_gpus() -> None:
    """F49."""
    assert packing(asking(1, 500), shown((1000, 500))) == 0.5
    assert spreading(asking(1, 500), shown((1000, 500))) == 0.5


def test_outlook_is_part_of_what_verdicts_are_remembered_by() -> None:
    """F52: two outlooks are never equal, so that nothing remembered of the old one is used."""
    asks = [DemandClass(gpus=1)]
    one, other = (asking(1, expected_demand=expected_from_classes(asks)) for _ in range(2))

    assert one != other
    assert one == replace(one)
    assert total(replace(one, scores=((ScorerName.Fragmentation, 1),)), node()) != 0


def test_pod_without_gpu_goes_to_a_node_without_before_any_other() -> None:
    """F52: also to one whose CPU nobody counts, as that of nodes without GPU."""
    asked = replace(
        asking(0, cpu=4000, expected_demand=expected_from_classes([DemandClass(cpu_milli=1000, gpus=1)])), resources=()
    )

    assert fragmentation(asked, node(product=None, offers={})) == 1.0 > fragmentation(asked, shown((0,), 64_000))
