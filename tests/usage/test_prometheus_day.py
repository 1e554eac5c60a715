# SPDX-License-Identifier: Apache-2.0
"""A random day of DCGM metrics in a real Prometheus: the figures equal those of an independent slow calculation."""

import asyncio
import datetime as dt
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from typer.testing import CliRunner

import app.cli.usage
from app.cli.verbs import app as usher_app
from app.cluster.prometheus import PrometheusClient, number, read_result, rows
from app.cluster.usage_polling import PrometheusUse, UsagePoller
from app.usage.queries import UseQueries
from app.usage.table import GPUUse, Hold, with_sharing
from app.world.state import State
from tests.builders import knowledge, policies, policy
from tests.prometheus import PROMETHEUS, Running, prometheus, promtool
from tests.usage.made_day import END, START, Truth, Unit, drawn_units, named_units, openmetrics

HOUR, DAY = 3600, 86_400
IDLE = {
    "idle-for-nine-hours": 9, "gap-of-two-hours": 4, "burst-between-two-looks": 239 / 60, "late": 3,
    "claim-a": 0, "claim-b": 0, "claim-c": 9,
}  # fmt: skip
"""Hours for which the named units are idle at the end of the day; all others are not known to be."""


@pytest.fixture(scope="module")
def units() -> list[Unit]:
    return [*named_units(), *drawn_units(Random(20))]


@pytest.fixture(scope="module")
def server(units: list[Unit], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    program = PROMETHEUS.find()
    if isinstance(program, str):
        pytest.skip(program)
    folder = tmp_path_factory.mktemp("day")
    with (folder / "day.om").open("w", encoding="utf-8") as file:
        file.writelines(openmetrics(units))
    assert promtool("tsdb", "create-blocks-from", "openmetrics", str(folder / "day.om"), str(folder / "data")) == ""
    with prometheus(program, folder, "[]") as running:
        yield running


def asked(url: str, seconds: int, series: int, *belows: float) -> GPUUse:
    """Ask all queries as for a fleet with so many series."""

    async def run() -> GPUUse:
        client = PrometheusClient(url, None)
        queries = UseQueries(knowledge().dcgm, knowledge().usage_metrics, END + 40.0, seconds, series, belows)
        try:
            for query in queries.queries(sizes=True):
                params = {"query": query.text, "time": str(queries.time)}
                answer = read_result(await client.ask("/api/v1/query", params, 1 << 24, 60.0), "vector")
                for row in rows(answer):
                    value = number(row.value[1])
                    queries.add(query, row.metric, math.nan if value is None else value)
        finally:
            await client.close()
        return queries.use(())

    return asyncio.run(run())


def read(url: str, seconds: float = DAY, end: float = END + 40.0) -> GPUUse:
    async def run() -> GPUUse:
        source = PrometheusUse(url, knowledge().dcgm, knowledge().usage_metrics, sizes=True)
        try:
            return await source.read(end, seconds, (0.01, 0.1))
        finally:
            await source.close()

    return with_sharing(asyncio.run(run()))


@pytest.mark.parametrize(
    ("seconds", "series", "step", "below"),
    [(DAY, 100, 60, 0.01), (6 * HOUR, 100, 60, 0.1), (12 * HOUR, 5_000, 900, 0.01), (DAY, 50_000, HOUR, 0.01)],
)
def test_figures_of_every_unit_equal_the_slow_calculation(
    server: Running, units: list[Unit], seconds: int, series: int, step: int, below: float
) -> None:
    """F141: held, known and active minutes, peaks, sharing and idleness, also in the longer steps of a large fleet."""
    use = asked(server.url, seconds, series, below)
    truth = {(hold.key, hold.device): hold for hold in Truth(units, END, seconds, step, series).holds(below)}

    assert (use.start, use.end, use.step_seconds) == (END - seconds, END, step)
    assert {(hold.key, hold.device) for hold in use.holds} == truth.keys()
    for hold in use.holds:
        expect_equal(hold, truth[hold.key, hold.device])


def expect_equal(hold: Hold, truth: Hold) -> None:
    """Compare what was read with what is true, except the node: it is the exporter's where it has no better."""
    figures = {name: getattr(truth, name) for name in ("held", "known", "active", "memory_known")}
    assert {name: getattr(hold, name) for name in figures} == pytest.approx(figures), truth
    assert hold.idle == pytest.approx(truth.idle), truth
    assert hold.part == pytest.approx(truth.part), truth
    same = {"node": "", "active": 0.0, "held": 0, "known": 0, "memory_known": 0, "idle": {}, "part": None}
    assert replace(hold, **same) == replace(truth, **same)  # type: ignore[arg-type]


def test_only_what_is_idle_for_certain_is_idle_and_for_as_long_as_it_is(server: Running) -> None:
    """F141: gaps, stale exporters, absent metrics sharers that work make no unit idle; no exporter holds one."""
    use = read(server.url)
    idle = {hold.pod: hold.idle[0.01] / HOUR for hold in use.holds if hold.namespace == "named" and hold.idle}

    assert {pod: hours for pod, hours in idle.items() if hours} == {
        pod: pytest.approx(hours, abs=0.02) for pod, hours in IDLE.items() if hours
    }
    assert "gpu-operator" not in {hold.namespace for hold in use.holds}
    assert {hold.pod for hold in use.holds if hold.shared} >= {"claim-a", "claim-b"}


def test_prometheus_without_the_metrics_knows_nothing(server: Running) -> None:
    """F141: before the day there was nothing."""
    assert read(server.url, DAY, START - 30 * DAY).holds == ()


def test_command_prints_the_table(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """F141, F82."""
    monkeypatch.setattr(app.cli.usage, "now", lambda: dt.datetime.fromtimestamp(END + 40, dt.UTC))
    words = ["usage", "--prometheus", server.url, "--since", "1d"]
    text = CliRunner().invoke(usher_app, words).stdout
    answer = json.loads(CliRunner().invoke(usher_app, [*words, "-o", "json"]).stdout)
    assert "24 hours" in text
    assert "not divisible" in text
    assert {row["of"] for row in answer["rows"]} == {"named", "team-0", "team-1", "team-2"}


def test_service_polls_who_is_idle_for_policies_and_for_the_page(server: Running) -> None:
    """F145, F147: idle for four hours."""

    async def run() -> UsagePoller:
        source = PrometheusUse(server.url, knowledge().dcgm, knowledge().usage_metrics)
        rule = policies(policy("p", "admission: {idle: {after: 4h}}"))
        poller = UsagePoller(source, lambda: rule, State(knowledge()), wall=lambda: END + 40.0)
        try:
            await poller.poll()
        finally:
            await source.close()
        return poller

    poller = asyncio.run(run())
    assert poller.status()["error"] is None
    assert sum(seconds >= 4 * 3600.0 for seconds in poller.idle_seconds[0.01]["named"]) == 3
    summary = poller.reading().summary
    assert summary is not None
    assert {row.of for row in summary.namespaces} == {"named", "team-0", "team-1", "team-2"}
