# SPDX-License-Identifier: Apache-2.0
"""The history that is recorded from exporters: the made week, any looks at all, and bad ones."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cluster.exporters import read_exposition
from app.usage.history import History, Window, idle_seconds, with_sharing
from app.usage.looks import SLOT_SECONDS
from app.usage.table import By, usage_report
from tests.usage.expectations import expect_true
from tests.usage.made_week import (
    END,
    ENGINE,
    HOURS,
    MEMORY,
    START,
    UTIL,
    Series,
    exposition,
    looks,
    made_week,
    truths,
)
from tests.usage.recording import DCGM, NEW, USAGE, Recording
from tests.usage.test_prometheus_week import IDLE

SCRAPE = 60


@pytest.fixture(scope="module")
def made() -> list[Series]:
    return made_week(SCRAPE)


@pytest.fixture(scope="module")
def week(made: list[Series]) -> History:
    """The made week, as it was seen by the end of it."""
    recording = Recording()
    for second, samples in looks(made):
        recording.now = second
        recording.history.take(samples)
    recording.now = END
    return with_sharing(recording.read(HOURS * 3600))


def test_figures_of_the_made_week_equal_the_slow_calculation(week: History, made: list[Series]) -> None:
    """F150: as those of a Prometheus do, for every pod of it."""
    by_pod = {row.of: row for row in usage_report(week, By.Pod).rows}
    truth = list(truths(made, SCRAPE - 1))
    assert (week.window_seconds, set(by_pod)) == (SLOT_SECONDS, {one.pod for one in truth})
    for one in truth:
        expect_true(by_pod[one.pod], one)


def test_only_what_is_idle_for_certain_in_the_made_week_is_idle(week: History) -> None:
    """F150: for as long as a Prometheus says, but for a window."""
    by_pod = {row.of: row for row in usage_report(week, By.Pod).rows}
    assert {of: row.idle_hours for of, row in by_pod.items() if row.idle_now} == {
        pod: pytest.approx(hours - 0.25, abs=0.26) for pod, hours in IDLE.items()
    }
    assert {by_pod[f"share/{name}"].unit for name in ("one", "two", "claim-a", "claim-b")} == {"shared GPU"}
    assert by_pod["vision/train-0"].unseen_hours == pytest.approx(2, abs=0.26)


def test_scrape_in_text_is_read_as_what_was_written(made: list[Series]) -> None:
    """F150: a scrape of the made week, whose samples of no metric of health leave no other trace."""
    samples = next(samples for second, samples in looks(made) if second > START + 600_000)
    polled = read_exposition(exposition(samples).encode(), DCGM, USAGE)

    assert sorted(map(repr, polled.use)) == sorted(
        repr((metric, labels, float(value))) for metric, labels, value in samples
    )
    assert (polled.samples, polled.problem) == ([], None)


Minute = tuple[float, ...] | None
"""What exporters say of a GPU in a minute: the values of several; nothing where it is free; None: nobody answered."""
VALUES = st.sampled_from([0.0, 0.0, 0.01, 0.4, 1.0, math.nan, -1.0, math.inf])
MINUTES = st.one_of(st.none(), st.lists(VALUES, max_size=2).map(tuple))
IDLING: st.SearchStrategy[Minute] = st.just((0.0,))


@given(
    st.lists(st.one_of(IDLING, IDLING, IDLING, MINUTES), min_size=1, max_size=70),
    st.integers(0, 20),
    st.sampled_from([900, 1200, 1800, 3600]),
)
def test_any_looks_are_counted_by_the_minute_and_work_is_never_idle(
    minutes: Sequence[Minute], first: int, window: int
) -> None:
    """F150: against a count of single minutes, whatever minute windows begin at."""
    recording = Recording(NEW + 60 * first)
    recording.history.take([])
    for values in minutes:
        if values is None:
            recording.now += 60
        else:
            recording.look(*values)
    recording.history.take([])
    history = recording.read(7200, window)
    kept = {hold.windows[-1].number: hold.windows for hold in history.holds}
    windows = {one.number: one for some in kept.values() for one in some}
    for number in range(history.windows):
        opens = history.start + number * window
        seen = [
            [value for value in values if value >= 0]
            for position, values in enumerate(minutes)
            if values and opens <= NEW + 60 * (first + position) < opens + window
        ]
        known = [max(values) for values in seen if values]
        one = windows.get(number, Window(number, 0))
        assert (one.held, one.known) == (len(seen), len(known))
        assert one.peak is None or 0 <= one.peak <= 1
        assert not known or (one.peak is not None and one.peak >= min(1, max(known)))
        assert 0 <= one.active <= one.known + 1e-6
        if idle_seconds(history.holds, history) > (history.windows - 1 - number) * window:
            assert len(known) >= 0.9 * window / 60
            assert max(known) <= 0.01
    total = sum(min(1, max(values)) for values in _known(minutes))
    assert sum(one.active for one in windows.values()) == pytest.approx(total, rel=1e-5)


def _known(minutes: Sequence[Minute]) -> Iterator[list[float]]:
    for values in minutes:
        if known := [value for value in values or () if value >= 0]:
            yield known


def test_gpu_is_idle_only_once_it_was_seen_for_all_of_the_time() -> None:
    """F150: the history begins with the process, says so, and a GPU that was not seen before is not idle before."""
    recording = Recording()
    for _ in range(59):
        recording.look(0.0)
    assert recording.idle() == 3600
    recording = Recording()
    for _ in range(50):
        recording.look(0.0)
    assert (recording.idle(), recording.idle(2700, 900)) == (0, 2700)
    (problem,) = recording.read(3600).problems
    assert problem.startswith("recorded since 2027-01-15 08:00 UTC by one replica")


@pytest.mark.parametrize(
    ("values", "metric", "labels"),
    [
        ((math.nan,), ENGINE, {}),
        ((-1.0,), ENGINE, {}),
        ((0.0,), MEMORY, {}),
        ((0.0,), UTIL, {"GPU_I_ID": "7"}),
        ((0.0, 0.9), ENGINE, {}),
        ((0.9, 0.0), ENGINE, {}),
        ((0.0,), ENGINE, {"pod": ""}),
        ((0.0,), ENGINE, {"pod": "nvidia-dcgm-exporter-abcde"}),
        ((0.0,), ENGINE, {"pod": "p" * 254}),
        ((), ENGINE, {}),
    ],
)
def test_bad_looks_make_no_gpu_idle(values: tuple[float, ...], metric: str, labels: dict[str, Any]) -> None:
    """F150: no value, another's value, one of two exporters that stands still, nobody's GPU, and no look."""
    recording = Recording()
    for _ in range(60):
        recording.look(*values, metric=metric, **labels)
    assert recording.idle() == 0


def test_gap_ends_what_is_known_and_an_exporter_that_comes_back_begins_anew() -> None:
    """F150: six lost minutes of an hour are too many for idleness, and no value stands for them."""
    recording = Recording()
    for minute in range(60):
        if 20 <= minute < 27:
            recording.now += 60
        else:
            recording.look(0.0)
    (hold,) = recording.read(3600, 900).holds
    assert [window.known for window in hold.windows] == [15, 8, 15, 15]
    assert (recording.idle(), recording.idle(3600, 900)) == (0, 1800)
