# SPDX-License-Identifier: Apache-2.0
"""MIG instances that start and end: the simulator neither loses nor doubles one, and our rule beats best-fit (F61)."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.knowledge.mig_geometry import GPULayout
from tests.bench.churn import BY_NODE, GEOMETRY, MIXES, POLICIES, Arrival, Chosen, Fleet, arrivals, churn
from tests.bench.mig import OURS, STRONGEST, mean_gain, measure
from tests.placement.least_spoiling import least_spoiling


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(MIXES)),
    st.sampled_from(sorted({**POLICIES, **BY_NODE})),
    st.floats(0.1, 3.0),
    st.integers(0, 10**6),
)
def test_slices_are_neither_lost_nor_given_twice(mix: str, policy: str, load: float, seed: int) -> None:
    """F60, F61: each placed instance is still there or has ended, has a legal start, and overlaps no other instance."""
    wishes = list(arrivals(mix, load, seed, 150, 16))

    outcome = churn({**POLICIES, **BY_NODE}[policy], wishes, 16)

    assert outcome.placed == outcome.ended + sum(map(len, outcome.left))
    for state in outcome.left:
        used = Counter(
            slot
            for profile, start in state
            for slot in range(start, start + GEOMETRY.slots[profile].length)
            if start in GEOMETRY.slots[profile].starts
        )
        assert all(count == 1 for count in used.values())
        assert sum(used.values()) == sum(GEOMETRY.slots[profile].length for profile, _ in state)
        assert GEOMETRY.occupancy(state).free_compute >= 0


@pytest.mark.parametrize("name", sorted({**POLICIES, **BY_NODE}))
def test_nothing_is_refused_while_all_gpus_are_idle(name: str) -> None:
    wishes = list(arrivals("uniform", 0.001, 1, 50, 96))

    assert churn({**POLICIES, **BY_NODE}[name], wishes).accepted_percent == 100.0


def test_fast_form_of_our_rule_places_as_the_rule_itself() -> None:
    """F61: the fast form chooses by GPU state instead of looking at every GPU."""

    def plain(fleet: Fleet, wish: Arrival) -> Chosen | None:
        layouts = [GPULayout("", GEOMETRY, state) for state in fleet.states]
        place = least_spoiling(layouts, wish.profile)
        return Chosen(*place) if place else None

    wishes = list(arrivals("uniform", 1.2, 5, 600, 24))

    assert churn(POLICIES[OURS], wishes, 24) == churn(plain, wishes, 24)


@pytest.mark.long
def test_our_rule_gains_what_the_table_says() -> None:
    """F61: the full measurement has ten seeds of 6,000 arrivals, five mixes and two loads."""
    played = measure(POLICIES, 10, 6_000)

    assert mean_gain(played, OURS, "best-fit")[0] >= 0.8
    assert min(cell.gain(OURS, base)[0] for cell in played for base in ("best-fit", STRONGEST)) >= -1.0
