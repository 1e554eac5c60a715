# SPDX-License-Identifier: Apache-2.0
"""Many strange inputs: each gives a valid answer or the documented error (F125; faults 7 and 22 to 33).

A finding names the target and the number of the input; `python -m tests.fuzz mutate 17` writes that input.
"""

import pytest

from tests.fuzz.campaign import RESULTS, Campaign, body_of, run, table
from tests.fuzz.led import PLAYED, mutate, play
from tests.fuzz.swelling import ROUTES, swollen
from tests.fuzz.targets import TARGETS
from tests.stepping import MOST_REFERENCES, longest

SHARE = 60_000
WHOLE = 1_020_000
SWOLLEN = 30
"""Inputs for each route. Before bodies were bounded, three such inputs for validate held the event loop for seconds."""
FLAT_MIB = 1.0
"""MiB per 100,000 inputs that still count as no growth: ten bytes an input, which is less than one kept object."""


def finished(inputs: int, rounds: int) -> Campaign:
    """Run a campaign, and return it at its end."""
    return list(run(inputs, rounds))[-1]


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    """Run the campaign once for all tests of this file."""
    return finished(SHARE, 6)


def test_no_strange_input_meets_anything_but_an_answer_or_the_documented_error(campaign: Campaign) -> None:
    """F125, P20."""
    assert campaign.crashes == []
    assert campaign.inputs == SHARE


@pytest.mark.parametrize(
    ("target", "outcomes"),
    [
        ("mutate", {"200 allowed", "200 denied", "200 patched", "400"}),
        ("validate", {"200 allowed", "200 denied", "400"}),
        ("filter", {"200 kept some", "200 kept none", "400"}),
        ("prioritize", {"200 scored", "400"}),
        ("preempt", {"200 kept some", "200 kept none", "400"}),
        ("line of a watch", {"read", "odd", "refused"}),
        ("snapshot", {"read", "refused"}),
        ("policy", {"read", "refused"}),
        ("case", {"as expected", "differs", "refused"}),
    ],
)
def test_inputs_are_strange_enough_to_be_refused_and_good_enough_to_be_judged(
    campaign: Campaign, target: str, outcomes: set[str]
) -> None:
    """F125: if every input were refused by the decoder, the fuzzer would test the decoder alone."""
    assert set(campaign.tallies[target].outcomes) == outcomes


def test_same_number_gives_the_same_input() -> None:
    for target in TARGETS:
        assert [body_of(target, number) for number in range(20)] == [body_of(target, number) for number in range(20)]


def test_same_input_is_seldom_sent_twice() -> None:
    for target in TARGETS:
        bodies = {body_of(target, number) for number in range(300)}

        assert len(bodies) > 200, target.name


def test_what_the_guided_fuzzer_plays_starts_good_and_keeps_its_target() -> None:
    """F125: this test runs without atheris, which the lock file of the tests does not have."""
    for index, (_, good) in enumerate(PLAYED):
        made = [mutate(bytes([index]) + body, 1 << 15, seed) for seed, body in enumerate((*good, b"") * 3)]

        assert all(play(bytes([index]) + body) for body in good)
        assert all(play(played) for played in made)
        assert sum(played[0] == index for played in made) > len(made) / 2


@pytest.mark.parametrize("name", ROUTES)
def test_swollen_input_never_holds_the_event_loop(name: str) -> None:
    """F125: lists, mappings, texts and lines of thousands of times the size cost no step over 50 ms of CPU."""
    ratios = {number: longest(ROUTES[name][0], swollen(name, number)) for number in range(SWOLLEN)}

    assert max(ratios.values()) < MOST_REFERENCES, ratios


@pytest.mark.long
def test_a_million_strange_inputs_crash_nothing_and_leave_memory_flat() -> None:
    """F125: the table of inputs and outcomes is written to tests/results."""
    campaign = finished(WHOLE, 51)

    RESULTS.write_text(table(campaign), "utf-8")
    assert campaign.crashes == []
    assert campaign.inputs >= 1_000_000
    assert campaign.growth_mib < FLAT_MIB
