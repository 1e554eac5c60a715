# SPDX-License-Identifier: Apache-2.0
"""The alert rules, and the metrics and labels that a PromQL expression names."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

MONITORING = Path(__file__).parent.parent.parent / "deploy" / "components" / "monitoring"

TARGET_LABELS = frozenset({"instance", "job", "namespace", "pod", "container"})
"""Labels that the scrape adds to each series."""
APISERVER = {
    "apiserver_admission_webhook_fail_open_count": frozenset({"name", "type"}),
    "apiserver_admission_webhook_rejection_count": frozenset(
        {"name", "type", "operation", "error_type", "rejection_code"}
    ),
    "apiserver_admission_webhook_request_total": frozenset({"name", "type", "operation", "code", "rejected"}),
    "apiserver_admission_webhook_admission_duration_seconds_bucket": frozenset(
        {"name", "type", "operation", "rejected", "le"}
    ),
    "apiserver_admission_match_condition_evaluation_errors_total": frozenset({"name", "kind", "type", "operation"}),
}
"""The API server's own metrics and their labels (k8s.io/apiserver pkg/admission/metrics/metrics.go)."""

_METRIC = re.compile(r"\b((?:gpu_usher|apiserver)_[a-z0-9_]+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")


def rule_groups() -> dict[str, Any]:
    """Return the rules of all files as Prometheus reads them: the spec of the operator's PrometheusRule."""
    specs = [yaml.safe_load(path.read_text("utf-8"))["spec"] for path in sorted(MONITORING.rglob("rules.yaml"))]
    return {"groups": [group for spec in specs for group in spec["groups"]]}


def alerts() -> dict[str, dict[str, Any]]:
    """Return the alerts by name."""
    return {rule["alert"]: rule for group in rule_groups()["groups"] for rule in group["rules"]}


def named(expression: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Iterate over the metrics of an expression, each with the labels that it selects; "" for labels grouped by."""
    for metric, matchers in _METRIC.findall(expression):
        yield metric, frozenset(_MATCHER.findall(matchers))
    for grouping in _GROUPING.findall(expression):
        yield "", frozenset(filter(None, (label.strip() for label in grouping.split(","))))


def unknown(expression: str, known_metrics: dict[str, frozenset[str]]) -> list[str]:
    """List the metrics of an expression that do not exist, and the labels that none of its metrics has."""
    named_labels = list(named(expression))
    metrics = {metric for metric, _ in named_labels if metric}
    problems = [f"{metric} is no metric" for metric in metrics if metric not in known_metrics]
    everywhere = TARGET_LABELS.union(*(known_metrics.get(metric, frozenset()) for metric in metrics))
    for metric, labels in named_labels:
        has = (known_metrics.get(metric, frozenset()) | TARGET_LABELS) if metric else everywhere
        problems += [f"{metric or 'grouping'} has no label {label}" for label in sorted(labels - has)]
    return problems
