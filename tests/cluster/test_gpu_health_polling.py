# SPDX-License-Identifier: Apache-2.0
"""GPU health is polled from exporters and from a fake Prometheus: what is read, reported, forgotten, and survived."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cluster import prometheus
from app.cluster.exporters import Exporters, read_exposition
from app.cluster.gpu_health_polling import FORGET_SECONDS, HealthPoller, HealthSource, find_source
from app.cluster.prometheus import Prometheus, read_answer
from app.cluster.reflector import Clock
from app.nodes.gpu_health import Health, MetricSample
from app.settings import Settings
from app.telemetry.logs import LOGGER
from app.telemetry.metrics import Metrics
from app.values.errors import BadInput, SourceError
from app.world.state import State
from tests.builders import knowledge
from tests.cluster.fake_exporter import FakeExporter, fake_exporter
from tests.controlplane.processes import free_port

XID = "DCGM_FI_DEV_XID_ERRORS"
ILL = Health(1, 0, ("XID 79: GPU has fallen off the bus",))
DCGM = knowledge().dcgm


class RecordingState(State):
    """A state that records the calls that it gets, in order."""

    def __init__(self) -> None:
        super().__init__(knowledge())
        self.calls: list[tuple[str, Health | None]] = []

    def put_health(self, name: str, health: Health | None) -> None:
        self.calls.append((name, health))


class Scene:
    """A poller of one source, with a clock that the test sets."""

    def __init__(self, source: HealthSource) -> None:
        self.now = 1000.0
        self.state = RecordingState()
        self.metrics = Metrics()
        clock = Clock(now=lambda: self.now, chance=lambda: 0.0)
        self.poller = HealthPoller(source, self.state, knowledge(), self.metrics, clock)

    async def poll(self, seconds: float = 30) -> list[tuple[str, Health | None]]:
        """Poll once, `seconds` later, and return the calls that the state got."""
        self.now += seconds
        self.state.calls.clear()
        await self.poller.poll()
        return list(self.state.calls)

    def polls(self, result: str) -> float:
        return self.metrics.registry.get_sample_value("gpu_usher_health_polls_total", {"result": result}) or 0.0


def play(source: HealthSource, test: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            await test(Scene(source))
        finally:
            await source.close()

    asyncio.run(run())


def exporters(*fakes: FakeExporter) -> Exporters:
    return Exporters([fake.url for fake in fakes], DCGM)


def test_nodes_are_told_when_their_health_changes_and_only_then() -> None:
    """F72, S6."""

    async def test(scene: Scene) -> None:
        exporter.say(XID, 0, Hostname="a")
        assert await scene.poll() == [("a", Health())]
        assert await scene.poll() == []
        exporter.say(XID, 79, Hostname="a")
        assert await scene.poll() == [("a", ILL)]
        exporter.say(XID, 0, Hostname="a")
        assert await scene.poll() == [("a", Health())]
        exporter.values.clear()
        assert await scene.poll() == [("a", None)]

    with fake_exporter() as exporter:
        play(exporters(exporter), test)


def test_exporters_of_several_addresses_are_one_source_and_one_that_is_down_is_unknown() -> None:
    """F72, S6: the values of the other exporters still count."""

    async def test(scene: Scene) -> None:
        one.say(XID, 79, Hostname="a")
        two.say("DCGM_FI_DEV_XID_ERROR", 63, hostname="b")
        reported = dict(await scene.poll())
        assert reported["a"] == ILL
        assert reported["b"] is not None
        assert reported["b"].ailing == 1
        two.status = 500
        assert await scene.poll() == [("b", None)]
        assert (scene.polls("success"), scene.polls("partial")) == (1, 1)

    with fake_exporter() as one, fake_exporter() as two:
        play(exporters(one, two), test)


def test_name_is_resolved_and_every_address_is_asked_by_that_name() -> None:
    """F72, S6: a headless Service resolves to the addresses of all exporters."""

    async def test(scene: Scene) -> None:
        exporter.say(XID, 79, Hostname="a")

        assert await scene.poll() == [("a", ILL)]
        assert {headers["Host"] for headers in exporter.request_headers} == {f"localhost:{exporter.port}"}
        assert set(exporter.paths) == {"/metrics"}

    with fake_exporter() as exporter:
        play(Exporters([f"http://localhost:{exporter.port}"], DCGM), test)


def test_failed_polls_keep_what_is_known_for_three_minutes_and_then_forget_it() -> None:
    """F72: stale data must never refuse a node."""

    async def test(scene: Scene) -> None:
        exporter.say(XID, 79, Hostname="a")
        assert await scene.poll() == [("a", ILL)]
        exporter.status = 503
        assert await scene.poll(FORGET_SECONDS - 1) == []
        assert await scene.poll(1) == [("a", None)]
        assert scene.poller.status()["nodes"] == {"known": 0, "ill": 0, "ailing": 0}
        exporter.status = 200
        assert await scene.poll() == [("a", ILL)]

    with fake_exporter() as exporter:
        play(exporters(exporter), test)


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}", "http://no-such-host.invalid"], ids=["refused", "no name"])
def test_source_that_is_not_there_is_a_failure_in_words(url: str) -> None:
    """F72."""

    async def test(scene: Scene) -> None:
        assert await scene.poll() == []
        assert await scene.poll() == []
        assert scene.polls("error") == 2
        assert scene.poller.status()["error"]

    for source in (Exporters([url.format(port=free_port())], DCGM), Prometheus(url.format(port=free_port()), DCGM)):
        play(source, test)


def vector(*series: Any, **more: Any) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": series}, **more}).encode()


def xid_series(value: Any, **labels: Any) -> dict[str, Any]:
    return {"metric": {"__name__": XID, "node": "a", **labels}, "value": [1700000000.1, value]}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"status":"error","error":"x"}',
        b'{"status":"success","data":{"resultType":"matrix","result":[]}}',
        b'{"status":"success","data":{"resultType":"vector","result":{}}}',
        vector(1),
        vector({"metric": {"__name__": 1}, "value": [0, "1"]}),
        vector({"metric": {}, "value": [0]}),
        vector({"metric": {}, "value": [0, 79]}),
        b"[" * 100_000,
    ],
)
def test_answer_that_is_none_is_a_failure_and_keeps_what_is_known(body: bytes) -> None:
    """F72."""

    async def test(scene: Scene) -> None:
        server.body = vector(xid_series("79"))
        assert await scene.poll() == [("a", ILL)]
        server.body = body
        assert await scene.poll() == []
        assert scene.polls("error") == 1

    with fake_exporter() as server:
        play(Prometheus(server.url, DCGM), test)


def test_answer_of_a_million_series_is_refused_before_it_is_all_read() -> None:
    """F72."""

    async def test(scene: Scene) -> None:
        assert await scene.poll() == []
        assert scene.poller.status()["error"] == f"an answer of more than {prometheus.ANSWER_BYTES} bytes"

    with fake_exporter() as server:
        server.body = vector(*[xid_series("79", UUID="GPU")]) * 1_000_000
        play(Prometheus(server.url, DCGM), test)


def test_source_without_dcgm_is_told_apart_from_one_where_all_is_well() -> None:
    """F72: it may be the wrong Prometheus."""

    async def test(scene: Scene) -> None:
        assert await scene.poll() == []
        assert scene.polls("empty") == 1
        assert scene.poller.status()["error"] == "it has none of DCGM's health metrics"

    with fake_exporter() as server:
        server.body = vector()
        play(Prometheus(server.url, DCGM), test)


def test_one_line_is_logged_where_polls_end_otherwise_than_before(caplog: pytest.LogCaptureFixture) -> None:
    """F72."""

    async def test(scene: Scene) -> None:
        for status in (200, 200, 500, 500, 503, 200):
            server.status = status
            await scene.poll()

    with caplog.at_level(logging.INFO, LOGGER.name), fake_exporter() as server:
        server.body = vector(xid_series("0"))
        play(Prometheus(server.url, DCGM), test)

    assert [message for message in caplog.messages if "health" in message] == [
        "health of GPUs is read",
        "health of GPUs: error",
        "health of GPUs is read",
    ]


def test_token_is_read_at_every_poll_and_sent_to_nobody_else(tmp_path: Path) -> None:
    """F72: projected tokens are renewed, and a redirect is not followed."""
    token = tmp_path / "token"

    async def test(scene: Scene) -> None:
        token.write_text("one\n", "ascii")
        await scene.poll()
        token.write_text("two", "ascii")
        await scene.poll()
        token.unlink()
        await scene.poll()
        assert [headers.get("Authorization") for headers in server.request_headers] == ["Bearer one", "Bearer two"]
        assert scene.polls("error") == 1
        token.write_text("two\nX-Other: 1", "ascii")
        await scene.poll()
        server.status = 302
        token.write_text("two", "ascii")
        await scene.poll()
        assert (len(server.request_headers), scene.polls("error")) == (3, 3)

    with fake_exporter() as server:
        server.body = vector(xid_series("0"))
        play(Prometheus(server.url + "/prefix/", DCGM, token), test)
        assert server.paths[0].startswith("/prefix/api/v1/query?query=")


def test_run_ends_cleanly_when_it_is_cancelled() -> None:
    """F72: this also holds in the middle of a poll."""

    async def test() -> None:
        source = exporters(exporter)
        task = asyncio.create_task(HealthPoller(source, RecordingState(), knowledge(), Metrics()).run())
        while not exporter.request_headers:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with fake_exporter() as exporter:
        asyncio.run(test())


def test_values_that_are_no_number_are_a_problem_and_the_others_count() -> None:
    """F72."""
    series = [xid_series(value, UUID=str(index)) for index, value in enumerate(["NaN", "+Inf", "-Inf", "x", "", "79"])]

    polled = read_answer(vector(*series), DCGM)

    assert polled.samples == [MetricSample(XID, "a", "5", "", 79.0)]
    assert polled.problem == "5 values that are not numbers"


def test_warning_of_a_prometheus_is_a_problem_and_its_series_count() -> None:
    """F72: a store behind it may not have answered."""
    polled = read_answer(vector(xid_series("0"), warnings=["store down", "another"]), DCGM)

    assert (len(polled.samples), polled.problem) == (1, "store down")


@pytest.mark.parametrize(
    "url", ["", "prometheus:9090", "ftp://x", "http://", "http://x:y", "http://[", "http://x?q=1", "http://u:secret@x"]
)
def test_url_that_is_none_is_bad_input_that_says_no_password(url: str) -> None:
    """F72."""
    for read in (lambda: Prometheus(url, DCGM), lambda: Exporters([url], DCGM)):
        with pytest.raises(BadInput) as raised:
            read()
        assert "secret" not in str(raised.value)


def test_one_source_at_most_is_taken_and_a_token_needs_a_prometheus() -> None:
    """F72: both flags at once are bad input; without a flag there is no source."""
    assert find_source(Settings(), DCGM) is None
    with pytest.raises(BadInput, match="wants one of them"):
        find_source(Settings(prometheus="http://p", dcgm_exporters=("http://e",)), DCGM)
    with pytest.raises(BadInput, match="token"):
        find_source(Settings(prometheus_token_file=Path("t")), DCGM)


@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)), st.booleans())
def test_any_bytes_are_metrics_or_a_failure(tail: bytes, ours: bool) -> None:
    """F72: they are never a crash."""
    body = (XID.encode() + b'{Hostname="a",' if ours else b"") + tail
    for read in (read_exposition, read_answer):
        with contextlib.suppress(SourceError):
            read(body, DCGM)


LABEL = st.text('abXY_\\"{}=, \n}79#\t', max_size=6)


@given(st.lists(st.tuples(LABEL, LABEL, LABEL), max_size=4))
def test_any_line_of_a_metric_that_is_read_is_a_sample_or_a_failure(parts: list[tuple[str, str, str]]) -> None:
    """F72: it is never a crash."""
    lines = "".join(f'{XID}{{{name}="{value}"}} {end}\n' for name, value, end in parts)
    with contextlib.suppress(SourceError):
        read_exposition(lines.encode(), DCGM)
