# SPDX-License-Identifier: Apache-2.0
"""The model of kube-scheduler against examples: how many nodes it looks at, which, their in-tree scores, its choice.

And the model of its queue against a twin that keeps every pod's own state and tries each in turn.
"""

from collections import Counter
from dataclasses import dataclass, field
from math import floor
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.placement.ranking import HIGHEST
from app.schedulerconfig.write import EXTENDER_WEIGHT
from tests.bench.simulate.over_time_figures import PlayedPod
from tests.bench.simulate.scheduler import (
    POINT,
    SchedulingQueue,
    backoff_seconds,
    balance_change,
    find_feasible,
    least_allocated,
    nodes_to_find,
    select,
)
from tests.bench.simulate.trace import Task


@pytest.mark.parametrize(
    ("nodes", "percent", "expected"),
    [
        pytest.param(99, 0, 99, id="small: all"),
        pytest.param(100, 0, 100, id="50 %, at least 100"),
        pytest.param(1000, 0, 420, id="recorded of a real scheduler"),
        pytest.param(1213, 0, 497, id="the trace: 41 %"),
        pytest.param(5000, 0, 500, id="10 %"),
        pytest.param(10_000, 0, 500, id="never under 5 %"),
        pytest.param(1213, 100, 1213, id="all by configuration"),
        pytest.param(1213, 5, 100, id="at least 100 by configuration"),
    ],
)
def test_search_ends_after_as_many_nodes_as_kube_scheduler_wants(nodes: int, percent: int, expected: int) -> None:
    """F52: the number is that of numFeasibleNodesToFind."""
    assert nodes_to_find(nodes, percent) == expected


@pytest.mark.parametrize(
    ("feasible", "start", "most", "positions", "following"),
    [
        pytest.param([0, 1, 2, 3], 0, 2, [0, 1], 2, id="the next begins where this one ended"),
        pytest.param([0, 1, 2, 3], 3, 2, [3, 0], 1, id="round the corner"),
        pytest.param([0, 5], 0, 1, [0], 5, id="nodes that do not fit count as looked at"),
        pytest.param([2, 4], 3, 5, [4, 2], 3, id="a whole turn ends where it began"),
        pytest.param([], 3, 5, [], 3, id="none"),
        pytest.param([1, 2], 0, 2, [1, 2], 0, id="exactly as many as wanted: all were looked at"),
    ],
)
def test_search_goes_on_where_the_last_one_ended(
    feasible: list[int], start: int, most: int, positions: list[int], following: int
) -> None:
    """F52: the model keeps kube-scheduler's nextStartNodeIndex."""
    assert find_feasible(feasible, start, most) == (positions, following)


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(0, 11), st.integers(1, 12))
def test_search_is_a_walk_node_by_node(fits: list[bool], start: int, most: int) -> None:
    """F52: the order is that of findNodesThatPassFilters with one worker."""
    nodes = len(fits)
    start %= nodes
    positions: list[int] = []
    looked_at = 0
    for step in range(nodes):
        if fits[(start + step) % nodes]:
            if len(positions) == most:
                break
            positions.append((start + step) % nodes)
        looked_at += 1

    assert find_feasible([index for index, fit in enumerate(fits) if fit], start, most) == (
        positions,
        (start + looked_at) % nodes,
    )


@pytest.mark.parametrize(
    ("requested", "allocatable", "least"),
    [
        pytest.param((0, 0), (1000, 1000), 100, id="empty"),
        pytest.param((500, 500), (1000, 1000), 50, id="half"),
        pytest.param((3000, 1000), (4000, 10_000), (25 + 90) // 2, id="cut off"),
        pytest.param((1001, 0), (1000, 1000), 50, id="assumed beyond what is there"),
    ],
)
def test_spreading_is_scored_as_kube_scheduler_does(
    requested: tuple[int, int], allocatable: tuple[int, int], least: int
) -> None:
    """F52: the formula is that of least_allocated.go."""
    assert least_allocated(requested, allocatable) == least


@pytest.mark.parametrize(
    ("used", "wanted", "score"),
    [
        pytest.param((0, 0), (2000, 5000), 75, id="both alike"),
        pytest.param((3000, 0), (0, 1000), 50 + (50 + 67 - 62) // 2, id="of |0.75 - 0| / 2 and |0.75 - 0.1| / 2"),
        pytest.param((0, 0), (1000, 0), 50 + (50 + 87 - 100) // 2, id="CPU alone on an empty node"),
    ],
)
def test_change_of_balance_of_the_default_resources(used: tuple[int, int], wanted: tuple[int, int], score: int) -> None:
    """F52: CPU and memory, which kube-scheduler as it ships looks at."""
    assert score == balance_change(used, wanted, (4000, 10_000))


@pytest.mark.parametrize(
    ("used", "wanted", "score"),
    [
        pytest.param((0, 0, 0), (100, 100, 100), 75, id="as balanced as before"),
        pytest.param((500, 500, 0), (0, 0, 500), 87, id="balanced by the pod"),
        pytest.param((0, 0, 0), (0, 0, 500), 63, id="unbalanced by the pod"),
        pytest.param((900, 0, 0), (200, 0, 0), 72, id="no more than all counts"),
    ],
)
def test_change_of_balance_is_scored_as_kube_scheduler_does(
    used: tuple[int, ...], wanted: tuple[int, ...], score: int
) -> None:
    """F52: the formula is that of balancedResourceScorer, whose values were computed by hand."""
    assert score == balance_change(used, wanted, (1000, 1000, 1000))


def test_one_point_counts_what_the_written_configuration_makes_of_it() -> None:
    """F52: the weight on the wire is score x weight x MaxNodeScore / MaxExtenderPriority."""
    assert POINT == EXTENDER_WEIGHT * 100 // HIGHEST


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 200)), min_size=1, max_size=12), st.integers(0, 99))
def test_highest_sum_wins_and_equals_draw_lots(nodes: list[tuple[int, int]], seed: int) -> None:
    """F52: the model gives the same choice as computing every node's in-tree score."""
    sums = [100 * ours + own for ours, own in nodes]
    best = [index for index, total in enumerate(sums) if total == max(sums)]

    position = select([ours for ours, _ in nodes], lambda index: nodes[index][1], Random(seed))

    assert position == (best[0] if len(best) == 1 else Random(seed).choice(best))


