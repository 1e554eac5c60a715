# SPDX-License-Identifier: Apache-2.0
"""The health of GPUs from DCGM's metrics: the rules by example, and against a slow twin that reads all history."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.knowledge.tables import Knowledge
from app.nodes.gpu_health import (
    BLANK,
    INT64_BLANK,
    MOST_CAUSES,
    Health,
    MetricSample,
    PollMemory,
    evaluate_poll,
    read_sample,
)
from tests.builders import knowledge

XID, DBE, PENDING = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_ROW_REMAP_PENDING"
HEAT, NVLINK = "DCGM_FI_DEV_THERMAL_VIOLATION", "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"
DAY, WINDOW = 24 * 3600, 600
Poll = tuple[float, list[MetricSample]]


def sample(metric: str, value: float, gpu: str = "GPU-0", node: str = "n", part: str = "") -> MetricSample:
    return MetricSample(metric, node, gpu, part, value)


def after(*polls: Poll, facts: Knowledge | None = None) -> dict[str, Health]:
    """Play polls; gives what the last one found."""
    memory, found = PollMemory(), dict[str, Health]()
    for now, samples in polls:
        memory, found = evaluate_poll(samples, memory, facts or knowledge(), now)
    return found


def test_xid_that_asks_for_a_drain_makes_a_gpu_ill() -> None:
    """F72."""
    found = after((0, [sample(XID, 79)]))

    assert found == {"n": Health(1, 0, ("XID 79: GPU has fallen off the bus",))}


@pytest.mark.parametrize("code", [13, 31, 43, 45, 0, 99999])
def test_xid_of_an_application_none_or_one_unknown_is_no_fault_of_the_gpu(code: int) -> None:
    """F72."""
    assert after((0, [sample(XID, code)])) == {"n": Health()}


@pytest.mark.parametrize("code", [63, 94, 92, 154])
def test_xid_that_can_wait_makes_a_gpu_ailing(code: int) -> None:
    """F72."""
    found = after((0, [sample(XID, code)]))["n"]

    assert (found.ill, found.ailing) == (0, 1)


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
    """F72: the names of DCGM 4.6 too."""
    some, none = after((0, [sample(metric, 1)]))["n"], after((0, [sample(metric, 0)]))["n"]

    assert (some.ill, some.ailing) == expected
    assert none == Health()


def test_counter_is_a_fault_while_it_rises_and_ten_minutes_after() -> None:
    """F72: a counter that is merely high says nothing."""
    high = [(t, [sample(NVLINK, 7)]) for t in (0, 30)]
    risen = [*high, (60, [sample(NVLINK, 8)])]

    assert after(*high) == {"n": Health()}
    assert after(*risen)["n"] == Health(0, 1, ("NVLink recovery errors rising",))
    assert after(*risen, (659, [sample(NVLINK, 8)]))["n"].ailing == 1
    assert after(*risen, (660, [sample(NVLINK, 8)]))["n"].ailing == 0


def test_counter_that_starts_again_has_not_risen() -> None:
    """F72: the driver was loaded again."""
    assert after((0, [sample(HEAT, 900)]), (30, [sample(HEAT, 0)])) == {"n": Health()}
    assert after((0, [sample(HEAT, 900)]), (30, [sample(HEAT, 0)]), (60, [sample(HEAT, 1)]))["n"].ailing == 1


def test_links_of_one_gpu_are_told_apart() -> None:
    """F72: one link's rise is not hidden by another's higher count."""
    before = [sample(NVLINK, 9, part="0"), sample(NVLINK, 1, part="1")]
    then = [sample(NVLINK, 9, part="0"), sample(NVLINK, 2, part="1")]

    assert after((0, before), (30, then))["n"].ailing == 1


def test_xid_that_has_stood_for_a_day_is_history() -> None:
    """F72: the gauge is sticky."""
    polls = [(t, [sample(XID, 79)]) for t in (0, DAY - 1, DAY)]

    assert after(*polls[:2])["n"].ill == 1
    assert after(*polls)["n"] == Health()


def test_xid_that_comes_again_after_another_counts_anew() -> None:
    """F72."""
    polls = [(0.0, [sample(XID, 79)]), (DAY - 30, [sample(XID, 13)]), (DAY, [sample(XID, 79)])]

    assert after(*polls)["n"].ill == 1


def test_milder_xid_does_not_heal_what_a_graver_one_before_it_told() -> None:
    """F72: the gauge shows the last alone, and 154 or 45 follow a graver one."""
    found = after((0, [sample(XID, 79)]), (30, [sample(XID, 45)]))

    assert found["n"].causes == ("XID 79: GPU has fallen off the bus",)


def test_gpu_is_well_again_when_the_exporter_starts_with_zero() -> None:
    """F72."""
    found = after((0, [sample(XID, 79)]), (30, [sample(XID, 0)]), (60, [sample(XID, 45)]))

    assert found == {"n": Health()}


def test_gap_does_not_make_an_old_xid_new() -> None:
    """F72: the exporter was away for an hour."""
    polls: list[Poll] = [(0, [sample(XID, 79)]), (DAY - 3600, [sample(XID, 79)]), (DAY - 1800, []), (DAY, [])]

    assert after(*polls) == {}
    assert after(*polls, (DAY + 1, [sample(XID, 79)])) == {"n": Health()}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, INT64_BLANK])
@pytest.mark.parametrize("metric", [XID, DBE, HEAT])
def test_value_that_stands_for_none_is_no_fault(metric: str, value: float) -> None:
    """F72: DCGM's blanks too."""
    assert after((0, [sample(metric, 0)]), (30, [sample(metric, value)])) == {"n": Health()}
    assert after((0, [sample(DBE, BLANK)])) == {"n": Health()}


