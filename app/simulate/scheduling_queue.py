# SPDX-License-Identifier: Apache-2.0
"""A model of kube-scheduler's queue: pods that no node fits wait, and each pod that leaves has them tried again.

It follows v1.36 (pkg/scheduler/core/queue, framework/plugins/queuesort and noderesources/fit.go):

- Every deletion of a bound pod wakes every waiting pod (Fit.isSchedulableAfterPodEvent; after an extender's refusal any
  event does).
- Those that are not backing off come first, ordered by the time of their last attempt, not of their creation
  (AddUnschedulableIfNotPresent renews the timestamp). The others follow at once, because the scheduler takes from the
  backoff queue while nothing else is to be done (SchedulerPopFromBackoffQ), ordered by the second in which their
  backoff ends.
- The backoff is 1 s after the first failure, doubles with each, and is at most 10 s.

All pods have one priority, so that nothing is preempted. Not modelled: the time that an attempt takes, and the flush
after five minutes, which tries pods for which nothing has changed.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import floor

from app.simulate.over_time_pods import PlayedPod
from app.simulate.trace import Task

MOST_BACKOFF = 10
"""podMaxBackoffSeconds; podInitialBackoffSeconds is 1."""
SETTLED = 5
"""Failures from which on the backoff does not grow."""
NOT_BACKING_OFF = -1
"""Stands for the second in which a backoff ends that has ended."""


@dataclass(slots=True)
class WaitingPod:
    """A pod without a node. `last` is the second of its last attempt, `rank` orders pods whose backoff is the same."""

    pod: PlayedPod
    failures: int
    last: float
    rank: int = 0


def backoff_seconds(failures: int) -> int:
    """Return for how many seconds a pod backs off after so many failures (calculateBackoffDuration)."""
    return min(MOST_BACKOFF, 1 << min(failures, SETTLED) - 1)


class SchedulingQueue:
    """The pods that wait.

    Since each departure tries all pods, those that have failed SETTLED times keep their order among themselves, and
    their state is one time and one rank; only the others, `_ahead` of them and `_behind` them, are kept one by one.
    """

    def __init__(self) -> None:
        self._ahead: list[WaitingPod] = []
        self._settled: dict[Task, deque[WaitingPod]] = {}
        self._behind: list[WaitingPod] = []
        self._first = self._next = 0
        self._woken = 0.0

    def __iter__(self) -> Iterator[PlayedPod]:
        """List the pods that wait, in no order."""
        settled = (waiting for pods in self._settled.values() for waiting in pods)
        return (waiting.pod for pods in (self._ahead, settled, self._behind) for waiting in pods)

    def add(self, pod: PlayedPod, now: float) -> None:
        """Add a pod whose first attempt has failed."""
        self._behind.append(WaitingPod(pod, 1, now))

    def remove(self, numbers: Collection[int]) -> None:
        """Remove pods by their numbers."""
        self._ahead = [waiting for waiting in self._ahead if waiting.pod.number not in numbers]
        self._behind = [waiting for waiting in self._behind if waiting.pod.number not in numbers]
        settled = {
            task: deque(waiting for waiting in pods if waiting.pod.number not in numbers)
            for task, pods in self._settled.items()
        }
        self._settled = {task: pods for task, pods in settled.items() if pods}

    def wake(self, now: float, fits: Callable[[Task], bool], place: Callable[[PlayedPod], None]) -> None:
        """Try all pods. `fits` tells whether a task fits the node that a pod has left, `place` places a pod."""

        def tried(pods: list[WaitingPod]) -> list[WaitingPod]:
            return [waiting for waiting in pods if not self._try(waiting, now, fits, place)]

        ahead, behind = self._in_order(now)
        self._ahead = tried(ahead)
        self._try_settled(fits, place)
        self._behind = tried(behind)
        self._settle()
        self._woken = now

    def _in_order(self, now: float) -> tuple[list[WaitingPod], list[WaitingPod]]:
        """Return the pods that are tried before those that have settled, and those that are tried after them."""
        settled = (_backing_off_until(self._woken + MOST_BACKOFF, now), 1)
        keyed = [
            ((_backing_off_until(waiting.last + backoff_seconds(waiting.failures), now), side), waiting)
            for side, pods in ((0, self._ahead), (2, self._behind))
            for waiting in pods
        ]
        keyed.sort(key=lambda item: item[0])
        return [waiting for key, waiting in keyed if key < settled], [item for key, item in keyed if key > settled]

    def _try(
        self, waiting: WaitingPod, now: float, fits: Callable[[Task], bool], place: Callable[[PlayedPod], None]
    ) -> bool:
        if fits(waiting.pod.task):
            place(waiting.pod)
            return True
        waiting.failures, waiting.last = waiting.failures + 1, now
        return False

    def _try_settled(self, fits: Callable[[Task], bool], place: Callable[[PlayedPod], None]) -> None:
        """Try the pods that have settled, by rank. Pods of one task fit alike, so that only the first is looked at."""
        heads = [(pods[0].rank, task) for task, pods in self._settled.items() if fits(task)]
        heapify(heads)
        while heads:
            _, task = heappop(heads)
            if not fits(task):
                continue
            pods = self._settled[task]
            place(pods.popleft().pod)
            if pods:
                heappush(heads, (pods[0].rank, task))
            else:
                del self._settled[task]

    def _settle(self) -> None:
        """Let pods that have failed often enough join those that have settled, at the end at which they are."""
        while self._ahead and self._ahead[-1].failures >= SETTLED:
            waiting = self._ahead.pop()
            self._first -= 1
            waiting.rank = self._first
            self._settled.setdefault(waiting.pod.task, deque()).appendleft(waiting)
        count = next((index for index, item in enumerate(self._behind) if item.failures < SETTLED), len(self._behind))
        for waiting in self._behind[:count]:
            self._next += 1
            waiting.rank = self._next
            self._settled.setdefault(waiting.pod.task, deque()).append(waiting)
        del self._behind[:count]


def _backing_off_until(end: float, now: float) -> int:
    """Return the second in which a backoff ends, as backoffQ orders pods (alignToWindow); or that it has ended."""
    return floor(end) if floor(end) >= floor(now) else NOT_BACKING_OFF
