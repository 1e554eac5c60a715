# SPDX-License-Identifier: Apache-2.0
"""Tracing: a span of each verb reaches a real OTLP receiver; without a receiver, or switched off, it costs nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.tracing import REMEDY, Tracing
from app.server.service import Service
from app.values.errors import BadInput
from tests.builders import gpus, make_service, pod, review
from tests.controlplane.processes import Process, free_port, wait_until
from tests.running import running
from tests.telemetry.collector import Collector, collecting, values

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
NOT_SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
SECRET = "hunter2"
SERVER = 2
"""SPAN_KIND_SERVER of trace.proto."""
BOUND_SECONDS = 60
"""Seconds for what takes a few at most."""


@pytest.fixture(autouse=True)
def standard_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the machine's own variables, and its proxy."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        yield receiver


def traced(folder: Path) -> tuple[Service, Tracing]:
    service = make_service(folder)
    service.tracing = Tracing()
    return service, service.tracing


def odd_pod() -> dict[str, Any]:
    made = pod(gpus(1, env=[{"name": "TOKEN", "value": SECRET}]), annotations={"products": "H100"})
    made["metadata"]["annotations"]["note"] = SECRET
    made["metadata"] |= {"labels": {"app": SECRET}, "name": SECRET}
    return made


def requests() -> dict[str, Any]:
    """Return a body for each of the five verbs."""
    names = ["t4-0", "t4-1"]
    return {
        "/mutate": review(odd_pod()),
        "/validate": review(odd_pod()),
        "/scheduler/filter": {"Pod": odd_pod(), "NodeNames": names},
        "/scheduler/prioritize": {"Pod": odd_pod(), "NodeNames": names},
        "/scheduler/preempt": {"Pod": odd_pod(), "NodeNameToMetaVictims": {}},
    }


def test_each_verb_sends_one_server_span_below_the_callers(collector: Collector, tmp_path: Path) -> None:
    """F97: one span per request, with the parent that traceparent names and the decision in the words of the log."""
    service, tracing = traced(tmp_path)

    with running(service) as clients:
        for path, body in requests().items():
            assert clients.tls.post(path, json=body, headers=SAMPLED).status_code == 200
    tracing.stop()

    spans = {span.name: span for span in collector.spans}
    assert sorted(spans) == sorted(f"POST {path}" for path in requests())
    assert len(collector.spans) == len(spans)
    assert {(span.trace_id.hex(), span.parent_span_id.hex(), span.kind) for span in spans.values()} == {
        (TRACE, PARENT, SERVER)
    }
    sent = values(spans["POST /scheduler/filter"]).items()
    attributes = {key: value for key, value in sent if key.startswith("gpu_usher")}
    assert attributes == {
        "gpu_usher.verb": "filter",
        "gpu_usher.decision": "none_fits",
        "gpu_usher.reasons": ["ProductNotAllowed"],
        "gpu_usher.policy_hash": service.policies.hash,
        "gpu_usher.uid": "u-1",
    }
    assert values(spans["POST /mutate"])["gpu_usher.uid"] == "r-1"
    assert collector.paths == {"/v1/traces"}


def test_nothing_of_a_pod_but_its_uid_is_sent(collector: Collector, tmp_path: Path) -> None:
    """F97: no name, label, annotation or variable is sent."""
    service, tracing = traced(tmp_path)

    with running(service) as clients:
        for path, body in requests().items():
            clients.tls.post(path, json=body)
    tracing.stop()

    assert len(collector.spans) == len(requests())
    assert all(SECRET.encode() not in body for body in collector.bodies)


def test_refused_request_has_its_status_on_the_span_and_other_routes_have_none(
    collector: Collector, tmp_path: Path
) -> None:
    """F97: only the five verbs, on the listener that the control plane calls, have spans."""
    service, tracing = traced(tmp_path)

    with running(service) as clients:
        assert clients.tls.post("/mutate", content=b"{").status_code == 400
        clients.tls.post("/nowhere", json={})
        clients.tls.post("/validate", json=review(pod()), headers=NOT_SAMPLED)
        clients.ops.get("/readyz")
        clients.people.get("/statusz")
    tracing.stop()

    (span,) = collector.spans
    assert values(span)["http.response.status_code"] == 400
    assert values(span)["http.route"] == "/mutate"


def test_service_names_itself_unless_the_environment_does(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """F97: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES are OpenTelemetry's standard variables."""
    for name in ("", "edge"):
        monkeypatch.setenv("OTEL_SERVICE_NAME", name)
        service, tracing = traced(tmp_path)
        with running(service) as clients:
            clients.tls.post("/mutate", json=review(pod()))
        tracing.stop()

    assert [resource["service.name"] for resource in collector.resources] == ["gpu-usher", "edge"]


