# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus between exporters and the service: its labels are understood, and lost series are forgotten."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client import generate_latest
from typer.testing import CliRunner

from app.cli.verbs import app
from app.cluster.gpu_health_polling import HealthPoller
from app.cluster.prometheus import Prometheus, query, silent_registries
from app.nodes.gpu_health import Health
from app.telemetry.metrics import Metrics
from app.world.state import State
from tests.builders import knowledge, make_service
from tests.cluster.fake_exporter import FakeExporter, fake_exporter
from tests.prometheus import PROMETHEUS, Running, prometheus
from tests.running import running

SOON_SECONDS = 60
"""Seconds for each wait; with one scrape per second most waits take less than two."""
FRESH_SECONDS = 3
"""Largest age of a sample in seconds, where one is scraped every second."""
XID, REMAP = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_ROW_REMAP_FAILED"
ILL = Health(1, 0, ("XID 79: GPU has fallen off the bus",))


class Ledger(State):
    """A state that only keeps the current health of each node."""

    def __init__(self) -> None:
        super().__init__(knowledge())
        self.health: dict[str, Health] = {}

    def put_health(self, name: str, health: Health | None) -> None:
        self.health = {key: known_health for key, known_health in self.health.items() if key != name}
        if health is not None:
            self.health[name] = health


@pytest.fixture(scope="module")
def program() -> Path:
    path = PROMETHEUS.find()
    if isinstance(path, str):
        pytest.skip(path)
    return path


@contextmanager
def scraped(program: Path, folder: Path, labels: str = "") -> Iterator[tuple[FakeExporter, Running]]:
    """Run an exporter and a Prometheus that scrapes it; `labels` are those that the scrape configuration adds."""
    with fake_exporter() as exporter:
        target = f"{{targets: ['127.0.0.1:{exporter.port}'], labels: {{{labels}}}}}"
        with prometheus(program, folder, f"[{{job_name: dcgm, static_configs: [{target}]}}]") as server:
            yield exporter, server


def follow(url: str, test: Callable[[Ledger, HealthPoller], Awaitable[None]], forget_seconds: float = 180) -> None:
    """Poll a Prometheus ten times a second while a test runs."""

    async def run() -> None:
        ledger, source = Ledger(), Prometheus(url, knowledge().dcgm, None, FRESH_SECONDS)
        poller = HealthPoller(source, ledger, knowledge(), Metrics(), poll_seconds=0.1, forget_seconds=forget_seconds)
        task = asyncio.create_task(poller.run())
        try:
            await test(ledger, poller)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


