# SPDX-License-Identifier: Apache-2.0
"""The history that is recorded from exporters: the made week, any looks at all, bad ones, and its bounds."""

import asyncio
import math
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cluster import exporter_history
from app.cluster.exporter_history import KEPT_SECONDS, ExporterHistory
from app.cluster.exporters import Exporters, read_exposition
from app.cluster.state import State
from app.cluster.usage_polling import IdleSource, UsagePoller
from app.server.composition import build
from app.settings import Settings
from app.usage.history import History, Window, idle_seconds, with_sharing
from app.usage.looks import SLOT_SECONDS, UseSample
from app.usage.table import By, usage_report
from app.values.errors import SourceError
from tests.builders import knowledge, policies, policy
from tests.cluster.fake_exporter import fake_exporter
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
from tests.usage.test_prometheus_week import IDLE

DCGM, USAGE = knowledge().dcgm, knowledge().usage_metrics
SCRAPE = 60
LABELS = {"UUID": "GPU-1", "Hostname": "n", "namespace": "team", "pod": "p", "modelName": "A100"}
NEW = 1_800_000_000
"""A time at which a slot begins, for histories of a test."""


class Recording:
    """A history with a clock that the test sets."""

    def __init__(self, at: float = NEW) -> None:
        self.now = at
        self.unrecorded = 0
        self.history = ExporterHistory("http://e", DCGM, USAGE, self.drop, lambda: self.now)

    def drop(self, count: int) -> None:
        self.unrecorded += count

    def look(self, *values: float, metric: str = ENGINE, seconds: float = 60, **labels: Any) -> None:
        """Take a look at one pod's GPU, as several exporters tell of it, and let time pass."""
        self.history.take([(metric, {**LABELS, **labels}, value) for value in values])
        self.now += seconds

    def read(self, seconds: float, window: int | None = None) -> History:
        return asyncio.run(self.history.read(self.now, seconds, window))

    def idle(self, seconds: float = 3600, window: int | None = 3600) -> float:
        """Give for how long the one GPU has been idle."""
        history = self.read(seconds, window)
        return idle_seconds(history.holds, history)


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
        row, held = by_pod[one.pod], sum(one.held)
        known = [share for share in one.activity if share is not None]
        assert row.held_hours == pytest.approx(held / 60, abs=0.02), one.pod
        assert row.known_share == pytest.approx(len(known) / held, abs=0.001), one.pod
        mean = sum(known) / len(known) if known and not one.shared else None
        assert row.active_share == (None if mean is None else pytest.approx(mean, abs=0.002)), one.pod
        assert row.memory_peak_mib == (None if one.shared or one.memory is None else round(one.memory)), one.pod


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


def test_exporters_that_are_silent_are_no_history() -> None:
    """F150: before the first answer, and three minutes after the last one."""
    recording = Recording()
    with pytest.raises(SourceError, match="no exporter has answered yet"):
        recording.read(3600)
    recording.look(0.0)
    assert recording.read(3600).holds
    recording.now += 240
    with pytest.raises(SourceError, match="no exporter has answered for 5 minutes"):
        recording.read(3600)


def test_clock_that_is_set_back_begins_a_new_history() -> None:
    """F150: what was seen at a time that comes again would be mistaken for the present."""
    recording = Recording()
    for _ in range(60):
        recording.look(0.0)
    recording.now -= 70
    recording.look(0.0)
    assert recording.idle() == 3600
    recording.now -= 600
    recording.look(0.0)
    assert (recording.idle(), recording.idle(900, 900)) == (0, 0)


