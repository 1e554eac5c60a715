# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes a running service, and the queries of the dashboard have answers.

The queries are sent as Grafana would, with its variables filled in; no Grafana is run.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.builders import gpus, make_service, pod, review
from tests.controlplane.processes import wait_until
from tests.prometheus import PROMETHEUS, prometheus
from tests.running import Running, running
from tests.telemetry.dashboard import FILE
from tests.telemetry.rulefile import MONITORING, named, rule_groups

SCRAPED_SECONDS = 30
"""Seconds for two scrapes, which take two."""
ANSWERED = "count(count_over_time(gpu_usher_requests_total[1m]) >= 2)"


@pytest.fixture(scope="module")
def program() -> Path:
    program = PROMETHEUS.find()
    if isinstance(program, str):
        pytest.skip(program)
    return program


def ask_everything(clients: Running) -> None:
    """Post to each verb, for an answer and for a refusal."""
    for document in (pod(), pod(gpus("500m"))):
        for verb in ("mutate", "validate"):
            clients.tls.post(f"/{verb}", json=review(document))
    arguments = {"Pod": pod(annotations={"products": "H100"}), "NodeNames": ["h100-1", "t4-0"]}
    for verb in ("filter", "prioritize"):
        clients.tls.post(f"/scheduler/{verb}", json=arguments)


def query(client: httpx.Client, expression: str) -> list[Any]:
    """Run an instant query, and return the series."""
    answer = client.get("/api/v1/query", params={"query": expression}).json()
    assert answer["status"] == "success", answer
    result: list[Any] = answer["data"]["result"]
    return result


def _families(clients: Running) -> list[Metric]:
    return list(text_string_to_metric_families(clients.ops.get("/metrics").text))


def test_prometheus_scrapes_us_and_the_dashboards_questions_have_answers(program: Path, tmp_path: Path) -> None:
    """S11, F90, F95: it scrapes the path of the PodMonitor, and each query over a metric with samples has series."""
    monitor = yaml.safe_load((MONITORING / "podmonitor.yaml").read_text("utf-8"))
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    panels = [panel for panel in json.loads(FILE.read_text("utf-8"))["panels"] if panel["type"] != "row"]
    questions = {
        f"{panel['title']}: {target['expr']}": target["expr"].replace("$__rate_interval", "1m").replace("$job", ".+")
        for panel in panels
        for target in panel["targets"]
    }

    with running(make_service(tmp_path / "certs")) as clients:
        ask_everything(clients)
        target = f"static_configs: [{{targets: ['{clients.ops.base_url.netloc.decode()}']}}]"
        configs = f"[{{job_name: gpu-usher, metrics_path: {endpoint['path']}, {target}}}]"
        with prometheus(program, tmp_path, configs) as server, httpx.Client(base_url=server.url, trust_env=False) as ui:
            wait_until("two scrapes", lambda: query(ui, ANSWERED), SCRAPED_SECONDS, server.process)
            answers = {name: query(ui, expression) for name, expression in questions.items()}
            sampled = {sample.name for family in _families(clients) for sample in family.samples}
            health = ui.get("/api/v1/targets").json()["data"]["activeTargets"]

    assert [(target["health"], target["lastError"]) for target in health] == [("up", "")]
    metrics = {name: {metric for metric, _ in named(expression) if metric} for name, expression in questions.items()}
    answerable = {name for name in questions if metrics[name] <= sampled}
    assert len(answerable) > len(questions) / 2
    assert {name for name in answerable if not answers[name]} == set()


def test_expressions_of_alerts_run_in_a_prometheus_that_scrapes_us(program: Path, tmp_path: Path) -> None:
    """S11, F96: Prometheus evaluates each over our own series, and a healthy service raises none."""
    rules = [rule for group in rule_groups()["groups"] for rule in group["rules"]]
    with running(make_service(tmp_path / "certs")) as clients:
        target = f"static_configs: [{{targets: ['{clients.ops.base_url.netloc.decode()}']}}]"
        configs = f"[{{job_name: gpu-usher, {target}}}]"
        with prometheus(program, tmp_path, configs) as server, httpx.Client(base_url=server.url, trust_env=False) as ui:
            scraped = "count(count_over_time(gpu_usher_build_info[1m]) >= 2)"
            wait_until("two scrapes", lambda: query(ui, scraped), SCRAPED_SECONDS, server.process)
            firing = {rule["alert"] for rule in rules if query(ui, rule["expr"])}

    assert firing == set()
