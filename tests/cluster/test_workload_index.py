# SPDX-License-Identifier: Apache-2.0
"""The workload is a function of the pods that exist, its size is bounded, and readers hear of what they would see."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app.world.demand_learning import LEAST_PODS, WorkloadIndex
from app.world.pod_index import PodCounts

RARE_BITS, COUNT_BITS = 5, 2
MILLI = {"a": 1000, "b": 8000, "c": 0, "d": 250}
"""Shapes, and the GPU capacity that a pod of each requests."""
EVENT = st.tuples(st.integers(0, 60), st.sampled_from([None, *MILLI]), st.booleans())
"""A pod by number, the shape that it gets (None removes it), and whether the reader asks after it."""


def rounded_down(pods: int) -> int:
    """Set all but the two leading binary digits to 0."""
    text = f"{pods:b}"
    return int(text[:COUNT_BITS] + "0" * len(text[COUNT_BITS:]), 2)


def common(pods: dict[str, str]) -> dict[str, int]:
    """Count plainly what WorkloadIndex counts change by change."""
    counts = Counter(pods.values())
    least = sum(MILLI[shape] for shape in pods.values()).bit_length() - RARE_BITS
    if len(pods) < LEAST_PODS:
        return {}
    shapes = [shape for shape in counts if (milli := counts[shape] * MILLI[shape]) and milli.bit_length() > least]
    return {shape: rounded_down(counts[shape]) for shape in shapes}


@given(events=st.lists(EVENT, max_size=200), more=st.integers(0, 60))
def test_any_order_of_events_equals_a_count_from_scratch(events: list[tuple[int, str | None, bool]], more: int) -> None:
    """F52: pods come, change and go, and the reader asks now and then; one generation stands for one answer."""
    counts, index = PodCounts[str](), WorkloadIndex[str](RARE_BITS, COUNT_BITS)
    alive: dict[str, str] = {}
    answers: dict[int, dict[str, int]] = {}
    for number, shape, asked in [*((number, "d", False) for number in range(more)), *events, (0, "a", True)]:
        counts.put(str(number), shape)
        alive.pop(str(number), None)
        if shape is not None:
            alive[str(number)] = shape
        if asked:
            for changed, difference in counts.changes():
                index.add(changed, difference, MILLI[changed])

            assert index.common() == common(alive)
            assert answers.setdefault(index.generation, common(alive)) == common(alive)
    assert dict(counts.all()) == Counter(alive.values())
    assert len(counts) == len(alive)


def test_rare_shapes_are_left_out_however_many_there_are() -> None:
    """F125: each pod of a tenant has a shape of its own; what readers get is bounded all the same."""
    index = WorkloadIndex[str](RARE_BITS, COUNT_BITS)
    for number in range(1024):
        index.add(f"odd-{number}", 1, 1000)
    index.add("usual", 1024, 1000)

    assert index.common() == {"usual": 1024}

    index.add("usual", -1024, 1000)

    assert not index.common()


def test_nothing_of_a_pod_is_left_when_it_is_gone() -> None:
    """F125: whether anybody reads the changes or not, as in a replica that is never asked."""
    for read in (False, True):
        counts, index = PodCounts[str](), WorkloadIndex[str](RARE_BITS, COUNT_BITS)
        for shape in ("a", None):
            for number in range(200):
                counts.put(str(number), shape and f"{shape}{number % 7}")
            for changed, difference in counts.changes() if read else ():
                index.add(changed, difference, 1000)

        assert not counts._by_uid
        assert not counts._counts
        assert not counts.changed
        assert not index._pods
        assert not index._by_bits


def test_one_pod_more_is_seldom_news() -> None:
    """F52: news invalidate cached verdicts; while a thousand pods become four thousand there are eight at most."""
    index = WorkloadIndex[str](RARE_BITS, COUNT_BITS)
    index.add("a", 1000, 1000)
    before = index.generation
    for _ in range(3000):
        index.add("a", 1, 1000)

    assert index.generation - before <= 8
