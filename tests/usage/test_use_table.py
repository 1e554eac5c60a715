# SPDX-License-Identifier: Apache-2.0
"""The queries without a Prometheus, the table of use, owners, and the metrics that are read."""

import math
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cluster.files import read_knowledge
from app.usage.queries import (
    DAY,
    MOST_POINTS,
    MOST_SERIES,
    STEPS,
    Figure,
    Query,
    UseQueries,
    count_query,
    step_seconds,
)
from app.usage.table import By, GPUUse, usage_report, with_sharing
from app.usage.workloads import owner_by_name, owners_of, workload_of
from app.values.errors import KnowledgeError, SourceError
from tests.builders import knowledge
from tests.usage.polls import hold

NOW = 1_790_121_640.0
END = 1_790_121_600
LABELS = {"UUID": "GPU-1", "namespace": "t", "pod": "p", "modelName": "A100", "Hostname": "n"}


def queries(series: int = 1, seconds: float = DAY) -> UseQueries:
    return UseQueries(knowledge().dcgm, knowledge().usage_metrics, NOW, seconds, series, (0.01,))


def used(busy: float | None, known: dict[int, int], held: int = 1440) -> float:
    """Give for how long a GPU is idle that was busy last at a time, and is known at so many looks of some spans."""
    asked = queries()
    answers = {(Figure.Held, 0.0): float(held), (Figure.Now, 0.0): 1.0}
    answers |= {(Figure.Known, float(span)): float(looks) for span, looks in known.items()}
    if busy is not None:
        answers[Figure.Busy, 0.01] = busy
    for (figure, of), value in answers.items():
        asked.add(Query(figure, of, ""), LABELS, value)
    return asked.use(()).holds[0].idle[0.01]


KNOWN = {900: 15, 3600: 60, 14_400: 48, 57_600: 64, 86_400: 1440}


@pytest.mark.parametrize(
    ("busy", "known", "idle"),
    [
        (None, KNOWN, DAY),
        (END - 9 * 3600, KNOWN, 9 * 3600),
        (END - 600, KNOWN, 0),
        (END - 9 * 3600, {**KNOWN, 900: 13}, 0),
        (END - 9 * 3600, {**KNOWN, 3600: 54}, 9 * 3600),
        (END - 9 * 3600, {**KNOWN, 3600: 53}, 900),
        (END - 10 * 3600, {**KNOWN, 57_600: 60}, 10 * 3600),
        (END - 10 * 3600, {**KNOWN, 57_600: 59}, 4 * 3600),
        (None, {}, 0),
    ],
)
def test_gpu_is_idle_only_where_nine_tenths_of_the_last_minutes_are_known(
    busy: float | None, known: dict[int, int], idle: float
) -> None:
    """F141: unknown is never idle; a gap counts the less, the longer ago it is."""
    assert used(busy, known) == idle


def test_pod_is_not_idle_for_longer_than_it_holds_the_gpu() -> None:
    """F141: minutes before it are not unknown."""
    assert used(None, {900: 15, 3600: 60, 14_400: 24, 57_600: 8, 86_400: 120}, 120) == 7200


def test_every_query_is_short_enough_for_an_address() -> None:
    """F147: a GET, which every role that may read a Prometheus allows, and proxies take 8 KiB of it."""
    texts = [query.text for query in queries().queries(sizes=True)]

    assert (
        max(len(quote(text)) for text in (*texts, count_query(knowledge().dcgm, knowledge().usage_metrics, DAY))) < 4096
    )
    assert len(texts) < 25


@given(st.integers(3600, 92 * DAY), st.integers(0, MOST_SERIES))
def test_looks_of_a_query_are_bounded(seconds: int, series: int) -> None:
    """F141: the step is the shortest that keeps within the bound."""
    step = step_seconds(series, seconds)
    shorter = [one for one in STEPS if one < step]
    assert step == STEPS[-1] or series * seconds / step <= MOST_POINTS
    assert all(series * seconds / one > MOST_POINTS for one in shorter)


def test_too_many_series_are_refused_with_a_remedy() -> None:
    """F141."""
    with pytest.raises(SourceError, match="ask for less time"):
        queries(MOST_SERIES + 1)