def test_history_keeps_a_week_and_forgets_who_was_not_seen_for_longer() -> None:
    """F150."""
    recording = Recording()
    recording.look(0.0, pod="gone", UUID="GPU-2")
    for _ in range(KEPT_SECONDS // 900 + 1):
        recording.look(0.5, seconds=900)
    recording.look(0.5)
    history = recording.read(14 * 86_400)
    assert [(hold.pod, sum(window.held for window in hold.windows)) for hold in history.holds] == [("p", 673)]
    assert len(history.problems) == 1


def test_slots_are_bounded_by_giving_up_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """F150: and the history says since when it is."""
    monkeypatch.setattr(exporter_history, "MOST_SLOTS", 10)
    recording = Recording()
    for _ in range(19):
        recording.look(0.0, seconds=900)
    recording.look(0.0, seconds=60)
    history = recording.read(20 * 900)
    assert sum(window.held for window in history.holds[0].windows) == 12
    assert history.problems == (
        "recorded since 2027-01-15 10:00 UTC by one replica of gpu-usher: what was before is unknown",
    )


def test_holds_are_bounded_and_those_without_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """F150: pods that ended long ago make room; who finds none is said and counted, and is not idle."""
    monkeypatch.setattr(exporter_history, "MOST_SERIES", 3)
    recording = Recording()
    for number in range(3):
        recording.look(0.0, pod=f"old-{number}", UUID=f"GPU-{number}", seconds=4000)
    recording.look(0.0, pod="new")
    assert {hold.pod for hold in recording.read(20_000).holds} == {"old-1", "old-2", "new"}
    for _ in range(2):
        for number in range(5):
            recording.look(0.0, pod=f"many-{number}", seconds=0)
        recording.now += 60
    assert {hold.pod for hold in recording.read(1800).holds} == {"new", "many-0", "many-1"}
    recording.look(0.0, pod="many-4", seconds=0)
    assert recording.unrecorded == 7
    assert "1 pods' GPUs are not recorded: there is room for 3" in recording.read(900).problems


def test_sample_with_a_time_long_ago_says_nothing_of_now() -> None:
    """F150: a page that goes on telling the last value, with its time."""
    text = "".join(f'{ENGINE}{{UUID="GPU-{at}",pod="p"}} 0 {at}\n' for at in (1_000_000_000_000, 32_503_680_000_000))
    assert [labels["UUID"] for _, labels, _ in read_exposition(text.encode(), DCGM, USAGE).use] == [
        "GPU-32503680000000"
    ]


def test_one_scrape_gives_health_and_use() -> None:
    """F150, F72: an exporter over HTTP, one that is down beside it."""
    recording = Recording()

    async def poll() -> int:
        source = Exporters([exporter.url, "http://127.0.0.1:1"], DCGM, recording.history)
        try:
            return len((await source.poll()).samples)
        finally:
            await source.close()

    with fake_exporter() as exporter:
        exporter.say("DCGM_FI_DEV_XID_ERRORS", 0, Hostname="n", namespace="team", pod="p")
        exporter.say(ENGINE, 0.5, Hostname="n", namespace="team", pod="p")
        assert asyncio.run(poll()) == 1
        assert len(exporter.paths) == 1
    recording.now += 60
    (hold,) = recording.read(900).holds
    assert (hold.pod, hold.node, hold.windows[-1].held, hold.windows[-1].peak) == ("p", "n", 1, 0.5)


def test_policy_counts_idle_gpus_of_recorded_use() -> None:
    """F150, F145: idle for four hours, of which the last look is a minute old."""
    recording = Recording()
    source: IdleSource = recording.history
    rule = policies(policy("p", "admission: {idle: {after: 4h}}"))
    poller = UsagePoller(source, lambda: rule, State(knowledge()), wall=lambda: recording.now)
    counts = []
    for _ in range(2):
        for _ in range(130):
            recording.look(0.0)
        asyncio.run(poller.poll())
        counts.append(poller.count("team", 4 * 3600.0, 0.01))
    recording.look(0.9)
    asyncio.run(poller.poll())
    assert (counts, poller.count("team", 4 * 3600.0, 0.01)) == ([0, 1], 0)


def test_readers_and_looks_do_not_disturb_each_other() -> None:
    """F150: they come in threads of their own."""
    recording = Recording()
    samples: list[UseSample] = [(ENGINE, {**LABELS, "UUID": f"GPU-{gpu}"}, 0.0) for gpu in range(40)]

    def take() -> None:
        for minute in range(200):
            recording.history.take(samples)
            recording.now = NEW + 60 * minute

    recording.history.take(samples)
    thread = threading.Thread(target=take)
    thread.start()
    while thread.is_alive():
        asyncio.run(recording.history.read(NEW + 60, 900))
    thread.join()
    assert len(recording.read(900).holds) == 40


def test_service_with_exporters_and_no_prometheus_has_the_history(tmp_path: Path) -> None:
    """F150: and with neither it has that of the sample fleet."""
    settings = Settings(demo=True, certs=tmp_path, dcgm_exporters=("http://127.0.0.1:1",))
    recording, plain = build(settings), build(Settings(demo=True, certs=tmp_path))

    assert recording.usage is not None
    assert plain.usage is not None
    assert recording.usage.status()["source"] == "http://127.0.0.1:1"
    assert plain.usage.status()["source"] != "http://127.0.0.1:1"
