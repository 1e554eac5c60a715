# SPDX-License-Identifier: Apache-2.0
"""Staleness and back-off of a watch, with a clock that is passed in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cluster.reflector import LONGEST_DELAY_SECONDS, BackOff, StreamHealth


@pytest.mark.parametrize(("after", "stale"), [(0, False), (29.9, False), (30, True), (1000, True)])
def test_without_a_stream_for_thirty_seconds_is_stale(after: float, stale: bool) -> None:
    """See docs/reference/listeners.md#staleness."""
    assert stale == StreamHealth(lost=100, heard=100).stale(100 + after)


@pytest.mark.parametrize(("silent", "stale"), [(0, False), (149.9, False), (150, True)])
def test_an_open_stream_silent_for_150_seconds_is_stale(silent: float, stale: bool) -> None:
    """Bookmarks come about once a minute (docs/reference/listeners.md#staleness)."""
    pulse = StreamHealth(lost=0, heard=0)
    pulse.established(50)
    pulse.received(100)

    assert stale == pulse.stale(100 + silent)


def test_a_stream_that_breaks_starts_the_clock_when_it_breaks() -> None:
    pulse = StreamHealth(lost=0, heard=0)
    pulse.established(10)

    assert pulse.ended(500) == 490
    assert not pulse.stale(529)
    assert pulse.stale(530)


def test_failed_tries_do_not_push_the_moment_of_loss_away() -> None:
    pulse = StreamHealth(lost=0, heard=0)
    pulse.established(10)
    pulse.ended(20)

    assert pulse.ended(45) == 0
    assert pulse.stale(50)


@given(st.lists(st.floats(0, 1), min_size=12, max_size=12))
def test_a_dead_server_is_asked_at_most_six_times_in_thirty_seconds(chances: list[float]) -> None:
    """CACHE-03, fault 5."""
    back_off = BackOff()
    at, tries = 0.0, 0
    for chance in chances:
        if at > 30:
            break
        tries += 1
        at += back_off.delay(0.0, chance)

    assert tries <= 6


@given(st.floats(0, 1), st.integers(0, 40))
def test_no_delay_is_longer_than_thirty_seconds(chance: float, tries: int) -> None:
    back_off = BackOff()

    assert all(0 < back_off.delay(0.0, chance) <= LONGEST_DELAY_SECONDS for _ in range(tries))


def test_a_stream_that_lived_a_minute_starts_afresh_at_once() -> None:
    """The API server ends every watch after some minutes, which is no reason to wait."""
    back_off = BackOff()
    for _ in range(8):
        back_off.delay(0.0, 0.5)

    assert back_off.delay(60.0, 0.5) == 0.0
    assert back_off.delay(0.0, 0.0) == 0.8
