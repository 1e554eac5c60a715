# SPDX-License-Identifier: Apache-2.0
"""GPU health from DCGM's metrics: each rule by an example (F72)."""

import math

import pytest

from app.nodes.gpu_health import BLANK, INT64_BLANK, MOST_CAUSES, Health, MetricSample, read_sample
from tests.builders import knowledge
from tests.nodes.polls import DAY, DBE, HEAT, NVLINK, PENDING, XID, Poll, health_after, sample


def test_xid_that_asks_for_a_drain_makes_a_gpu_ill() -> None:
    """F72."""
    assert health_after((0, [sample(XID, 79)])) == {"n": Health(1, 0, ("XID 79: GPU has fallen off the bus",))}


@pytest.mark.parametrize("code", [13, 31, 43, 45, 0, 99999])
def test_xid_of_an_application_none_or_one_unknown_is_no_fault_of_the_gpu(code: int) -> None:
    """F72."""
    assert health_after((0, [sample(XID, code)])) == {"n": Health()}


@pytest.mark.parametrize("code", [63, 94, 92, 154])
def test_xid_that_can_wait_makes_a_gpu_ailing(code: int) -> None:
    """F72."""
    health = health_after((0, [sample(XID, code)]))["n"]

    assert (health.ill, health.ailing) == (0, 1)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", (1, 0)),
        ("DCGM_FI_DEV_ROW_REMAP_FAILED", (1, 0)),
        (DBE, (1, 0)),
        (PENDING, (0, 1)),
        ("DCGM_FI_DEV_RETIRED_PENDING", (0, 1)),
        ("DCGM_FI_DEV_PAGE_RETIRED_PENDING", (0, 1)),
    ],
)
def test_count_above_zero_is_a_fault_and_zero_is_none(metric: str, expected: tuple[int, int]) -> None:
    """F72: the metric names of DCGM 4.6 count too."""
    some, none = health_after((0, [sample(metric, 1)]))["n"], health_after((0, [sample(metric, 0)]))["n"]

    assert (some.ill, some.ailing) == expected
    assert none == Health()


def test_counter_is_a_fault_while_it_rises_and_ten_minutes_after() -> None:
    """F72: a counter that is only high says nothing."""
    high = [(t, [sample(NVLINK, 7)]) for t in (0, 30)]
    risen = [*high, (60, [sample(NVLINK, 8)])]

    assert health_after(*high) == {"n": Health()}
    assert health_after(*risen)["n"] == Health(0, 1, ("NVLink recovery errors rising",))
    assert health_after(*risen, (659, [sample(NVLINK, 8)]))["n"].ailing == 1
    assert health_after(*risen, (660, [sample(NVLINK, 8)]))["n"].ailing == 0


def test_counter_that_starts_again_has_not_risen() -> None:
    """F72: the counter starts at zero when the driver is loaded again."""
    assert health_after((0, [sample(HEAT, 900)]), (30, [sample(HEAT, 0)])) == {"n": Health()}
    assert health_after((0, [sample(HEAT, 900)]), (30, [sample(HEAT, 0)]), (60, [sample(HEAT, 1)]))["n"].ailing == 1


def test_links_of_one_gpu_are_told_apart() -> None:
    """F72: the rise of one link is not hidden by another link's higher count."""
    before = [sample(NVLINK, 9, part="0"), sample(NVLINK, 1, part="1")]
    then = [sample(NVLINK, 9, part="0"), sample(NVLINK, 2, part="1")]

    assert health_after((0, before), (30, then))["n"].ailing == 1


def test_xid_that_has_stood_for_a_day_is_history() -> None:
    """F72: the gauge keeps the last XID and never resets by itself."""
    polls = [(t, [sample(XID, 79)]) for t in (0, DAY - 1, DAY)]

    assert health_after(*polls[:2])["n"].ill == 1
    assert health_after(*polls)["n"] == Health()


def test_xid_that_comes_again_after_another_counts_anew() -> None:
    """F72."""
    polls = [(0.0, [sample(XID, 79)]), (DAY - 30, [sample(XID, 13)]), (DAY, [sample(XID, 79)])]

    assert health_after(*polls)["n"].ill == 1