def test_gpus_are_counted_once_and_by_their_worst() -> None:
    """F72: a fault that two metrics tell, and two faults of one GPU."""
    found = after(
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

    assert found == {
        "n": Health(1, 1, ("row remapping failed", "row remapping waits for a reset")),
        "well": Health(),
    }


def test_causes_are_few_and_the_worst_come_first() -> None:
    """F72."""
    codes = (63, 94, 79, 48, 95, 64)
    found = after((0, [sample(XID, code, f"GPU-{code}") for code in codes]))["n"]

    assert len(found.causes) == MOST_CAUSES
    assert all(cause.split(":")[0] in ("XID 48", "XID 64", "XID 79", "XID 95") for cause in found.causes)


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
    """F72: what a scrape configuration adds, before what the exporter takes for its host's name."""
    found = read_sample(XID, {**labels, "UUID": "GPU-1", "gpu": "0", "nvlink": "3"}, 0, knowledge().dcgm)

    assert found == MetricSample(XID, node, "GPU-1", "3", 0)


@pytest.mark.parametrize("labels", [{}, {"instance": "10.0.0.1:9400"}, {"Hostname": "x" * 254}, {"node": ""}])
def test_sample_that_names_no_node_is_left_out(labels: dict[str, str]) -> None:
    """F72."""
    assert read_sample(XID, labels, 79, knowledge().dcgm) is None
    assert read_sample("DCGM_FI_DEV_GPU_TEMP", {"node": "a"}, 79, knowledge().dcgm) is None


def twin(polls: list[Poll]) -> dict[str, Health]:
    """Judge the last poll by looking through all polls, GPU by GPU; knows no memory. Shares the tables alone."""
    now, last = polls[-1]
    found = {}
    for node in {each.node for each in last}:
        worst: dict[str, str] = {}
        for gpu in {each.gpu for each in last if each.node == node}:
            states = set(twin_faults(polls, node, gpu, now))
            if states:
                worst[gpu] = "ill" if "ill" in states else "ailing"
        states_of_all = list(worst.values())
        found[node] = Health(states_of_all.count("ill"), states_of_all.count("ailing"))
    return found


def twin_faults(polls: list[Poll], node: str, gpu: str, now: float) -> list[str]:
    def told(metric: str, part: str = "") -> list[tuple[float, float]]:
        """When which value was shown; the higher of two at once."""
        history = []
        for time, samples in polls:
            values = [e.value for e in samples if (e.metric, e.node, e.gpu, e.part) == (metric, node, gpu, part)]
            history += [(time, max(values))] if values else []
        return history

    def shown_now(history: list[tuple[float, float]]) -> bool:
        return bool(history) and history[-1][0] == now

    faults = []
    counted, pending, xids = told(DBE), told(PENDING), told(XID)
    if shown_now(counted) and counted[-1][1] > 0:
        faults.append("ill")
    if shown_now(pending) and pending[-1][1] > 0:
        faults.append("ailing")
    for part in ("", "1"):
        links = told(NVLINK, part)
        pairs = pairwise(links)
        rises = [t for (s, low), (t, high) in pairs if high > low and t - s < WINDOW]
        if shown_now(links) and any(now - t < WINDOW for t in rises):
            # a rise is forgotten with the counter, when that was away for the window
            tail = [t for t, _ in links if t >= rises[-1]]
            if all(b - a < WINDOW for a, b in pairwise(tail)):
                faults.append("ailing")
    if shown_now(xids):
        for index in reversed(range(len(xids))):
            time, code = xids[index]
            if code == 0 or now - time >= DAY:
                break
            before = xids[index - 1] if index else None
            stood = before is not None and before[1] == code and time - before[0] < DAY
            if not stood:
                faults += {79: ["ill"], 63: ["ailing"]}.get(int(code), [])
    return faults


STEPS = st.sampled_from([30.0, 30.0, 300.0, 590.0, 600.0, 12 * 3600.0, DAY - 60.0, DAY + 0.0])
XIDS = st.builds(sample, st.just(XID), st.sampled_from([0.0, 79.0, 79.0, 63.0, 13.0]), st.just("a"))
LINKS = st.builds(
    sample, st.just(NVLINK), st.integers(0, 3).map(float), st.just("a"), st.just("n"), st.sampled_from(["", "1"])
)
COUNTS = st.builds(sample, st.sampled_from([DBE, PENDING]), st.sampled_from([0.0, 2.0]), st.sampled_from("ab"))


def rounds_of(samples: st.SearchStrategy[MetricSample]) -> st.SearchStrategy[list[tuple[float, list[MetricSample]]]]:
    """Some polls, each some time after the last."""
    one = st.lists(samples, max_size=4, unique_by=lambda each: (each.metric, each.gpu, each.part))
    return st.lists(st.tuples(STEPS, one), min_size=1, max_size=10)


ROUNDS = st.one_of(rounds_of(XIDS), rounds_of(LINKS), rounds_of(st.one_of(XIDS, LINKS, COUNTS)))


@settings(max_examples=600)
@given(ROUNDS)
def test_health_is_what_the_slow_twin_says(rounds: list[tuple[float, list[MetricSample]]]) -> None:
    """F72: folding poll by poll comes to the same as reading all of history."""
    now, polls = 0.0, list[Poll]()
    for step, samples in rounds:
        now += step
        polls.append((now, samples))

    found = after(*polls)

    assert {node: replace(each, causes=()) for node, each in found.items()} == twin(polls)


@given(ROUNDS)
def test_memory_does_not_grow_beyond_what_was_seen_of_late(rounds: list[tuple[float, list[MetricSample]]]) -> None:
    """F72: GPUs that are gone are forgotten after a day."""
    memory, now = PollMemory(), 0.0
    for step, samples in rounds:
        now += step
        memory, _ = evaluate_poll(samples, memory, knowledge(), now)

    memory, found = evaluate_poll([], memory, knowledge(), now + DAY)

    assert (memory, found) == (PollMemory(), {})
