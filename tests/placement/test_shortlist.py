# SPDX-License-Identifier: Apache-2.0
"""The shortlist: what is in it whatever the totals and traits are."""

from hypothesis import given
from hypothesis import strategies as st

from app.placement.engine import LESSER_SHARE
from app.placement.ranking import best_in_turn, best_of_each

TOTALS = st.lists(st.sampled_from([0.0, 0.2, 0.3, 0.5, 0.8, 0.9]), min_size=1, max_size=60)
MOST = st.integers(1, 20)
TURN = st.integers(0, 2**32 - 1)
ZONES = st.sampled_from(["a", "b", "c"])
"""Few enough for a list of three."""


@given(TOTALS)
def test_equal_nodes_take_turns(totals: list[float]) -> None:
    best = {position for position, total in enumerate(totals) if total == max(totals)}

    assert {best_in_turn(totals, turn) for turn in range(len(totals))} == best


@given(st.lists(st.tuples(st.sampled_from([0.2, 0.5, 0.8, 0.9]), ZONES), min_size=1, max_size=60), TURN)
def test_best_node_of_each_zone_is_named_unless_it_is_in_doubt(nodes: list[tuple[float, str]], turn: int) -> None:
    totals = [total for total, _ in nodes]
    best_of = {zone: max(total for total, own in nodes if own == zone) for _, zone in nodes}
    wanted = {zone for zone, total in best_of.items() if is_good(total, totals)}

    named = best_of_each(totals, [[zone for _, zone in nodes]], turn, 3)

    assert sorted(nodes[position][1] for position in named) == sorted(wanted)
    assert all(totals[position] == best_of[nodes[position][1]] for position in named)


@given(TOTALS, TURN, MOST)
def test_host_names_leave_the_best_nodes_in_order(totals: list[float], turn: int, most: int) -> None:
    """A value of each node's own is too fine for a group of its own."""
    named = best_of_each(totals, [range(len(totals))], turn, most)

    assert [totals[position] for position in named] == best_good(totals, most)


@given(TOTALS, TURN, MOST)
def test_wide_list_without_traits_is_the_best_nodes_in_order(totals: list[float], turn: int, most: int) -> None:
    named = best_of_each(totals, (), turn, most, wide=True)

    assert [totals[position] for position in named] == best_good(totals, most)


def is_good(total: float, totals: list[float]) -> bool:
    return total > LESSER_SHARE * max(totals) or total == max(totals)


def best_good(totals: list[float], most: int) -> list[float]:
    """List the totals of the best nodes that are not in doubt, best first."""
    return sorted((total for total in totals if is_good(total, totals)), reverse=True)[:most]
