# SPDX-License-Identifier: Apache-2.0
"""The model of kube-scheduler against examples: how many nodes it looks at, which, their in-tree scores, its choice."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.placement.ranking import HIGHEST
from app.schedulerconfig.write import EXTENDER_WEIGHT
from tests.bench.simulate.scheduler import (
    POINT,
    balanced_allocation,
    find_feasible,
    least_allocated,
    nodes_to_find,
    select,
)


@pytest.mark.parametrize(
    ("nodes", "percent", "expected"),
    [
        pytest.param(99, 0, 99, id="small: all"),
        pytest.param(100, 0, 100, id="50 %, at least 100"),
        pytest.param(1000, 0, 420, id="recorded of a real scheduler"),
        pytest.param(1213, 0, 497, id="the trace: 41 %"),
        pytest.param(5000, 0, 500, id="10 %"),
        pytest.param(10_000, 0, 500, id="never under 5 %"),
        pytest.param(1213, 100, 1213, id="all by configuration"),
        pytest.param(1213, 5, 100, id="at least 100 by configuration"),
    ],
)
def test_search_ends_after_as_many_nodes_as_kube_scheduler_wants(nodes: int, percent: int, expected: int) -> None:
    """F52: the number is that of numFeasibleNodesToFind."""
    assert nodes_to_find(nodes, percent) == expected


@pytest.mark.parametrize(
    ("feasible", "start", "most", "positions", "following"),
    [
        pytest.param([0, 1, 2, 3], 0, 2, [0, 1], 2, id="the next begins where this one ended"),
        pytest.param([0, 1, 2, 3], 3, 2, [3, 0], 1, id="round the corner"),
        pytest.param([0, 5], 0, 1, [0], 5, id="nodes that do not fit count as looked at"),
        pytest.param([2, 4], 3, 5, [4, 2], 3, id="a whole turn ends where it began"),
        pytest.param([], 3, 5, [], 3, id="none"),
        pytest.param([1, 2], 0, 2, [1, 2], 0, id="exactly as many as wanted: all were looked at"),
    ],
)
def test_search_goes_on_where_the_last_one_ended(
    feasible: list[int], start: int, most: int, positions: list[int], following: int
) -> None:
    """F52: the model keeps kube-scheduler's nextStartNodeIndex."""
    assert find_feasible(feasible, start, most) == (positions, following)


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(0, 11), st.integers(1, 12))
def test_search_is_a_walk_node_by_node(fits: list[bool], start: int, most: int) -> None:
    """F52: the order is that of findNodesThatPassFilters with one worker."""
    nodes = len(fits)
    start %= nodes
    positions: list[int] = []
    looked_at = 0
    for step in range(nodes):
        if fits[(start + step) % nodes]:
            if len(positions) == most:
                break
            positions.append((start + step) % nodes)
        looked_at += 1

    assert find_feasible([index for index, fit in enumerate(fits) if fit], start, most) == (
        positions,
        (start + looked_at) % nodes,
    )


@pytest.mark.parametrize(
    ("requested", "allocatable", "least", "balanced"),
    [
        pytest.param((0, 0), (1000, 1000), 100, 100, id="empty"),
        pytest.param((500, 500), (1000, 1000), 50, 100, id="half"),
        pytest.param((3000, 1000), (4000, 10_000), (25 + 90) // 2, 67, id="1 - |0.75 - 0.1| / 2, cut off"),
        pytest.param((1001, 0), (1000, 1000), 50, 50, id="assumed beyond what is there"),
    ],
)
def test_in_tree_scores_are_those_of_kube_scheduler(
    requested: tuple[int, int], allocatable: tuple[int, int], least: int, balanced: int
) -> None:
    """F52: the formulas are those of least_allocated.go and balanced_allocation.go."""
    assert least_allocated(requested, allocatable) == least
    assert balanced_allocation(requested, allocatable) == balanced


def test_one_point_counts_what_the_written_configuration_makes_of_it() -> None:
    """F52: the weight on the wire is score x weight x MaxNodeScore / MaxExtenderPriority."""
    assert POINT == EXTENDER_WEIGHT * 100 // HIGHEST


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 200)), min_size=1, max_size=12), st.integers(0, 99))
def test_highest_sum_wins_and_equals_draw_lots(nodes: list[tuple[int, int]], seed: int) -> None:
    """F52: the model gives the same choice as computing every node's in-tree score."""
    sums = [100 * ours + own for ours, own in nodes]
    best = [index for index, total in enumerate(sums) if total == max(sums)]

    position = select([ours for ours, _ in nodes], lambda index: nodes[index][1], Random(seed))

    assert position == (best[0] if len(best) == 1 else Random(seed).choice(best))


def test_equals_are_drawn_evenly() -> None:
    """F52: as in selectHost; of 3,000 draws among three, each count is within five standard deviations."""
    rng = Random(51)

    drawn = Counter(select([1, 3, 3, 3], lambda _: 7, rng) for _ in range(3000))

    assert drawn.keys() == {1, 2, 3}
    assert all(870 <= count <= 1130 for count in drawn.values())