async def until(what: str, true: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + SOON_SECONDS
    while not true():
        assert loop.time() < end, f"not in time: {what}"
        await asyncio.sleep(0.02)


def test_illness_comes_with_the_xid_goes_with_a_restart_and_is_unknown_without_the_exporter(
    program: Path, tmp_path: Path
) -> None:
    """F72, S6."""

    async def test(ledger: Ledger, poller: HealthPoller) -> None:
        exporter.say(XID, 0, Hostname="a")
        await until("it is known to be well", lambda: ledger.health == {"a": Health()})
        exporter.say(XID, 79, Hostname="a", err_code="79")
        await until("it is ill", lambda: ledger.health == {"a": ILL})
        exporter.values.clear()  # started again: other labels, no XID
        exporter.say(XID, 0, Hostname="a")
        await until("it is well again", lambda: ledger.health == {"a": Health()})
        exporter.say(XID, 79, Hostname="a")
        await until("it is ill", lambda: ledger.health == {"a": ILL})
        exporter.status = 500
        await until("it is unknown", lambda: ledger.health == {})
        assert poller.status()["error"] == "it has none of DCGM's health metrics"

    with scraped(program, tmp_path) as (exporter, server):
        follow(server.url, test)


def test_prometheus_that_is_gone_is_forgotten_after_the_limit(program: Path, tmp_path: Path) -> None:
    """F72: stale data must never refuse a node."""

    async def test(ledger: Ledger, poller: HealthPoller) -> None:
        exporter.say(XID, 79, Hostname="a")
        await until("it is ill", lambda: ledger.health == {"a": ILL})
        server.process.stop()
        await until("polls fail", lambda: poller.status()["error"] not in (None, ""))
        assert ledger.health == {"a": ILL}
        await until("it is forgotten", lambda: ledger.health == {})
        age = poller.age()
        assert age is not None
        assert age >= 3

    with scraped(program, tmp_path) as (exporter, server):
        follow(server.url, test, forget_seconds=3)


def test_nodes_and_both_names_of_a_metric_are_understood_as_prometheus_labels_them(
    program: Path, tmp_path: Path
) -> None:
    """F72, S6: honorLabels: false renames the exporter's labels, and a scrape configuration adds node labels."""
    pod = "dcgm-exporter-x7k2p"
    cases = [
        ("a", "", "Hostname", "a"),
        ("b", "", "hostname", "b"),
        ("c", "Hostname: prometheus-0", "Hostname", "c"),
        ("d", "hostname: prometheus-0", "hostname", "d"),
        ("e", "node: e", "Hostname", pod),
        ("f", "kubernetes_node: f", "hostname", pod),
        ("g", "node: g", "node", "said by the exporter"),
    ]
    expected = Health(2, 0, ("XID 79: GPU has fallen off the bus", "row remapping failed"))

    async def test(ledger: Ledger, _poller: HealthPoller) -> None:
        await until("each has two that are ill", lambda: ledger.health == {name: expected for name, *_ in cases})

    with ExitStack() as stack:
        targets = []
        for _name, added, label, value in cases:
            exporter = stack.enter_context(fake_exporter())
            exporter.say(XID, 13, gpu=0, **{label: value})
            exporter.say("DCGM_FI_DEV_XID_ERROR", 79, gpu=1, **{label: value})
            exporter.say(REMAP, 1, gpu=2, **{label: value})
            targets.append(f"{{targets: ['127.0.0.1:{exporter.port}'], labels: {{{added}}}}}")
        configs = f"[{{job_name: dcgm, static_configs: [{', '.join(targets)}]}}]"
        server = stack.enter_context(prometheus(program, tmp_path, configs))
        follow(server.url, test)


def test_sample_that_nobody_marked_as_ended_is_not_read_when_it_is_old(program: Path, tmp_path: Path) -> None:
    """F72: series with timestamps of their own get no staleness marker, and a plain query looks back five minutes."""
    labels = 'gpu="0",UUID="GPU-0",Hostname="a"'

    def shown(url: str, words: str) -> list[object]:
        answer = httpx.get(f"{url}/api/v1/query", params={"query": words}, trust_env=False).json()
        result: list[object] = answer["data"]["result"]
        return result

    async def test(ledger: Ledger, _poller: HealthPoller) -> None:
        start = int(httpx.get(f"{server.url}/api/v1/query?query=time()", trust_env=False).json()["data"]["result"][0])
        exporter.body = f"{XID}{{{labels}}} 79 {start * 1000}\n".encode()
        await until("Prometheus shows it", lambda: shown(server.url, XID))
        await until("we do not", lambda: not shown(server.url, query(knowledge().dcgm, FRESH_SECONDS)))
        await until("it is unknown", lambda: ledger.health == {})
        assert shown(server.url, XID)

    with scraped(program, tmp_path) as (exporter, server):
        follow(server.url, test)


def test_service_that_asks_a_prometheus_shows_it_and_is_ready_without(program: Path, tmp_path: Path) -> None:
    """F72: /statusz and /metrics show the ill node while it is known; /readyz does not depend on it."""
    service = make_service(tmp_path / "certs")
    folder = tmp_path / "prometheus"
    folder.mkdir()
    with scraped(program, folder) as (exporter, server):
        exporter.say(XID, 79, Hostname="h100-0")
        source = Prometheus(server.url, knowledge().dcgm)
        service.gpu_health = HealthPoller(
            source, service.state, knowledge(), service.metrics, poll_seconds=0.1, forget_seconds=1
        )
        with running(service) as clients:

            def state() -> dict[str, object]:
                section: dict[str, object] = clients.people.get("/statusz").json()["gpu_health"]
                return section

            asyncio.run(until("it is shown", lambda: state()["nodes"] == {"known": 1, "ill": 1, "ailing": 0}))
            asyncio.run(
                until(
                    "it is measured",
                    lambda: 'gpu_usher_health_nodes{state="ill"} 1.0' in clients.ops.get("/metrics").text,
                )
            )
            assert service.nodes["h100-0"].node_class.ill == 1
            server.process.stop()
            asyncio.run(until("it is forgotten", lambda: state()["nodes"] == {"known": 0, "ill": 0, "ailing": 0}))

            assert service.nodes["h100-0"].node_class.ill == 0
            assert clients.ops.get("/readyz").status_code == 200
            assert state()["source"] == server.url
            assert state()["error"]


def test_doctor_names_the_registry_that_does_not_answer_and_since_when(program: Path, tmp_path: Path) -> None:
    """F167, F87: from the gauge of the replicas, the longest silence of several."""
    metrics = Metrics()
    for registry, seconds in (("nvcr.io", 600), ("r.example:5000", 0)):
        metrics.registry_silence.labels(registry).set(seconds)

    async def silence() -> dict[str, float]:
        found: dict[str, float] = {}
        while not found:
            await asyncio.sleep(0.02)
            found = await silent_registries(server.url)
        return found

    with scraped(program, tmp_path) as (exporter, server):
        exporter.body = generate_latest(metrics.registry)
        found = asyncio.run(asyncio.wait_for(silence(), SOON_SECONDS))
        said = CliRunner().invoke(app, ["doctor", "--demo-fleet", "weekday", "--prometheus", server.url])

    assert found == {"nvcr.io": 600}
    assert re.search(r"RegistrySilent: does not answer since \d{4}-\d\d-\d\d \d\d:\d\dZ: images", said.output)
    assert "on Registry nvcr.io" in said.output
