# SPDX-License-Identifier: Apache-2.0
"""A made week of DCGM metrics in a real Prometheus: the figures equal those of an independent slow calculation."""

import asyncio
import datetime as dt
import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

import app.cli.usage
from app.cli.verbs import app as usher_app
from app.cluster.usage_polling import PrometheusUse, UsagePoller
from app.usage.history import UseHistory, with_sharing
from app.usage.table import By, UsageRow, usage_report
from app.values.errors import SourceError
from app.world.state import State
from tests.builders import knowledge, policies, policy
from tests.prometheus import PROMETHEUS, Running, prometheus, promtool
from tests.usage.made_week import END, HOURS, START, Truth, made_week, openmetrics, truths

WINDOW = 900
IDLE = {"vision/ablation-a": 9, "nlp/idle-with-a-gap": 6, "nb/notebook": 3, "share/claim-a": 12, "share/claim-b": 12}
"""Hours for which GPUs are idle at the end of the week, by pod, as the series were made."""


def expect_true(row: UsageRow, truth: Truth) -> None:
    """Compare the figures of a row with what is true of its pod."""
    held, known = sum(truth.held), [share for share in truth.activity if share is not None]
    assert row.held_hours == pytest.approx(held / 60, abs=0.02), row
    assert row.known_share == pytest.approx(len(known) / held, abs=0.001), row
    mean = sum(known) / len(known) if known and not truth.shared else None
    assert row.active_share == (None if mean is None else pytest.approx(mean, abs=0.002)), row
    assert row.memory_peak_mib == (None if truth.shared or truth.memory is None else round(truth.memory)), row


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    program = PROMETHEUS.find()
    if isinstance(program, str):
        pytest.skip(program)
    folder = tmp_path_factory.mktemp("week")
    with (folder / "week.om").open("w", encoding="utf-8") as file:
        file.writelines(openmetrics(made_week()))
    assert promtool("tsdb", "create-blocks-from", "openmetrics", str(folder / "week.om"), str(folder / "data")) == ""
    with prometheus(program, folder, "[]") as running:
        yield running


def read(url: str, seconds: float, end: float = END + 60) -> UseHistory:
    async def run() -> UseHistory:
        source = PrometheusUse(url, knowledge().dcgm, knowledge().usage_metrics)
        try:
            return await source.read(end, seconds)
        finally:
            await source.close()

    return with_sharing(asyncio.run(run()))


@pytest.fixture(scope="module")
def history(server: Running) -> UseHistory:
    return read(server.url, HOURS * 3600)


@pytest.fixture(scope="module")
def truth() -> list[Truth]:
    return list(truths(made_week()))


def rows(history: UseHistory, by: By = By.Pod) -> dict[tuple[str, str], UsageRow]:
    return {(row.of, row.unit): row for row in usage_report(history, by).rows}


def test_figures_of_every_pod_equal_the_slow_calculation(history: UseHistory, truth: list[Truth]) -> None:
    """F141: GPU-hours held, known and active share, memory peak, of whole GPUs, MIG slices and shared GPUs."""
    by_pod = {row.of: row for row in usage_report(history, By.Pod).rows}
    assert (history.window_seconds, len(truth)) == (WINDOW, len(by_pod))
    for one in truth:
        expect_true(by_pod[one.pod], one)


def test_only_what_is_idle_for_certain_is_idle_and_for_as_long_as_it_is(history: UseHistory) -> None:
    """F141: gaps, values that are none, stale exporters and absent metrics make no GPU idle that may have worked."""
    by_pod = {row.of: row for row in usage_report(history, By.Pod).rows}
    assert {of: row.idle_hours for of, row in by_pod.items() if row.idle_now} == {
        pod: pytest.approx(hours, abs=0.5) for pod, hours in IDLE.items()
    }
    assert all((row.idle_hours or 0) <= IDLE.get(of, 0) for of, row in by_pod.items())


def test_what_cannot_be_known_is_unknown(history: UseHistory) -> None:
    """F141: no figure stands for what was not seen, or is of several pods together."""
    by_pod = {row.of: row for row in usage_report(history, By.Pod).rows}
    assert by_pod["nlp/no-activity"].active_share is None
    assert by_pod["nlp/no-activity"].known_share == 0
    assert by_pod["nlp/negative"].active_share is None
    assert by_pod["nlp/no-number"].known_share == pytest.approx(150 / HOURS, abs=0.001)
    assert {by_pod[f"share/{name}"].unit for name in ("one", "two", "claim-a", "claim-b")} == {"shared GPU"}
    assert by_pod["vision/train-0"].unseen_hours == pytest.approx(1.75, abs=0.26)


