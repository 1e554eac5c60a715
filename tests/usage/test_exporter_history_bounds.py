# SPDX-License-Identifier: Apache-2.0
"""The history that is recorded from exporters: its bounds, its clock, and who reads it."""

import asyncio
import threading
from pathlib import Path

import pytest

from app.cluster import exporter_history
from app.cluster.exporter_history import KEPT_SECONDS
from app.cluster.exporters import Exporters, read_exposition
from app.cluster.state import State
from app.cluster.usage_polling import IdleSource, UsagePoller
from app.server.composition import build
from app.settings import Settings
from app.usage.looks import UseSample
from app.values.errors import SourceError
from tests.builders import knowledge, policies, policy
from tests.cluster.fake_exporter import fake_exporter
from tests.usage.made_week import (
    ENGINE,
)
from tests.usage.recording import DCGM, LABELS, NEW, USAGE, Recording


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
        "recorded since 2027-01-15 10:00 UTC by one replica of gpu-usher: earlier use is unknown",
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