@contextmanager
def process(folder: Path) -> Iterator[tuple[Process, int]]:
    """Run a traced service as a process, and yield it and the port of the verbs; it is stopped at the end."""
    tls, ops = free_port(), free_port()
    ports = ["--port", str(tls), "--ops-port", str(ops), "--ui-address", "off", "--certs", str(folder / "certs")]
    words = [sys.executable, "-m", "app.cli.main", "serve", "--demo", "--tracing", *ports]
    process = Process("usher", words, folder / "log", {**os.environ})
    try:
        wait_until("ready", lambda: _get(f"http://127.0.0.1:{ops}/readyz"), BOUND_SECONDS, process)
        yield process, tls
    finally:
        process.stop()


def mutate(port: int) -> int:
    url = f"https://127.0.0.1:{port}/mutate"
    return httpx.post(url, json=review(pod()), verify=False, trust_env=False).status_code


def test_process_sends_its_last_spans_when_it_is_asked_to_stop(collector: Collector, tmp_path: Path) -> None:
    """F97: the flag and the standard variable are those of the real process."""
    with process(tmp_path) as (traced_process, port):
        mutate(port)

        assert traced_process.stop() == 0
    assert [span.name for span in collector.spans] == ["POST /mutate"]


def _get(url: str) -> bool:
    try:
        return httpx.get(url, verify=False, trust_env=False).status_code == 200
    except httpx.HTTPError as error:
        raise ConnectionError(str(error)) from error


def test_collector_that_does_not_answer_holds_up_neither_requests_nor_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """F97: spans are dropped; the stop waits for a bounded time, whatever time-out the exporter has."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
    with collecting(unresponsive=True) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        with process(tmp_path) as (traced_process, port):
            answers = [mutate(port) for _ in range(12)]

            assert traced_process.stop() == 0
        assert answers == [200] * 12
        assert collector.contacted.is_set()


OFF = """
import asyncio, json, sys
from pathlib import Path
from app.server.composition import build
from app.server.listeners import Listeners
from app.settings import Settings
listeners = Listeners(build(Settings(demo=True, certs=Path(sys.argv[1]), port=0, ops_port=0, ui_address="127.0.0.1:0")))
async def made():
    return [server.config.app for server in listeners._servers()]
apps = asyncio.run(made())
print(json.dumps([len(apps), sorted(name for name in sys.modules if name.startswith("opentelemetry."))]))
"""


def test_switched_off_nothing_of_the_sdk_is_imported(collector: Collector, tmp_path: Path) -> None:
    """F97: FastAPI imports OpenTelemetry's bare interface; a standard variable alone switches nothing on."""
    environment = {**os.environ, "FASTAPI_OTEL_AUTO_CONFIGURE": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    command = [sys.executable, "-c", OFF, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)

    apps, imported = json.loads(done.stdout)

    assert apps == 3
    assert [name for name in imported if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))] == []


def test_missing_packages_are_named_with_their_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """F97: the error comes at the start, not at the first request."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)

    with pytest.raises(BadInput, match=r"^--tracing: opentelemetry\.\S+ is not installed: ") as caught:
        Tracing()

    assert REMEDY in str(caught.value)
    assert "tracing = [" in Path("pyproject.toml").read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "got 'collector:4318', wants http:// or https://"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "grpc://c", "got 'grpc://c', wants http:// or https://"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "got 'grpc', wants http/protobuf"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "9999", "--tracing: max_export_batch_size"),
    ],
)
def test_variable_that_cannot_be_meant_is_refused_at_the_start(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F97."""
    monkeypatch.setenv(name, value)

    with pytest.raises(BadInput) as caught:
        Tracing()

    assert words in str(caught.value)
