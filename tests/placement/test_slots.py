# SPDX-License-Identifier: Apache-2.0
"""Room for later MIG slices: the tables against trying every placement, and the MIGLayout score of nodes (F61)."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.knowledge.mig_geometry import Geometry, GPULayout, Instance, InstancePlacement
from app.nodes.model import FreeResources, Node
from app.placement.engine import judge
from app.placement.mig_slices import (
    CHANCE_ENDED,
    distinct_profiles,
    first_fit,
    headroom,
    headroom_loss,
    placement_losses,
)
from app.placement.scorers import NEUTRAL, mig_layout
from tests.builders import demand, gpus, knowledge, node, pod
from tests.placement.least_spoiling import least_spoiling

GEOMETRIES = sorted({id(table): name for name, table in knowledge().geometry.items()}.values())
"""One product for each table row, since products of one row share the geometry."""
H100 = knowledge().geometry["h100-80gb-hbm3"]
SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-4g.40gb"


def drawn_instances(geometry: Geometry, seed: int) -> tuple[Instance, ...]:
    """Put instances at random starts on a GPU, and take some of them away again."""
    chance = Random(seed)
    taken: list[Instance] = []
    for _ in range(chance.randrange(12)):
        profile = chance.choice(sorted(geometry.slots))
        starts = [start for _, start in placement_losses(geometry, tuple(sorted(taken)), profile)]
        if starts:
            taken.append(Instance(profile, chance.choice(starts)))
        if taken and chance.random() < 0.3:
            taken.remove(chance.choice(taken))
    return tuple(sorted(taken))


def slow_usable(geometry: Geometry, taken: Sequence[Instance]) -> int:
    """Sum over all profiles the memory slices that they could take, by adding instances until one no longer fits."""
    usable = 0
    bare = [_plain_profile(geometry, instance) for instance in taken]
    for slot in distinct_profiles(geometry):
        most = next(n for n in count() if geometry.find_starts((slot.profile,) * (n + 1), bare) is None)
        usable += slot.length * most
    return usable


def _plain_profile(geometry: Geometry, instance: Instance) -> Instance:
    """Rename an instance after the profile of the same shape with the highest limit, which has no media engine."""
    own = geometry.slots[instance.profile]
    alike = (slot for slot in geometry.slots.values() if (slot.compute, slot.starts) == (own.compute, own.starts))
    return Instance(max(alike, key=lambda slots: slots.max_instances).profile, instance.start)


@pytest.mark.parametrize("product", GEOMETRIES)
@pytest.mark.parametrize("seed", range(8))
def test_headroom_is_the_expected_room_over_all_subsets_that_stay(product: str, seed: int) -> None:
    """F61: sum over every subset of instances that stay, and over every number of new instances beside it."""
    geometry = knowledge().geometry[product]
    taken = drawn_instances(geometry, seed)
    expected = 0.0
    for staying in range(len(taken) + 1):
        for left in combinations(taken, staying):
            chance = (1 - CHANCE_ENDED) ** staying * CHANCE_ENDED ** (len(taken) - staying)
            expected += chance * slow_usable(geometry, left) / slow_usable(geometry, ())

    assert headroom(geometry, taken) == pytest.approx(expected)


@pytest.mark.parametrize("product", GEOMETRIES)
@pytest.mark.parametrize("seed", range(20))
def test_openings_are_the_legal_placements(product: str, seed: int) -> None:
    """F60, F61: openings are the legal placements beside the instances that are there."""
    geometry = knowledge().geometry[product]
    taken = drawn_instances(geometry, seed)

    for profile, slot in geometry.slots.items():
        legal = [
            start
            for start in slot.starts
            if geometry.find_starts((profile,), taken) is not None
            and all(not slot.interval(start) & geometry.slots[other.profile].interval(other.start) for other in taken)
        ]
        assert [start for _, start in placement_losses(geometry, taken, profile)] == legal


@pytest.mark.parametrize("product", GEOMETRIES)
@pytest.mark.parametrize("seed", range(20))
def test_an_instance_more_never_makes_room(product: str, seed: int) -> None:
    """F61: losses and headroom are shares of one GPU; an empty GPU has headroom 1, and no GPU has less than 0."""
    geometry = knowledge().geometry[product]
    taken = drawn_instances(geometry, seed)
    losses = [loss for profile in geometry.slots for loss, _ in placement_losses(geometry, taken, profile)]

    assert headroom(geometry) == 1.0
    assert 0.0 <= headroom(geometry, taken) <= 1.0
    assert all(0.0 <= loss <= 1.0 for loss in losses)


def test_small_instance_goes_where_large_ones_cannot_start() -> None:
    """F61, P14: on an empty GPU the first 1g leaves room for 4g and 3g; beside a used GPU it leaves the empty one
    alone."""
    empty, used = GPULayout("a", H100), GPULayout("b", H100, (Instance("3g.40gb", 4),))

    assert least_spoiling([empty], "1g.10gb") == InstancePlacement(0, 6)
    assert least_spoiling([empty, used], "1g.10gb") in {InstancePlacement(1, start) for start in range(4)}
    assert least_spoiling([GPULayout("c", H100, (Instance("7g.80gb", 0),))], "1g.10gb") is None


def test_allocator_takes_the_first_place_that_is_free() -> None:
    """F61: in the order of the list, whatever gpu-usher would choose; if one does not fit, the search starts again."""
    layouts = [GPULayout("a", H100, (Instance("3g.40gb", 0),)), GPULayout("b", H100)]

    assert first_fit(layouts, ["1g.10gb", "4g.40gb"]) == [InstancePlacement(0, 4), InstancePlacement(1, 0)]
    assert first_fit(layouts[1:], ["1g.10gb", "4g.40gb"]) == (InstancePlacement(0, 4), InstancePlacement(0, 0))
    assert first_fit(layouts[:1], ["7g.80gb"]) is None
    assert headroom_loss(layouts[:1], ["7g.80gb"]) is None


def partitioned_node(name: str, *gpus_: tuple[Instance, ...]) -> Node:
    """Make a node whose GPUs DRA partitions."""
    layouts = tuple(GPULayout(str(index), H100, taken) for index, taken in enumerate(gpus_))
    return replace(node(name, offers={}), free=FreeResources({}, uncounted=frozenset({SMALL, LARGE}), layouts=layouts))


def test_node_where_the_slice_spoils_least_scores_highest() -> None:
    """F61: a hole is better than a GPU with one small instance, and that is better than an empty GPU."""
    pod_demand = demand(pod(gpus(1, SMALL)))
    hole = partitioned_node("hole", (Instance("4g.40gb", 0), Instance("2g.20gb", 4)))
    begun = partitioned_node("begun", (Instance("1g.10gb", 6),))
    whole = partitioned_node("whole", ())

    scores = [mig_layout(pod_demand, candidate) for candidate in (hole, begun, whole)]

    assert scores == sorted(scores, reverse=True)
    assert len({*scores}) == 3


def test_node_without_place_or_with_too_few_gpus_for_so_many_is_worth_nothing() -> None:
    assert mig_layout(demand(pod(gpus(1, SMALL))), partitioned_node("full", (Instance("7g.80gb", 0),))) == 0.0
    assert mig_layout(demand(pod(gpus(2**40, SMALL))), partitioned_node("n", ())) == 0.0


def test_score_says_nothing_where_no_slice_is_asked_by_name() -> None:
    assert mig_layout(demand(pod(gpus(1))), node()) == NEUTRAL


def test_idle_nodes_of_fixed_slices_are_kept_for_another_cut() -> None:
    """F61: busy nodes come before idle ones, and fuller nodes before emptier ones; the pod fits on each of them."""
    pod_demand = demand(pod(gpus(1, SMALL)))
    offers = {SMALL: 8, LARGE: 4}
    idle, begun, fuller = (node(used=used, offers=offers) for used in ({}, {LARGE: 1}, {LARGE: 3}))

    scores = [mig_layout(pod_demand, candidate) for candidate in (idle, begun, fuller)]

    assert all(judge(pod_demand, candidate, True) is None for candidate in (idle, begun, fuller))
    assert scores[0] == 0.0
    assert 0.5 < scores[1] < scores[2] <= 1.0


STATES = st.builds(
    lambda name, seed: (name, drawn_instances(knowledge().geometry[name], seed)),
    st.sampled_from(GEOMETRIES),
    st.integers(0, 10**6),
)


@settings(max_examples=40)
@given(
    st.lists(STATES, max_size=4),
    st.sampled_from(["1g.10gb", "1g.5gb", "3g.40gb", "2g.48gb", "9g.1gb"]),
    st.integers(0, 40),
    st.booleans(),
)
def test_score_is_within_0_and_1_and_the_same_each_time(
    gpus_: list[tuple[str, tuple[Instance, ...]]], profile: str, amount: int, served: bool
) -> None:
    """Mixed products, profiles that they lack, and more instances than fit (docs/reference/scores.md#totals)."""
    layouts = tuple(
        GPULayout(str(index), knowledge().geometry[name], taken) for index, (name, taken) in enumerate(gpus_)
    )
    resource = f"nvidia.com/mig-{profile}"
    where = replace(
        node(offers={}), free=FreeResources({}, uncounted=frozenset({resource} if served else {}), layouts=layouts)
    )
    pod_demand = demand(pod(gpus(amount, resource)))

    score = mig_layout(pod_demand, where)

    assert 0.0 <= score <= 1.0
    assert mig_layout(pod_demand, where) == score