def test_exporter_and_finished_pods_hold_nothing(history: UseHistory) -> None:
    """F141: the exporter's own pod is the label of a target, and never a holder."""
    by_pod = {row.of: row for row in usage_report(history, By.Pod).rows}
    assert not [of for of in by_pod if of.startswith("gpu-operator/")]
    assert (by_pod["web/old"].held_now, by_pod["vision/train-0"].held_now) == (0, 0)


def test_rows_add_up_whatever_they_are(history: UseHistory) -> None:
    """F141: by namespace, owner, product and node."""
    totals = [sum(row.held_hours for row in usage_report(history, by).rows) for by in By]
    assert totals == [pytest.approx(totals[0])] * len(By)
    assert ("nlp/eval", "GPU") in rows(history, By.Owner)
    assert ("NVIDIA H100 80GB HBM3 1g.10gb", "MIG slice") in rows(history, By.Product)
    assert rows(history, By.Node)["a100-0", "GPU"].pods == 5


def test_long_histories_are_read_in_longer_windows_and_several_answers(
    server: Running, truth: list[Truth], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F141: the number of points is bounded, and the hours are the same."""
    monkeypatch.setattr("app.usage.reading.MOST_POINTS", 1700)
    monkeypatch.setattr("app.usage.reading.POINTS_AT_ONCE", 200)
    coarse = read(server.url, HOURS * 3600)
    assert coarse.window_seconds == 7200
    by_pod = {row.of: row for row in usage_report(coarse, By.Pod).rows}
    for one in truth:
        assert by_pod[one.pod].held_hours == pytest.approx(sum(one.held) / 60, abs=0.02), one.pod
        assert (by_pod[one.pod].idle_hours or 0) <= IDLE.get(one.pod, 0)
    monkeypatch.setattr("app.usage.reading.MOST_SERIES", 10)
    with pytest.raises(SourceError, match="wants at most 10: ask for less time"):
        read(server.url, HOURS * 3600)


def test_prometheus_without_the_metrics_gives_an_empty_history(server: Running) -> None:
    """F141: before the week there was nothing."""
    assert read(server.url, 7 * 86_400, START - 30 * 86_400).holds == ()


def test_command_prints_the_table(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """F141, F82."""
    monkeypatch.setattr(app.cli.usage, "now", lambda: dt.datetime.fromtimestamp(END + 60, dt.UTC))
    words = ["usage", "--prometheus", server.url, "--by", "namespace"]
    text = CliRunner().invoke(usher_app, words).stdout
    answer = json.loads(CliRunner().invoke(usher_app, [*words, "-o", "json"]).stdout)
    assert "168 hours, in windows of 15 minutes" in text
    assert "not divisible" in text
    assert {row["of"] for row in answer["rows"]} == {"vision", "nlp", "nb", "share", "web"}


def test_service_polls_who_is_idle_for_policies_and_for_the_page(server: Running) -> None:
    """F145, F147: idle for four hours, as the longer history has it; three hours of the notebook are too few."""

    async def run() -> UsagePoller:
        source = PrometheusUse(server.url, knowledge().dcgm, knowledge().usage_metrics)
        rule = policies(policy("p", "admission: {idle: {after: 4h}}"))
        poller = UsagePoller(source, lambda: rule, State(knowledge()), wall=lambda: END + 60.0)
        try:
            await poller.poll()
        finally:
            await source.close()
        return poller

    poller = asyncio.run(run())
    idle = {name: poller.idle_seconds[0.01].get(name, ()) for name in ("vision", "nlp", "nb", "share", "web")}
    counts = {name: sum(seconds >= 4 * 3600.0 for seconds in units) for name, units in idle.items()}
    assert counts == {"vision": 1, "nlp": 1, "nb": 0, "share": 2, "web": 0}
    summary = poller.reading().summary
    assert summary is not None
    assert {row.of for row in summary.namespaces} <= counts.keys()
    assert sum(len(units) for units in summary.units.values()) == sum(row.held_now for row in summary.namespaces)
