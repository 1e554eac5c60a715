# SPDX-License-Identifier: Apache-2.0
"""The alert rules by the real promtool: each fires where it should, and is silent where it should be."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.rendering import DEPLOY
from tests.prometheus import find_promtool, promtool
from tests.telemetry.alert_cases import CASES, DEAD_COMPONENTS
from tests.telemetry.rulefile import APISERVER, alerts, rule_groups, unknown
from tests.telemetry.scrape import offered

WANTS_PROMTOOL = pytest.mark.skipif(isinstance(find_promtool(), str), reason=str(find_promtool()))


def checked(folder: Path, *words: str) -> str:
    """Run promtool on the rules, written as Prometheus reads them, and return its complaints."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(rule_groups()), "utf-8")
    return promtool(*words)


@WANTS_PROMTOOL
def test_rules_are_what_prometheus_reads(tmp_path: Path) -> None:
    """F96."""
    assert not checked(tmp_path, "check", "rules", "--lint=all", "--lint-fatal", str(tmp_path / "rules.yaml"))


def complaints(alert: str, series: dict[str, str], when: str, fires: bool, folder: Path) -> str:
    """Return promtool's complaint, or "", where an alert should fire, or should not, over these series at that time."""
    inputs = [{"series": key, "values": values} for key, values in series.items()]
    expression = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) > bool 0'
    expected: list[dict[str, Any]] = [{"labels": "{}", "value": 1}] if fires else []
    question = {"expr": expression, "eval_time": when, "exp_samples": expected}
    test = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m",
            "tests": [{"interval": "1m", "input_series": inputs, "promql_expr_test": [question]}]}  # fmt: skip
    (folder / "test.yaml").write_text(yaml.safe_dump(test), "utf-8")
    return checked(folder, "test", "rules", str(folder / "test.yaml"))


def scraped_from(container: str, series: dict[str, str]) -> dict[str, str]:
    """Add the label of the container, as a scrape does, so that series of two components can be together."""
    labelled = {}
    for selector, values in series.items():
        name, _, labels = selector.rstrip("}").partition("{")
        own = f"{labels}, " if labels else ""
        labelled[f'{name}{{{own}container="{container}"}}'] = values
    return labelled


@WANTS_PROMTOOL
@pytest.mark.parametrize("alert", CASES)
@pytest.mark.parametrize("fires", [True, False], ids=["fires", "is_silent"])
def test_alert(alert: str, fires: bool, tmp_path: Path) -> None:
    """F96, MET-04, fault 62: each fires in its own case, and is silent in a similar one."""
    bad, good, when = CASES[alert]

    assert not complaints(alert, bad if fires else good, when, fires, tmp_path)


@WANTS_PROMTOOL
@pytest.mark.parametrize("alert", [name for name in CASES if name.endswith("Down")])
@pytest.mark.parametrize("dead", DEAD_COMPONENTS)
def test_death_of_a_component_is_not_hidden_by_the_other(alert: str, dead: str, tmp_path: Path) -> None:
    """F96: webhook replicas and extenders export the same metrics, and each has its own alert of absence."""
    series, expected = DEAD_COMPONENTS[dead]

    assert not complaints(alert, series, "40m", alert in expected, tmp_path)


SHARED = [
    name
    for name, (bad, _, _) in CASES.items()
    if not name.endswith("Down")
    and not any("verb=" in expression or expression.startswith("apiserver_") for expression in bad)
]
"""Alerts on series that every component exports, unlike those of a verb, which one component serves."""


@WANTS_PROMTOOL
@pytest.mark.parametrize("alert", SHARED)
@pytest.mark.parametrize("ill", ["gpu-usher", "extender"])
def test_trouble_of_a_component_is_not_hidden_by_the_others_health(alert: str, ill: str, tmp_path: Path) -> None:
    """F96: the same series are good in one component and bad in the other."""
    bad, good, when = CASES[alert]
    well = "extender" if ill == "gpu-usher" else "gpu-usher"

    assert not complaints(alert, scraped_from(ill, bad) | scraped_from(well, good), when, True, tmp_path)


def test_documents_name_the_number_of_alerts_that_there_are() -> None:
    """F96: a number in prose becomes wrong unless a test compares it."""
    texts = {
        path: path.read_text("utf-8") for path in (DEPLOY / "README.md", DEPLOY.parent / "docs" / "correctness.md")
    }
    counts_by_path = {path: [int(count) for count in re.findall(r"(\d+) alert", text)] for path, text in texts.items()}

    assert all(counts_by_path.values())
    assert {path: set(counts) for path, counts in counts_by_path.items()} == {
        path: {len(alerts())} for path in counts_by_path
    }


def test_every_alert_has_a_case() -> None:
    """P17."""
    assert CASES.keys() == alerts().keys()


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    """F96: it has a summary, a description, a runbook and a severity."""
    for name, rule in alerts().items():
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}, name
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), name


@pytest.mark.parametrize("alert", CASES)
def test_every_metric_and_label_of_an_alert_exists(alert: str) -> None:
    """F96: our own are in our registry, those of the API server in a short list."""
    assert not unknown(alerts()[alert]["expr"], {**offered(), **APISERVER})


def test_what_does_not_exist_is_found() -> None:
    known_metrics = {"gpu_usher_a_total": frozenset({"verb"})}

    assert unknown('sum by (node) (gpu_usher_a_total{reason="x"}) > gpu_usher_b', known_metrics) == [
        "gpu_usher_b is no metric", "gpu_usher_a_total has no label reason", "grouping has no label node",
    ]  # fmt: skip
