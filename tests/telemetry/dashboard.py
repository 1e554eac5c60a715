# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard as a table of panels: `python -m tests.telemetry.dashboard` writes the JSON."""

import json
from typing import Any

from tests.telemetry.panels import JOB, WEBHOOKS, Panel, gauge, quantiles, rate, used
from tests.telemetry.rulefile import MONITORING

FILE = MONITORING / "dashboard.json"
WIDTH, HEIGHT = 8, 7
"""Size of a panel in units of Grafana's grid of 24 columns, so that three panels are side by side."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "At a glance",
        (
            Panel("Replicas", ((f"count(gpu_usher_build_info{{{JOB}}})", "replicas"),), kind="stat"),
            Panel("Nodes known", (gauge("gpu_usher_nodes", "nodes"),), kind="stat"),
            Panel(
                "Slipped pods",
                (
                    gauge("gpu_usher_slipped_pods", "{{kind}}", "kind"),
                    (
                        f"max(increase(gpu_usher_namespace_limit_exceeded_total{{{JOB}}}[1d]))",
                        "GPUs beyond namespaceLimits",
                    ),
                ),
                kind="stat",
                about="GPU pods that run without our decision, or on a node that is refused to them, and GPUs beyond "
                "namespaceLimits in a day.",
            ),
            Panel("Certificates taken", (rate("gpu_usher_cert_reload_total", "result"),)),
            Panel(
                "Sets of policies",
                ((f"count(count by (hash) (gpu_usher_policy_info{{{JOB}}}))", "sets"),),
                kind="stat",
                about="1 where all replicas hold the same policies.",
            ),
            Panel(
                "Certificate in force for",
                (
                    (f"min(gpu_usher_serving_certificate_expiry_timestamp_seconds{{{JOB}}}) - time()", "left"),
                    (f"time() - max(gpu_usher_serving_certificate_start_timestamp_seconds{{{JOB}}})", "since"),
                    (f"min(gpu_usher_ca_expiry_timestamp_seconds{{{JOB}}}) - time()", "of its CA"),
                ),
                "s",
                "stat",
            ),
            Panel("Builds", ((f"count by (version) (gpu_usher_build_info{{{JOB}}})", "{{version}}"),), kind="stat"),
        ),
    ),
    (
        "Requests",
        (
            Panel("Requests by verb", (rate("gpu_usher_requests_total", "verb"),), "reqps"),
            Panel("Outcomes", (rate("gpu_usher_requests_total", "verb, outcome"),), "reqps"),
            Panel(
                "Time to answer",
                quantiles("gpu_usher_request_duration_seconds", "verb", JOB),
                "s",
                about="By the clock, body read. The API server waits 2 s (mutate) or 3 s (validate).",
            ),
        ),
    ),
    (
        "Decisions",
        (
            Panel(
                "Refusals at admission",
                (rate("gpu_usher_refusals_total", "reason", JOB + ', verb=~"mutate|validate"'),),
            ),
            Panel("Nodes refused in filter", (rate("gpu_usher_refusals_total", "reason", JOB + ', verb="filter"'),)),
            Panel("Decisions by policy", (rate("gpu_usher_policy_results_total", "policy, result"),)),
            Panel(
                "What our view lacks",
                (
                    rate("gpu_usher_view_behind_total", "job", legend="full in our view, kept"),
                    rate("gpu_usher_evictions_prevented_total", "job", legend="evictions prevented"),
                ),
            ),
            Panel(
                "Events on pods that wait",
                (
                    rate("gpu_usher_events_total", "result"),
                    gauge("gpu_usher_events_waiting", "held back by the limit of rate"),
                    rate("gpu_usher_wakes_total", "job", legend="pods woken"),
                ),
                about="One replica writes them: the one that holds the Lease.",
            ),
            Panel("Nodes with memory overrun", (gauge("gpu_usher_vram_overrun_nodes", "nodes"),)),
            Panel("Nodes with sick GPUs", (gauge("gpu_usher_health_nodes", "{{state}}", "state"),)),
            Panel(
                "Devices of DRA",
                (
                    gauge("gpu_usher_devices", "{{driver}} {{state}}", "driver, state"),
                    gauge("gpu_usher_device_pools", "pools of {{driver}} {{state}}", "driver, state"),
                ),
                about="A device of which two claims have shares is allocated twice.",
            ),
        ),
    ),
    (
        "View of the cluster",
        (
            Panel(
                "Since the last word of each kind",
                (gauge("gpu_usher_cache_age_seconds", "{{kind}}", "kind"),),
                "s",
                about="Bookmarks come once a minute; 150 s of silence is a stale view.",
            ),
            Panel("Objects known", (gauge("gpu_usher_cache_objects", "{{kind}}", "kind"),)),
            Panel(
                "Watches that ended, lists read",
                (
                    rate("gpu_usher_watch_restarts_total", "kind, reason"),
                    rate("gpu_usher_relists_total", "kind", legend="{{kind}} listed"),
                ),
            ),
            Panel(
                "Drift and unreadable objects",
                (
                    gauge("gpu_usher_cache_drift_objects", "{{kind}} differ", "kind"),
                    rate("gpu_usher_unreadable_objects_total", "kind", legend="{{kind}} unreadable"),
                ),
            ),
            Panel("Changes of nodes", ((f"max(deriv(gpu_usher_index_generation{{{JOB}}}[5m]))", "a second"),)),
            Panel(
                "Health of GPUs: age, polls",
                (gauge("gpu_usher_health_age_seconds", "age in s"), rate("gpu_usher_health_polls_total", "result")),
            ),
            Panel(
                "Images: registry silence, readings",
                (
                    gauge("gpu_usher_registry_silence_seconds", "{{registry}}: silence in s", "registry"),
                    rate("gpu_usher_image_readings_total", "outcome"),
                ),
            ),
        ),
    ),
    (
        "Use of GPUs",
        (
            Panel(
                "Held, by namespace", (used("gpu_usher_gpus_held"),), about="GPUs, MIG slices and shares, each apart."
            ),
            Panel(
                "Idle for certain, by namespace",
                (used("gpu_usher_gpus_idle"),),
                about="No activity, and known without a gap; what is unknown is never idle.",
            ),
            Panel("Mean activity of the last day", (used("gpu_usher_gpus_active_ratio"),), "percentunit"),
            Panel("Pods that wait", (gauge("gpu_usher_waiting_pods", "GPU pods"),)),
            Panel("Since use was read", (gauge("gpu_usher_use_age_seconds", "age"),), "s"),
        ),
    ),
    (
        "Trouble of our own",
        (
            Panel("Internal errors", (rate("gpu_usher_internal_errors_total", "where"),)),
            Panel(
                "Callers closed or turned away",
                (
                    rate("gpu_usher_closed_connections_total", "waiting_for"),
                    rate("gpu_usher_shed_requests_total", "job", legend="turned away"),
                ),
                about="Closed: what they were waited for. Turned away: 503, too many requests in hand.",
            ),
            Panel("Event loop blocked", (rate("gpu_usher_event_loop_blocked_total", "job", legend="over 250 ms"),)),
            Panel(
                "Lost log lines, large bodies",
                (
                    rate("gpu_usher_log_lines_lost_total", "why"),
                    rate("gpu_usher_oversized_bodies_total", "verb", legend="{{verb}} too large"),
                ),
            ),
            Panel(
                "Policies",
                (
                    gauge("gpu_usher_policy_error", "edit not taken"),
                    gauge("gpu_usher_policy_expired_exceptions", "expired exceptions"),
                    rate("gpu_usher_policy_loads_total", "result", legend="loads: {{result}}"),
                ),
            ),
        ),
    ),
    (
        "As the API server sees us",
        (
            Panel(
                "Calls by code", (rate("apiserver_admission_webhook_request_total", "name, code", WEBHOOKS),), "reqps"
            ),
            Panel(
                "Time to answer",
                quantiles("apiserver_admission_webhook_admission_duration_seconds", "name", WEBHOOKS),
                "s",
            ),
            Panel(
                "Let in without us, refused without us",
                (
                    rate("apiserver_admission_webhook_fail_open_count", "name", WEBHOOKS, "{{name}} let in"),
                    rate(
                        "apiserver_admission_webhook_rejection_count",
                        "name, error_type",
                        WEBHOOKS + ', error_type!="no_error"',
                    ),
                    rate(
                        "apiserver_admission_match_condition_evaluation_errors_total",
                        "name",
                        WEBHOOKS,
                        "{{name}} condition broken",
                    ),
                ),
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Write the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": _at(0, top, 24, 1), "panels": []})
        top += 1
        for index, panel in enumerate(row):
            panels.append(_panel(panel, _at(index % 3 * WIDTH, top + index // 3 * HEIGHT, WIDTH, HEIGHT)))
        top += -(-len(row) // 3) * HEIGHT
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        {
            "name": "job", "type": "query", "label": "Job", "datasource": SOURCE, "refresh": 2, "includeAll": True,
            "multi": True, "current": {"text": "All", "value": "$__all"},
            "query": {"query": "label_values(gpu_usher_build_info, job)", "refId": "job"},
        },
    ]  # fmt: skip
    return {
        "title": "gpu-usher",
        "uid": "gpu-usher",
        "tags": ["gpu-usher", "gpu", "kubernetes"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "panels": [{"id": number, **panel} for number, panel in enumerate(panels, 1)],
    }


def _at(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, position: dict[str, int]) -> dict[str, Any]:
    instant = panel.kind == "stat"
    targets = [
        {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend, "datasource": SOURCE}
        | ({"instant": True} if instant else {})
        for index, (expression, legend) in enumerate(panel.queries)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        **({"description": panel.about} if panel.about else {}),
        "datasource": SOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def text() -> str:
    """Write the dashboard as it is in the repository."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
