# SPDX-License-Identifier: Apache-2.0
"""Histories and their tables: sharing, idleness, owners, and what bad points do."""

import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cluster.files import read_knowledge
from app.usage.history import Hold, UseHistory, Window, with_sharing
from app.usage.reading import (
    MOST_POINTS,
    MOST_SERIES,
    POINTS_AT_ONCE,
    WINDOWS,
    Figure,
    HistoryBuilder,
    RangeQuery,
    range_queries,
    spans,
    window_seconds,
)
from app.usage.table import By, UsageReport, usage_report
from app.usage.workloads import owner_by_name, owners_of
from app.values.errors import KnowledgeError, SourceError
from tests.builders import knowledge

QUERIES = list(range_queries(knowledge().dcgm, knowledge().usage_metrics, 900))


def hold(pod: str, *windows: Window, gpu: str = "GPU-1", **more: str) -> Hold:
    """Make a hold on a whole GPU of node n."""
    return Hold("team", pod, "n", gpu, more.get("instance", ""), more.get("profile", ""), "A100", False, windows)


def idle(number: int, minutes: float = 15, peak: float | None = 0.0, known: float = 15) -> Window:
    """Make a window of an idle GPU, or of one that differs in one thing."""
    return Window(number, minutes, known, 0.0, peak, None, 100.0)


def report(*holds: Hold, windows: int = 4) -> UsageReport:
    return usage_report(with_sharing(UseHistory(0, windows * 900, 900, holds)), By.Pod)


@pytest.mark.parametrize(
    ("last", "hours"),
    [
        (idle(3), 1.0),
        (idle(3, known=14), 1.0),
        (idle(3, known=13), None),
        (idle(3, minutes=13), None),
        (idle(3, peak=0.02), None),
        (idle(3, peak=None), None),
        (None, None),
    ],
)
def test_gpu_is_idle_only_where_the_last_windows_are_known_without_a_gap(
    last: Window | None, hours: float | None
) -> None:
    """F141: unknown is never idle."""
    windows = [idle(0), idle(1), idle(2), *([last] if last else [])]
    row = report(hold("p", *windows)).rows[0]
    assert (row.idle_hours, row.idle_now) == (hours, int(hours is not None))


def test_sharers_are_told_by_the_overlap_and_not_by_a_change_of_pods() -> None:
    """F141: two pods one after the other, in one window for a while each, had the GPU for themselves."""
    one_after_the_other = report(hold("a", idle(0), idle(1, 10)), hold("b", idle(1, 8), idle(2)))
    together = report(hold("a", idle(0), idle(1)), hold("b", idle(1), idle(2)))
    instances = report(hold("a", idle(0), instance="1"), hold("b", idle(0), instance="2"))
    assert [{row.unit for row in some.rows} for some in (one_after_the_other, together, instances)] == [
        {"GPU"},
        {"shared GPU"},
        {"MIG slice"},
    ]


def test_shared_gpu_is_idle_for_a_pod_only_where_it_is_so_for_all() -> None:
    """F141: one of the sharers has no value for its last window."""
    silent = report(hold("a", *map(idle, range(4))), hold("b", *map(idle, range(3)), idle(3, known=0)))
    quiet = report(hold("a", *map(idle, range(4))), hold("b", *map(idle, range(2))))
    assert [row.idle_hours for row in silent.rows] == [None, None]
    assert {row.of: row.idle_hours for row in quiet.rows} == {"team/a": 1.0, "team/b": None}


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
    assert owners_of(pods) == {
        "t/a-5-x": "t/Deployment/a",
        "t/b-0": "t/StatefulSet/b",
        "t/c-0-0-x": "t/jobset.sigs.k8s.io/jobset-name=c",
        "t/alone": "t/alone",
    }