@given(st.sampled_from(Figure), st.lists(st.floats(), max_size=4))
def test_any_values_give_holds_in_which_no_share_is_above_one(figure: Figure, values: list[float]) -> None:
    """F141: NaN, infinity, negative values and what nobody asked for."""
    asked = queries()
    for value in (END, *values):
        asked.add(Query(Figure.Described, 0, ""), LABELS, value)
        asked.add(Query(Figure.Held, 0, ""), LABELS, 60.0)
        asked.add(Query(figure, 86_400.0 if figure is Figure.Known else 0, ""), LABELS, value)
    for one in asked.use(()).holds:
        assert 0 <= one.active <= one.known <= one.held
        assert one.memory_mib is None or math.isfinite(one.memory_mib)


@pytest.mark.parametrize(
    ("pod", "owner"),
    [
        ("eval-7d9f8b6c5d-x2bqz", "eval"),
        ("train-0", "train"),
        ("sweep-3-x2bqz", "sweep"),
        ("sweep-x2bqz", "sweep"),
        ("my-train", "my-train"),
        ("notebook", "notebook"),
    ],
)
def test_owner_is_told_by_the_form_of_the_name(pod: str, owner: str) -> None:
    """F141."""
    assert owner_by_name(pod) == owner


def test_owner_is_the_controller_of_a_pod_that_is_known() -> None:
    """F141: the template's hash tells a Deployment's ReplicaSet, and labels the wider group."""

    def pod(name: str, kind: str, owner: str, **labels: str) -> dict[str, Any]:
        owners = [{"kind": kind, "name": owner, "controller": True}]
        return {"metadata": {"namespace": "t", "name": name, "labels": labels, "ownerReferences": owners}}

    pods: list[dict[str, Any]] = [
        pod("a-5-x", "ReplicaSet", "a-5", **{"pod-template-hash": "5"}),
        pod("b-0", "StatefulSet", "b"),
        pod("c-0-0-x", "Job", "c-0", **{"jobset.sigs.k8s.io/jobset-name": "c"}),
        {"metadata": {"namespace": "t", "name": "alone"}},
    ]
    owners = owners_of(pods)
    assert owners == {
        "t/a-5-x": "t/Deployment/a",
        "t/b-0": "t/StatefulSet/b",
        "t/c-0-0-x": "t/jobset.sigs.k8s.io/jobset-name=c",
        "t/alone": "t/alone",
    }
    assert [workload_of(owners)(pod) for pod in ("t/b-0", "t/b-7", "u/b-0")] == [
        "t/StatefulSet/b", "t/StatefulSet/b", None
    ]  # fmt: skip


def test_rows_add_up_whatever_they_are() -> None:
    """F141: by namespace, owner, product, node and pod; units of other kinds are rows of their own."""
    holds = (hold("train-0", idle=1), hold("train-1", active=0.5), hold("slice", device=("GPU-1", "1"), profile="1g"),
             hold("one", device=("GPU-2", ""), shared=True), hold("gone", held_now=False, idle={}))  # fmt: skip
    reports = {by: usage_report(with_sharing(GPUUse(0, DAY, 60, holds)), by) for by in By}

    assert {sum(row.held_hours for row in report.rows) for report in reports.values()} == {10.0}
    rows = reports[By.Namespace].rows
    assert [(row.unit, row.pods, row.held_now, row.idle_now, row.active_share) for row in rows] == [
        ("GPU", 3, 2, 1, pytest.approx(1 / 6)), ("MIG slice", 1, 1, 0, 0.0), ("shared GPU", 1, 1, 0, None)
    ]  # fmt: skip
    assert "team-a/train" in {row.of for row in reports[By.Owner].rows}
    assert "A100 1g" in {row.of for row in reports[By.Product].rows}


def test_table_of_metrics_has_gauges_with_safe_names() -> None:
    """F141, F81: the names are used in PromQL as they are, and a row without a full value is refused."""
    rows = knowledge().usage_metrics.rows
    assert [row.name for row in rows] == ["engine-active", "gpu-util", "sm-active", "memory-used"]
    assert all(
        metric.startswith("DCGM_FI_") and metric.replace("_", "").isalnum() for row in rows for metric in row.metrics
    )


@pytest.mark.parametrize(
    "row",
    [
        "{name: x, metrics: ['a b'], measures: activity, full: 1, of_slices: true}",
        "{name: x, metrics: [A], measures: heat, full: 1, of_slices: true}",
        "{name: x, metrics: [A], measures: activity, full: null, of_slices: true}",
        "{name: x, metrics: [A], measures: memory, full: 1, of_slices: true}",
    ],
)
def test_own_row_that_is_none_is_refused(row: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """F141, F81."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "usage_metrics.yaml").write_text(f"metrics: [{row}]\n", "utf-8")
    with pytest.raises(KnowledgeError):
        read_knowledge(folder)
