# SPDX-License-Identifier: Apache-2.0
"""A model of kube-scheduler around our answers: which nodes it examines, its own scores, and the node that it selects.

It follows v1.36: pkg/scheduler/schedule_one.go, framework/plugins/noderesources. Default plugins that score all nodes
of the trace alike (taints, affinity, spread, images) are left out, because a constant changes no choice.

A model of kube-scheduler's queue: pods that no node fits wait, and each pod that leaves has them tried again.

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

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import floor
from random import Random
from statistics import pstdev

from tests.bench.simulate.over_time_figures import PlayedPod
from tests.bench.simulate.trace import Task

LEAST_NODES = 100
"""minFeasibleNodesToFind: in a smaller cluster all nodes are examined."""
LEAST_PERCENT = 5
"""minFeasibleNodesPercentageToFind."""
POINT = 100
"""The weight of one of our points, of which a node gets 0 to 10, beside the in-tree scores: weight 10, as
scheduler-config writes it, times MaxNodeScore / MaxExtenderPriority = 100 / 10."""
MOST_IN_TREE = 200
"""The sum of the two plugins below, each of weight 1 and at most 100."""
DEFAULT_CPU_MILLI, DEFAULT_MEMORY_MIB = 100, 200
"""Milli and MiB that LeastAllocated assumes for a pod that requests none (util/pod_resources.go)."""


def nodes_to_find(nodes: int, percent: int = 0) -> int:
    """Return the number of feasible nodes that end the search (numFeasibleNodesToFind). `percent` 0 is the default."""
    if nodes < LEAST_NODES:
        return nodes
    if percent == 0:
        percent = max(LEAST_PERCENT, 50 - nodes // 125)
    return max(LEAST_NODES, nodes * min(percent, 100) // 100)


def find_feasible(feasible: Sequence[int], start: int, count: int) -> tuple[list[int], int]:
    """Return the next `count` feasible nodes from a start index on, and where the next search starts.

    `feasible` are the positions of all feasible nodes, ascending. The search is findNodesThatPassFilters with one
    worker: it ends at the first feasible node beyond the wanted number, which does not count as examined; after a whole
    round it starts at the same index again.
    """
    first = bisect_left(feasible, start)
    positions = [*feasible[first:], *feasible[:first]]
    return positions[:count], positions[count] if len(positions) > count else start


def least_allocated(requested: tuple[int, int], allocatable: tuple[int, int]) -> int:
    """Score a node by the CPU and memory left with the pod on it (least_allocated.go, equal weights)."""
    score = 0
    for used, most in zip(requested, allocatable, strict=True):
        score += (most - used) * 100 // most if 0 < most >= used else 0
    return score // 2


def balance_change(used: Sequence[int], wanted: Sequence[int], allocatable: Sequence[int]) -> int:
    """Score a node by how a pod changes the balance of its resources (balancedResourceScorer, v1.36 and v1.37)."""
    after = [amount + more for amount, more in zip(used, wanted, strict=True)]
    return 50 + (50 + _balance(after, allocatable) - _balance(used, allocatable)) // 2


def _balance(used: Sequence[int], allocatable: Sequence[int]) -> int:
    fractions = [min(1.0, amount / most) for amount, most in zip(used, allocatable, strict=True) if most]
    return int((1 - pstdev(fractions)) * 100) if len(fractions) > 1 else 100


def select(points: Sequence[int], in_tree: Callable[[int], int], rng: Random) -> int:
    """Return the position with the highest sum of our points and in-tree score, a random one of equals (selectHost).

    The in-tree score is computed only for positions that can still win.
    """
    best, tied = -1, list[int]()
    for position in sorted(range(len(points)), key=points.__getitem__, reverse=True):
        if points[position] * POINT + MOST_IN_TREE < best:
            break
        score = points[position] * POINT + in_tree(position)
        if score > best:
            best, tied = score, [position]
        elif score == best:
            tied.append(position)
    return tied[0] if len(tied) == 1 else rng.choice(sorted(tied))


MOST_BACKOFF = 10
"""podMaxBackoffSeconds; podInitialBackoffSeconds is 1."""
SETTLED = 5
"""Failures from which on the backoff does not grow."""
NOT_BACKING_OFF = -1
"""Stands for the second in which a backoff ends that has ended."""


@dataclass(slots=True)
class QueuedPod:
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
        self._ahead: list[QueuedPod] = []
        self._settled: dict[Task, deque[QueuedPod]] = {}
        self._behind: list[QueuedPod] = []
        self._first = self._next = 0
        self._woken = 0.0

    def __iter__(self) -> Iterator[PlayedPod]:
        """List the pods that wait, in no order."""
        settled = (waiting for pods in self._settled.values() for waiting in pods)
        return (waiting.pod for pods in (self._ahead, settled, self._behind) for waiting in pods)

    def add(self, pod: PlayedPod, now: float) -> None:
        """Add a pod whose first attempt has failed."""
        self._behind.append(QueuedPod(pod, 1, now))

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

        def tried(pods: list[QueuedPod]) -> list[QueuedPod]:
            return [waiting for waiting in pods if not self._try(waiting, now, fits, place)]

        ahead, behind = self._in_order(now)
        self._ahead = tried(ahead)
        self._try_settled(fits, place)
        self._behind = tried(behind)
        self._settle()
        self._woken = now

    def _in_order(self, now: float) -> tuple[list[QueuedPod], list[QueuedPod]]:
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
        self, waiting: QueuedPod, now: float, fits: Callable[[Task], bool], place: Callable[[PlayedPod], None]
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
