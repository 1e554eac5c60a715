# SPDX-License-Identifier: Apache-2.0
"""The dashboard: its metrics exist, Prometheus can read its queries, and every metric of ours is on it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.prometheus import find_promtool, promtool
from tests.telemetry.dashboard import FILE, text
from tests.telemetry.rulefile import APISERVER, named, unknown
from tests.telemetry.scrape import offered


def panels() -> list[dict[str, Any]]:
    """List the panels that have queries."""
    return [panel for panel in json.loads(FILE.read_text("utf-8"))["panels"] if panel["type"] != "row"]


EXPRESSIONS = [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]


def test_file_is_what_its_table_makes() -> None:
    """F95: `python -m tests.telemetry.dashboard` writes it."""
    assert text() == FILE.read_text("utf-8")


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS, ids=[title for title, _ in EXPRESSIONS])
def test_every_metric_and_label_of_a_panel_exists(title: str, expression: str) -> None:
    """F95: our own are in our registry, those of the API server in a short list."""
    assert not unknown(expression, {**offered(), **APISERVER}), title


@pytest.mark.skipif(isinstance(find_promtool(), str), reason=str(find_promtool()))
def test_prometheus_reads_every_expression(tmp_path: Path) -> None:
    """F95: promtool checks them as recording rules, with Grafana's variables filled in."""
    filled = [expression.replace("$__rate_interval", "5m").replace("$job", ".+") for _, expression in EXPRESSIONS]
    rules = [{"record": f"panel:{index}:value", "expr": expression} for index, expression in enumerate(filled)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), "utf-8")

    assert not promtool("check", "rules", "--lint=none", str(tmp_path / "rules.yaml"))


def test_every_metric_of_ours_is_on_a_panel() -> None:
    """F95: a metric that nobody looks at is not worth having."""
    shown = {metric for _, expression in EXPRESSIONS for metric, _ in named(expression) if metric}
    ours = {name for name in offered() if not name.endswith(("_created", "_count", "_sum"))}
    families = {name for name in ours if not any(name + end in ours for end in ("_total", "_bucket"))}

    assert not families - shown


def test_panels_do_not_cover_each_other_and_have_numbers_of_their_own() -> None:
    shown = json.loads(FILE.read_text("utf-8"))["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in shown)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in shown}) == len(shown)
