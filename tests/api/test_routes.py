# SPDX-License-Identifier: Apache-2.0
"""Routes: what each listener answers, by role and state of health, and to whom."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.api.allowed_callers import RequireAllowedHost, is_loopback
from app.api.app import create_tls_app
from app.api.operations_routes import create_ops_app
from app.server.service import Service
from app.telemetry.metrics import Metrics
from app.web.api import create_web_app
from tests.api.conftest import Ask
from tests.builders import gpus, make_service, pod, review

ADMISSION = ["/mutate", "/validate"]
EXTENDER = ["/scheduler/filter", "/scheduler/prioritize", "/scheduler/preempt"]
BODIES: dict[str, Any] = {
    **{path: review(pod()) for path in ADMISSION},
    **{path: {"Pod": pod(), "NodeNames": ["t4-1", "h100-1", "t4-0", "x"]} for path in EXTENDER[:2]},
    EXTENDER[2]: {"Pod": pod(), "NodeNameToMetaVictims": {"h100-1": {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}}},
}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/mutate"),
        ("PUT", "/scheduler/filter"),
        ("DELETE", "/validate"),
        ("POST", "/scheduler/bind"),
        ("POST", "/mutate/"),
        ("POST", "/scheduler"),
        ("POST", "/Mutate"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("GET", "/metrics"),
        ("GET", "/readyz"),
        ("POST", "/" + "x" * 5000),
    ],
    ids=lambda part: str(part)[:24],
)
def test_tls_listener_answers_anything_else_with_404(service: Service, ask: Ask, method: str, path: str) -> None:
    """TLS-11. See docs/reference/listeners.md#routes."""
    answer = ask(create_tls_app(service, Metrics()), method, path, content=b"{}")

    assert answer.status_code == 404
    assert answer.json()["kind"] == "Status"
    assert answer.json()["code"] == 404
    assert len(answer.json()["message"]) < 300


@pytest.mark.parametrize("make", [create_web_app, lambda core: create_ops_app(core, Metrics())])
def test_other_listeners_answer_an_unknown_route_with_404_as_json(
    service: Service, ask: Ask, make: Callable[[Service], Any]
) -> None:
    answer = ask(make(service), "GET", "/nope")

    assert answer.status_code == 404
    assert isinstance(answer.json(), dict)


@pytest.mark.parametrize(
    ("role", "served"),
    [("all", ADMISSION + EXTENDER), ("admission", ADMISSION), ("extender", EXTENDER)],
    ids=["all", "admission", "extender"],
)
def test_role_serves_its_own_verbs_alone(service: Service, ask: Ask, role: str, served: list[str]) -> None:
    app = create_tls_app(service, Metrics(), role)

    statuses = {path: ask(app, "POST", path, json=body).status_code for path, body in BODIES.items()}

    assert statuses == {path: 200 if path in served else 404 for path in BODIES}


@pytest.mark.parametrize(
    ("change", "role", "status"),
    [
        pytest.param({}, "all", 200, id="all is well"),
        pytest.param({"synced": False}, "all", 503, id="not synced"),
        pytest.param({"synced": False}, "extender", 503, id="extender not synced"),
        pytest.param({"synced": False}, "admission", 200, id="admission needs no nodes"),
        pytest.param({"draining": True}, "all", 503, id="draining"),
        pytest.param({"draining": True}, "admission", 503, id="admission draining"),
    ],
)
def test_readiness_is_what_the_interface_says(
    ask: Ask, tmp_path: Path, change: dict[str, Any], role: str, status: int
) -> None:
    """P18: the body is always JSON and says why (docs/reference/listeners.md#probes)."""
    service = make_service(tmp_path, role=role)
    for name, value in change.items():
        setattr(service, name, value)

    answer = ask(create_ops_app(service, Metrics()), "GET", "/readyz")

    health = answer.json()
    assert status == answer.status_code
    assert {"ready", "policies", "certificate", "caches", "draining"} <= health.keys()
    assert health["ready"] is (status == 200)
    assert health["draining"] is change.get("draining", False)
    assert health["caches"]["nodes"]["synced"] is change.get("synced", True)
    assert health["policies"]["error"] is None


def test_startup_is_over_once_and_for_all(ask: Ask, tmp_path: Path) -> None:
    """It stays 200 after the first readiness, whatever happens later (docs/reference/listeners.md#probes)."""
    service = make_service(tmp_path)
    service.synced = False
    app = create_ops_app(service, Metrics())

    before = ask(app, "GET", "/startupz").status_code
    service.synced = True
    ask(app, "GET", "/readyz")
    service.synced = False

    assert before == 503
    assert ask(app, "GET", "/startupz").status_code == 200
    assert ask(app, "GET", "/readyz").status_code == 503


