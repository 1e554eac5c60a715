# SPDX-License-Identifier: Apache-2.0
"""The alert rules, by the real promtool: each fires where it should, and is silent where it should be."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.alert_cases import CASES
from tests.monitoring.rulefile import APISERVER, alerts, rule_groups, unknown
from tests.monitoring.scrape import offered
from tests.prometheus import find_promtool, promtool

WANTS_PROMTOOL = pytest.mark.skipif(isinstance(find_promtool(), str), reason=str(find_promtool()))


def checked(folder: Path, *words: str) -> str:
    """Run promtool on the rules, written as Prometheus reads them; gives its complaints."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(rule_groups()), "utf-8")
    return promtool(*words)


@WANTS_PROMTOOL
def test_rules_are_what_prometheus_reads(tmp_path: Path) -> None:
    """F96."""
    assert not checked(tmp_path, "check", "rules", "--lint=all", "--lint-fatal", str(tmp_path / "rules.yaml"))


@WANTS_PROMTOOL
@pytest.mark.parametrize("alert", CASES)
@pytest.mark.parametrize("fires", [True, False], ids=["fires", "is_silent"])
def test_alert(alert: str, fires: bool, tmp_path: Path) -> None:
    """F96, MET-04, fault 62: each fires for what it is about, and is silent in its neighbourhood."""
    bad, good, when = CASES[alert]
    series = [{"series": key, "values": values} for key, values in (bad if fires else good).items()]
    expression = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) > 0'
    expected: list[dict[str, Any]] = [{"labels": "{}", "value": 1}] if fires else []
    question = {"expr": expression, "eval_time": when, "exp_samples": expected}
    test = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m",
            "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": [question]}]}  # fmt: skip
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test), "utf-8")

    assert not checked(tmp_path, "test", "rules", str(tmp_path / "test.yaml"))


def test_every_alert_has_a_case() -> None:
    """P17."""
    assert CASES.keys() == alerts().keys()


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    """F96: a summary, a description, a runbook, a severity."""
    for name, rule in alerts().items():
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}, name
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), name


@pytest.mark.parametrize("alert", CASES)
def test_every_metric_and_label_of_an_alert_exists(alert: str) -> None:
    """F96: ours by our own registry, the API server's by a short list."""
    assert not unknown(alerts()[alert]["expr"], {**offered(), **APISERVER})


def test_what_does_not_exist_is_found() -> None:
    known = {"gpu_usher_a_total": frozenset({"verb"})}

    assert unknown('sum by (node) (gpu_usher_a_total{reason="x"}) > gpu_usher_b', known) == [
        "gpu_usher_b is no metric", "gpu_usher_a_total has no label reason", "grouping has no label node",
    ]  # fmt: skip