def test_equals_are_drawn_evenly() -> None:
    """F52: as in selectHost; of 3,000 draws among three, each count is within five standard deviations."""
    rng = Random(51)

    drawn = Counter(select([1, 3, 3, 3], lambda _: 7, rng) for _ in range(3000))

    assert drawn.keys() == {1, 2, 3}
    assert all(870 <= count <= 1130 for count in drawn.values())


SIZES = (1, 2, 3, 5)


@dataclass
class Twin:
    """kube-scheduler's queue as it is written down there: a timestamp, a count of failures and a backoff per pod."""

    pods: list[list[float]] = field(default_factory=list)
    """Size, number, failures, time of the last attempt, and the attempts of all pods before it."""
    attempts: int = 0

    def failed(self, pod: list[float], now: float) -> None:
        self.attempts += 1
        pod[2:] = [pod[2] + 1, now, self.attempts]

    def wake(self, now: float, room: int) -> list[int]:
        def key(pod: list[float]) -> tuple[float, float]:
            ends = floor(pod[3] + (1, 2, 4, 8, 10)[min(4, int(pod[2]) - 1)])
            return (ends, pod[4]) if ends >= floor(now) else (-1, pod[4])

        placed = []
        for pod in sorted(self.pods, key=key):
            if pod[0] <= room:
                room -= int(pod[0])
                placed.append(int(pod[1]))
                self.pods.remove(pod)
            else:
                self.failed(pod, now)
        return placed


EVENTS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.5, 9.0, 11.0]), st.booleans(), st.sampled_from(SIZES)),
    max_size=80,
)
"""Seconds since the event before, whether a pod comes or one leaves, and its size."""


OVERTAKING = [
    *[(0.0, True, 3)] * 2,
    *[(1.0, False, 1)] * 5,
    (0.5, True, 5),
    *[(2.5, False, 1)] * 6,
    (0.5, True, 5),
    *[(2.5, False, 1)] * 6,
    *[(1.0, False, 5)] * 4,
]
"""Two pods that come late are tried before those that back off longer, and stay before them."""


@given(EVENTS)
@example(OVERTAKING)
def test_pods_are_tried_in_the_order_of_kube_scheduler(events: list[tuple[float, bool, int]]) -> None:
    """F52: with backoff and renewed timestamps; what is placed, and when, is the same as in the twin."""
    queue, twin = SchedulingQueue(), Twin()
    tasks = {size: Task(size, 1, 1, 1000) for size in SIZES}
    now = 0.0
    for number, (passed, comes, size) in enumerate(events):
        now += passed
        if comes:
            queue.add(PlayedPod(number, tasks[size], 1.0, now), now)
            twin.pods.append([size, number, 0, 0, 0])
            twin.failed(twin.pods[-1], now)
            continue
        room, placed = size, list[int]()

        def place(pod: PlayedPod, placed: list[int] = placed) -> None:
            placed.append(pod.number)

        def fits(task: Task, placed: list[int] = placed, size: int = size) -> bool:
            return task.cpu_milli <= size - sum(events[number][2] for number in placed)

        queue.wake(now, fits, place)

        assert placed == twin.wake(now, room)
        assert {pod.number for pod in queue} == {int(pod[1]) for pod in twin.pods}


@pytest.mark.parametrize(("failures", "seconds"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (6, 10), (1000, 10)])
def test_backoff_doubles_up_to_ten_seconds(failures: int, seconds: int) -> None:
    """F52: kube-scheduler's podInitialBackoffSeconds and podMaxBackoffSeconds."""
    assert backoff_seconds(failures) == seconds


def test_pod_that_came_last_is_tried_first_while_the_others_back_off() -> None:
    """F52: its backoff of a second is over, theirs of ten seconds is not; a pod behind others may pass."""
    queue, task = SchedulingQueue(), Task(1, 1, 1, 1000)
    for number in (1, 2):
        queue.add(PlayedPod(number, task, 1.0, 0.0), 0.0)
    for moment in range(1, 6):
        queue.wake(moment, lambda _: False, lambda _: None)
    queue.add(PlayedPod(3, task, 1.0, 5.5), 5.5)
    order: list[int] = []

    queue.wake(8.0, lambda _: True, lambda pod: order.append(pod.number))

    assert order == [3, 1, 2]