def test_milder_xid_does_not_heal_what_a_graver_one_before_it_told() -> None:
    """F72: the gauge shows the last XID alone, and XIDs 154 and 45 follow a graver one."""
    healths = health_after((0, [sample(XID, 79)]), (30, [sample(XID, 45)]))

    assert healths["n"].causes == ("XID 79: GPU has fallen off the bus",)


def test_gpu_is_well_again_when_the_exporter_starts_with_zero() -> None:
    """F72."""
    healths = health_after((0, [sample(XID, 79)]), (30, [sample(XID, 0)]), (60, [sample(XID, 45)]))

    assert healths == {"n": Health()}


def test_gap_does_not_make_an_old_xid_new() -> None:
    """F72: the exporter was away for an hour."""
    polls: list[Poll] = [(0, [sample(XID, 79)]), (DAY - 3600, [sample(XID, 79)]), (DAY - 1800, []), (DAY, [])]

    assert health_after(*polls) == {}
    assert health_after(*polls, (DAY + 1, [sample(XID, 79)])) == {"n": Health()}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, INT64_BLANK])
@pytest.mark.parametrize("metric", [XID, DBE, HEAT])
def test_value_that_stands_for_none_is_no_fault(metric: str, value: float) -> None:
    """F72: DCGM's blank values are no fault either."""
    assert health_after((0, [sample(metric, 0)]), (30, [sample(metric, value)])) == {"n": Health()}
    assert health_after((0, [sample(DBE, BLANK)])) == {"n": Health()}


def test_gpus_are_counted_once_and_by_their_worst() -> None:
    """F72: one fault may appear in two metrics, and one GPU may have two faults."""
    healths = health_after(
        (
            0,
            [
                sample("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1),
                sample("DCGM_FI_DEV_ROW_REMAP_FAILED", 1),
                sample(PENDING, 1),
                sample(PENDING, 1, "GPU-1"),
                sample(PENDING, 0, "GPU-2"),
                sample(PENDING, 0, node="well"),
            ],
        )
    )

    assert healths == {"n": Health(1, 1, ("row remapping failed", "row remapping waits for a reset")), "well": Health()}


def test_causes_are_few_and_the_worst_come_first() -> None:
    """F72."""
    codes = (63, 94, 79, 48, 95, 64)
    health = health_after((0, [sample(XID, code, f"GPU-{code}") for code in codes]))["n"]

    assert len(health.causes) == MOST_CAUSES
    assert all(cause.split(":")[0] in ("XID 48", "XID 64", "XID 79", "XID 95") for cause in health.causes)


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        ({"Hostname": "a"}, "a"),
        ({"hostname": "a"}, "a"),
        ({"Hostname": "pod", "node": "a"}, "a"),
        ({"Hostname": "pod", "kubernetes_node": "a"}, "a"),
        ({"Hostname": "prometheus", "exported_Hostname": "a"}, "a"),
        ({"hostname": "prometheus", "exported_hostname": "a"}, "a"),
        ({"node": "", "Hostname": "a"}, "a"),
    ],
)
def test_node_is_named_by_the_label_that_is_surest(labels: dict[str, str], node: str) -> None:
    """F72: labels that a scrape configuration adds come before the host name that the exporter reports."""
    metric = read_sample(XID, {**labels, "UUID": "GPU-1", "gpu": "0", "nvlink": "3"}, 0, knowledge().dcgm)

    assert metric == MetricSample(XID, node, "GPU-1", "3", 0)


@pytest.mark.parametrize("labels", [{}, {"instance": "10.0.0.1:9400"}, {"Hostname": "x" * 254}, {"node": ""}])
def test_sample_that_names_no_node_is_left_out(labels: dict[str, str]) -> None:
    """F72."""
    assert read_sample(XID, labels, 79, knowledge().dcgm) is None
    assert read_sample("DCGM_FI_DEV_GPU_TEMP", {"node": "a"}, 79, knowledge().dcgm) is None