@given(st.integers(3600, 92 * 86_400), st.integers(0, MOST_SERIES))
def test_answers_are_of_limited_size(seconds: int, series: int) -> None:
    """F141: every window is asked for once."""
    window = window_seconds(seconds, series)
    count = max(1, round(seconds / window))
    asked = list(spans(0, count * window, window, series))
    points = [round((last - first) / window) + 1 for first, last in asked]
    assert window in WINDOWS
    assert sum(points) == count
    assert max(points) * max(1, series) <= POINTS_AT_ONCE
    assert window == WINDOWS[-1] or count * series <= 2 * MOST_POINTS


def test_too_many_series_are_refused_with_a_remedy() -> None:
    """F141."""
    with pytest.raises(SourceError, match="ask for less time"):
        window_seconds(3600, MOST_SERIES + 1)


LABELS = {"UUID": "GPU-1", "namespace": "t", "pod": "p", "modelName": "A100", "Hostname": "n"}


def built(*answers: tuple[RangeQuery, dict[str, str], list[tuple[int, float]]]) -> UseHistory:
    builder = HistoryBuilder(knowledge().dcgm, knowledge().usage_metrics)
    for query, labels, points in answers:
        builder.add(query, labels, points)
    return builder.history(0, 1800, 900, ())


def query_of(figure: Figure, name: str = "") -> RangeQuery:
    return next(
        query for query in QUERIES if (query.figure, query.metric.name if query.metric else "") == (figure, name)
    )


@given(st.sampled_from(QUERIES), st.lists(st.tuples(st.integers(-1, 3), st.floats()), max_size=4))
def test_any_points_give_a_history_in_which_no_share_is_above_one(
    query: RangeQuery, points: list[tuple[int, float]]
) -> None:
    """F141: NaN, infinity, negative values and windows that nobody asked for."""
    history = built((query_of(Figure.Held), LABELS, [(0, 15.0), (1, 15.0)]), (query, LABELS, points))
    for window in history.holds[0].windows:
        assert 0 <= window.active <= window.known <= window.held <= 15
        assert window.peak is None or 0 <= window.peak <= 1
        assert window.memory_mib is None or math.isfinite(window.memory_mib)


def test_one_exporter_that_says_active_outvotes_those_that_say_idle() -> None:
    """F141: duplicate series, and another metric than the preferred one."""
    held, peak = query_of(Figure.Held), query_of(Figure.Peak, "engine-active")
    both = [(0, 15.0), (1, 15.0)]
    known = (query_of(Figure.Known, "engine-active"), LABELS, both)
    twice = built(
        (held, LABELS, both), known, (peak, LABELS, [(0, 0.0), (1, 0.9)]), (peak, LABELS, [(0, 0.0), (1, 0.0)])
    )
    other = built(
        (held, LABELS, both),
        known,
        (peak, LABELS, [(1, 0.0)]),
        (query_of(Figure.Peak, "gpu-util"), LABELS, [(1, 70.0)]),
    )
    assert [history.holds[0].windows[1].peak for history in (twice, other)] == [0.9, 0.7]


def test_gpu_util_of_a_mig_instance_is_not_its_own() -> None:
    """F141: NVML has no utilization of instances."""
    sliced = {**LABELS, "GPU_I_ID": "7", "GPU_I_PROFILE": "1g.10gb"}
    queries = query_of(Figure.Held), query_of(Figure.Known, "gpu-util"), query_of(Figure.Peak, "gpu-util")
    assert built(*((query, sliced, [(0, 15.0)]) for query in queries)).holds[0].windows[0] == Window(0, 15.0)


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


def cpu_of_report(pods: int) -> float:
    """Return the least CPU time of three reports by pod, in seconds."""
    history = UseHistory(0, 900, 900, tuple(hold(f"p{n}", idle(0), gpu=f"GPU-{n}") for n in range(pods)))

    def once() -> float:
        began = time.process_time()
        usage_report(history, By.Pod)
        return time.process_time() - began

    return min(once() for _ in range(3))


def test_report_costs_as_much_per_pod_in_a_large_cluster() -> None:
    """F141: four times the pods cost some four times as much; sixteen times, if each row read the holds of all."""
    assert cpu_of_report(8_000) < 8 * cpu_of_report(2_000)
