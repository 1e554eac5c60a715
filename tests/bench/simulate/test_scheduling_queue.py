# SPDX-License-Identifier: Apache-2.0
"""The model of kube-scheduler's queue against a twin that keeps every pod's own state and tries each in turn."""

from dataclasses import dataclass, field
from math import floor

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.bench.simulate.over_time_figures import PlayedPod
from tests.bench.simulate.scheduler import SchedulingQueue, backoff_seconds
from tests.bench.simulate.trace import Task

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