@pytest.mark.parametrize(("age_seconds", "status"), [(0, 200), (9, 200), (11, 503)])
def test_liveness_ends_when_the_event_loop_stops_beating(
    ask: Ask, tmp_path: Path, age_seconds: float, status: int
) -> None:
    """Fault 41: the heartbeat must be younger than 10 s (docs/reference/listeners.md#probes)."""
    service = make_service(tmp_path)
    service.beat -= age_seconds

    assert status == ask(create_ops_app(service, Metrics()), "GET", "/livez").status_code


def test_nothing_is_decided_without_a_view_of_the_cluster(ask: Ask, tmp_path: Path) -> None:
    """Filter returns Error, prioritize scores 0 and preempt a 503, while admission goes on.

    See docs/reference/listeners.md#staleness.
    """
    service = make_service(tmp_path)
    service.synced = False
    app = create_tls_app(service, Metrics())

    answers = {path: ask(app, "POST", path, json=body) for path, body in BODIES.items()}

    assert [answer.status_code for answer in answers.values()] == [200, 200, 200, 200, 503]
    assert answers["/scheduler/filter"].json()["Error"] == "gpu-usher: not synced yet"
    assert [score["Score"] for score in answers["/scheduler/prioritize"].json()] == [0, 0, 0, 0]
    assert answers["/scheduler/preempt"].json()["message"] == "gpu-usher: not synced yet"
    assert answers["/mutate"].json()["response"]["allowed"] is True


def test_shortlist_names_equal_nodes_and_keeps_the_reasons_of_the_others(ask: Ask, tmp_path: Path) -> None:
    """Nodes that are left out for their rank are in no map (docs/reference/scores.md#shortlist)."""
    everyone = create_tls_app(make_service(tmp_path / "all"), Metrics())
    short = create_tls_app(make_service(tmp_path / "short", filter_answer="shortlist"), Metrics())
    question = {"Pod": pod(), "NodeNames": ["a100-1", "h200-0", "a10-1", "t4-0", "t4-1", "cpu-0"]}
    full = ask(everyone, "POST", "/scheduler/filter", json=question).json()
    scores = ask(everyone, "POST", "/scheduler/prioritize", json={**question, "NodeNames": full["NodeNames"]}).json()

    answer = ask(short, "POST", "/scheduler/filter", json=question).json()

    assert next(score["Host"] for score in scores if score["Score"] == 10) in answer["NodeNames"]
    assert len(answer["NodeNames"]) < len(full["NodeNames"])
    assert answer["FailedAndUnresolvableNodes"] == full["FailedAndUnresolvableNodes"]
    assert answer["FailedNodes"] == full["FailedNodes"]


def test_node_full_in_our_view_alone_is_kept_behind_a_scheduler_and_counted(ask: Ask, tmp_path: Path) -> None:
    """The scheduler's own count is newer than ours by one pod (docs/reference/scores.md#counts)."""
    metrics = Metrics()
    behind = create_tls_app(make_service(tmp_path, recount="false"), metrics)
    question = {"Pod": pod(gpus(2)), "NodeNames": ["t4-0", "t4-1", "h200-0"]}

    assert ask(behind, "POST", "/scheduler/filter", json=question).json()["NodeNames"] == question["NodeNames"]
    assert metrics.registry.get_sample_value("gpu_usher_view_behind_total") == 1


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:8081", 200),
        ("localhost:8081", 200),
        ("LOCALHOST", 200),
        ("[::1]:8081", 200),
        ("evil.example", 403),
        ("evil.example:8081", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:8081", 403),
        ("", 403),
    ],
)
def test_loopback_listener_answers_only_loopback_names(service: Service, ask: Ask, host: str, status: int) -> None:
    """A web page cannot rebind its name to our address (docs/reference/listeners.md#routes)."""
    answer = ask(RequireAllowedHost(create_web_app(service)), "GET", "/statusz", headers={"Host": host})

    assert status == answer.status_code
    assert isinstance(answer.json(), dict)


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("::", False), ("10.0.0.1", False)],
)
def test_loopback_is_told_from_other_addresses(address: str, expected: bool) -> None:
    assert expected is is_loopback(address)


def test_status_names_each_policy_and_where_it_is_from(service: Service, ask: Ask) -> None:
    status = ask(create_web_app(service), "GET", "/statusz").json()

    assert {policy["name"] for policy in status["policies"]["loaded"]} == {
        "batch-inference", "default", "inference", "notebook", "training"
    }  # fmt: skip
    assert all(policy["from"] for policy in status["policies"]["loaded"])
    assert (status["role"], status["recount"], status["shadow"]) == ("all", True, False)


def test_page_escapes_what_a_node_says(ask: Ask, tmp_path: Path) -> None:
    odd = {"kind": "Node", "metadata": {"name": "n", "labels": {"nvidia.com/gpu.product": "<script>alert(1)</script>"}}}

    answer = ask(create_web_app(make_service(tmp_path, [odd])), "GET", "/")

    assert answer.status_code == 200
    assert "<script>" not in answer.text
    assert "&lt;script&gt;" in answer.text
