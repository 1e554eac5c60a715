# SPDX-License-Identifier: Apache-2.0
"""GPU health from DCGM's metrics against a slow twin that reads the whole history (F72)."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from app.nodes.gpu_health import Health, MetricSample, PollMemory, evaluate_poll
from tests.builders import knowledge
from tests.nodes.polls import DAY, DBE, NVLINK, PENDING, WINDOW, XID, Poll, health_after, sample


def twin(polls: list[Poll]) -> dict[str, Health]:
    """Judge the last poll by looking through all polls, GPU by GPU, without a memory; only the tables are shared."""
    now, last = polls[-1]
    healths = {}
    for node in {metric.node for metric in last}:
        worst: dict[str, str] = {}
        for gpu in {metric.gpu for metric in last if metric.node == node}:
            states = set(twin_faults(polls, node, gpu, now))
            if states:
                worst[gpu] = "ill" if "ill" in states else "ailing"
        states_of_all = list(worst.values())
        healths[node] = Health(states_of_all.count("ill"), states_of_all.count("ailing"))
    return healths


def twin_faults(polls: list[Poll], node: str, gpu: str, now: float) -> list[str]:
    def values_of(metric: str, part: str = "") -> list[tuple[float, float]]:
        """List (time, value) of a metric, with the higher of two values at one time."""
        history = []
        for time, samples in polls:
            values = [s.value for s in samples if (s.metric, s.node, s.gpu, s.part) == (metric, node, gpu, part)]
            history += [(time, max(values))] if values else []
        return history

    def shown_now(history: list[tuple[float, float]]) -> bool:
        return bool(history) and history[-1][0] == now

    faults = []
    counted, pending, xids = values_of(DBE), values_of(PENDING), values_of(XID)
    if shown_now(counted) and counted[-1][1] > 0:
        faults.append("ill")
    if shown_now(pending) and pending[-1][1] > 0:
        faults.append("ailing")
    for part in ("", "1"):
        links = values_of(NVLINK, part)
        pairs = pairwise(links)
        rises = [t for (s, low), (t, high) in pairs if high > low and t - s < WINDOW]
        if shown_now(links) and any(now - t < WINDOW for t in rises):
            # a rise no longer counts if the counter was then away for the whole window
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
    """Generate polls with some time between them."""
    one = st.lists(samples, max_size=4, unique_by=lambda metric: (metric.metric, metric.gpu, metric.part))
    return st.lists(st.tuples(STEPS, one), min_size=1, max_size=10)


ROUNDS = st.one_of(rounds_of(XIDS), rounds_of(LINKS), rounds_of(st.one_of(XIDS, LINKS, COUNTS)))


@settings(max_examples=100)
@given(ROUNDS)
def test_health_is_what_the_slow_twin_says(rounds: list[tuple[float, list[MetricSample]]]) -> None:
    """F72: evaluating poll by poll gives the same result as reading the whole history."""
    now, polls = 0.0, list[Poll]()
    for step, samples in rounds:
        now += step
        polls.append((now, samples))

    healths = health_after(*polls)

    assert {node: replace(health, causes=()) for node, health in healths.items()} == twin(polls)


@settings(max_examples=30)
@given(ROUNDS)
def test_memory_does_not_grow_beyond_what_was_seen_of_late(rounds: list[tuple[float, list[MetricSample]]]) -> None:
    """F72: GPUs that are gone are forgotten after a day."""
    memory, now = PollMemory(), 0.0
    for step, samples in rounds:
        now += step
        memory, _ = evaluate_poll(samples, memory, knowledge(), now)

    memory, healths = evaluate_poll([], memory, knowledge(), now + DAY)

    assert (memory, healths) == (PollMemory(), {})
