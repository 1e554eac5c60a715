# SPDX-License-Identifier: Apache-2.0
"""The fragmentation gradient against its definition, with facts per GPU and with counts, and the histogram under it."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.nodeclass import Free, Node
from app.placement.engine import judge, total
from app.placement.fragmentation import MOST_UNITS, NEUTRAL, fragmentation, placements, stranded
from app.placement.scores import packing, spreading
from app.placement.workload import CLASSES_KEPT, HALF_LIFE, Workload, ask_of, counted, outlook_of
from app.policy.demand import Demand
from app.policy.outlook import Ask, Outlook
from app.policy.schema_placement import ScorerName
from app.reasons import Code
from tests.builders import demand, gpus, knowledge, node, pod

GPU = "nvidia.com/gpu"
PRODUCTS = {"t4": "Tesla-T4", "h100": "NVIDIA-H100-80GB-HBM3"}
T4 = ((knowledge().products.pattern("Tesla-T4"),),)

ASKS = st.builds(
    Ask,
    cpu_milli=st.sampled_from([0, 1000, 4000, 8000]),
    gpus=st.integers(0, 4),
    products=st.sampled_from([(), T4]),
) | st.builds(Ask, cpu_milli=st.sampled_from([1000, 4000]), gpus=st.just(1), share_milli=st.integers(1, 999))
OUTLOOKS = st.dictionaries(ASKS, st.integers(1, 9), min_size=1, max_size=8).map(
    lambda found: Outlook(tuple((ask, weight / sum(found.values())) for ask, weight in found.items()))
)
SIZES = st.lists(st.sampled_from([0, 190, 470, 530, 999, 1000, 1000, 1000]), max_size=6).map(
    lambda sizes: tuple(sorted(sizes, reverse=True))
)
CPU = st.none() | st.sampled_from([0, 999, 1000, 5000, 9000])


def plainly(outlook: Outlook, product: str | None, cpu: int | None, sizes: tuple[int, ...]) -> Fraction:
    """Compute F class by class, GPU by GPU, in fractions, as the paper words it."""
    found = Fraction(0)
    for ask, probability in outlook.asks:
        each = ask.share_milli or 1000
        room = [size for size in sizes if size >= each]
        runs = ask.gpus > 0 and len(room) >= ask.gpus and (cpu is None or cpu >= ask.cpu_milli)
        if ask.products and product != "t4":
            runs = False
        found += Fraction(probability) * sum(size for size in sizes if not runs or size < each)
    return found


def ways(sizes: tuple[int, ...], count: int, share: int) -> Iterator[tuple[int, ...]]:
    """Try every choice of GPUs for a pod."""
    for chosen in combinations(range(len(sizes)), count):
        if all(sizes[place] >= (share or 1000) for place in chosen):
            left = [size - (share or 1000) if place in chosen else size for place, size in enumerate(sizes)]
            yield tuple(sorted(left, reverse=True))


def asking(count: int, share: int = 0, cpu: int = 0, outlook: Outlook | None = None) -> Demand:
    return replace(demand(pod(gpus(count))), share_milli=share, cpu_milli=cpu, outlook=outlook)


def shown(sizes: tuple[int, ...], cpu: int | None = None, product: str = "t4") -> Node:
    """Make a node of which each GPU is known."""
    made = node(product=PRODUCTS[product], offers={GPU: len(sizes)})
    return replace(made, free=Free({GPU: sizes.count(1000)}, gpus=sizes, cpu_milli=cpu))


@given(OUTLOOKS, st.sampled_from([None, *PRODUCTS]), CPU, SIZES)
def test_stranded_gpu_is_what_the_definition_says(
    outlook: Outlook, product: str | None, cpu: int | None, sizes: tuple[int, ...]
) -> None:
    """F52, F61."""
    expected = float(plainly(outlook, product, cpu, sizes))

    assert expected == pytest.approx(stranded(outlook, product, cpu, sizes))


@given(SIZES, st.integers(0, 3), st.integers(1, 1000))
def test_every_way_to_seat_a_pod_is_tried_once_and_the_fullest_gpu_first(
    sizes: tuple[int, ...], count: int, share: int
) -> None:
    """F52: whole GPUs are all alike."""
    assert set(ways(sizes, count, 0)) == set(placements(sizes, count, 0))

    found = placements(sizes, 1, share)
    assert set(ways(sizes, 1, share)) == set(found)
    assert len(set(found)) == len(found)
    if found:
        tightest = min(size for size in sizes if size >= share)
        assert sorted([*sizes, tightest - share]) == sorted([*found[0], tightest])


@given(OUTLOOKS, st.sampled_from(sorted(PRODUCTS)), CPU, SIZES, st.integers(0, 3), st.integers(0, 999))
def test_score_is_the_sigmoid_of_what_the_best_gpu_strands_less(
    outlook: Outlook, product: str, cpu: int | None, sizes: tuple[int, ...], count: int, share: int
) -> None:
    """F52, F55: with facts per GPU (simulate, DRA)."""
    share = share if count == 1 else 0
    asked = asking(count, share, 1000, outlook)

    found = fragmentation(asked, shown(sizes, cpu, product))

    left = None if cpu is None else cpu - 1000
    gains = [
        plainly(outlook, product, cpu, sizes) - plainly(outlook, product, left, after)
        for after in ways(sizes, count, share)
    ]
    expected = 100 / (1 + exp(-float(max(gains)) / 1000)) if gains else 0.0
    assert expected / 100 == pytest.approx(found, abs=0.0100001)
    assert 0 <= found <= 1


@given(OUTLOOKS, st.integers(0, 8), st.integers(1, 4))
def test_counts_of_a_device_plugin_stand_for_whole_gpus(outlook: Outlook, free: int, count: int) -> None:
    """F52: with facts by count, as a device plugin gives them, a node is worth what its idle GPUs are."""
    plugged = node(product=PRODUCTS["t4"], offers={GPU: 8}, used={GPU: 8 - free})

    assert fragmentation(asking(count, outlook=outlook), plugged) == fragmentation(
        asking(count, outlook=outlook), shown((1000,) * free)
    )


def test_node_that_claims_a_billion_gpus_costs_no_more_than_others() -> None:
    """F55, F125."""
    outlook = counted([Ask(gpus=1)])
    made = node(offers={GPU: 10**9})

    assert 0 <= fragmentation(asking(1, outlook=outlook), made) <= 1
    assert fragmentation(asking(MOST_UNITS + 1, outlook=outlook), made) == 0.0


def test_nothing_is_said_where_nothing_is_expected_or_slices_are_asked() -> None:
    """F52."""
    slices = demand(pod(gpus(1, "nvidia.com/mig-1g.10gb")))

    assert fragmentation(asking(1), node()) == NEUTRAL
    assert fragmentation(replace(slices, outlook=counted([Ask(gpus=1)])), node()) == NEUTRAL


def test_pod_goes_where_its_share_leaves_whole_gpus_alone() -> None:
    """F52, F61: half a GPU beside half a GPU in use."""
    asked = asking(1, 500, outlook=counted([Ask(gpus=1), Ask(gpus=2)]))

    begun, idle = (fragmentation(asked, shown(sizes)) for sizes in ((1000, 1000, 500), (1000, 1000, 1000)))

    assert begun > idle


def test_pod_without_gpu_goes_where_its_cpu_is_not_missed() -> None:
    """F52: the CPU of a node whose GPUs are taken, before that of idle ones."""
    outlook = counted([Ask(cpu_milli=8000, gpus=1)])
    asked = replace(asking(0, cpu=4000, outlook=outlook), resources=())

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
    asks = [Ask(gpus=1)]
    one, other = (asking(1, outlook=counted(asks)) for _ in range(2))

    assert one != other
    assert one == replace(one)
    assert total(replace(one, scores=((ScorerName.Fragmentation, 1),)), node()) != 0


def test_histogram_expects_the_classes_that_cover_enough() -> None:
    """F52: 95 % of what was seen, scaled to 1; the rarest are left out."""
    found = outlook_of({Ask(gpus=1): 90.0, Ask(gpus=2): 8.0, Ask(gpus=4): 2.0})

    assert found is not None
    assert [(ask.gpus, round(share, 9)) for ask, share in found.asks] == [(1, round(90 / 98, 9)), (2, round(8 / 98, 9))]
    assert outlook_of({}) is None


def test_histogram_forgets_half_in_a_half_life() -> None:
    """F52: two equal halves of one half-life each: the later counts double."""
    seen = Workload()
    for gpu_count in (1, 2):
        for _ in range(int(HALF_LIFE)):
            seen = seen.seen(Ask(gpus=gpu_count))

    outlook = seen.outlook()

    assert outlook is not None
    shares = {ask.gpus: share for ask, share in outlook.asks}
    assert shares[2] / shares[1] == pytest.approx(2.0, rel=0.01)


def test_histogram_is_bounded_and_keeps_the_popular_class() -> None:
    """F52: whatever is asked, it holds CLASSES_KEPT classes; and weights stay numbers."""
    seen = Workload()
    for number in range(3 * CLASSES_KEPT):
        seen = seen.seen(Ask(cpu_milli=number)).seen(Ask(gpus=8))

    assert len(seen.weights) == CLASSES_KEPT
    assert max(seen.weights, key=seen.weights.__getitem__) == Ask(gpus=8)
    scaled = replace(seen, weight=9.9999e99).seen(Ask(gpus=8)).seen(Ask(gpus=8))
    assert scaled.weight < 2
    assert max(scaled.weights, key=scaled.weights.__getitem__) == Ask(gpus=8)


def test_class_of_a_demand_is_what_decides_where_it_runs() -> None:
    asked = replace(demand(pod(gpus(2), annotations={"products": "T4"})), cpu_milli=4000)

    assert ask_of(asked) == Ask(4000, 2, 0, asked.products)
