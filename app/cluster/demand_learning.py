# SPDX-License-Identifier: Apache-2.0
"""Learning what is asked: the histogram of the workload, and the outlook of it that demands carry (F52).

An outlook stands for a while: with a new one every remembered verdict of a demand that carries it is made anew.
"""

from collections.abc import Callable, Mapping

from app.kube.pods import Pod
from app.placement.scheduler_demand import expecting, whole_cores
from app.placement.scorers import uses_expected_demand
from app.placement.workload import Workload, demand_class
from app.policy.demand import Demand
from app.policy.expected_demand import DemandClass, ExpectedDemand

FIRST_LESSON, LONGEST_LESSON = 32, 1_000
"""Arrivals before an outlook is first made of those seen, and after which it is made again at the latest (guesses)."""
LESSON_SHARE = 4
"""It is made again when a quarter more has been seen."""
PODS_KEPT = 4_096
"""UIDs of pods that have been counted: one that finds no place is asked about again and again."""
LONGEST_UID = 36
"""Characters of a UID as the API server makes them; what comes with a longer one teaches nothing."""
DEMANDS_KEPT = 1_024
"""Demands with the outlook of the moment; as many as rulings are remembered (cluster/rulings.py)."""


class DemandLearning:
    """What was asked so far. `free`: tells the GPU milli that are free, by product.

    `expected_demand`: what is made of both; None at first.
    """

    def __init__(self, free: Callable[[], Mapping[str, int]]) -> None:
        self.expected_demand: ExpectedDemand | None = None
        self._free = free
        self._workload = Workload()
        self._count, self._lesson = 0, FIRST_LESSON
        self._pods: dict[str, None] = {}
        self._demands: dict[tuple[Demand, int], Demand] = {}

    def arrived(self, ask: DemandClass) -> bool:
        """Take an arrival in; tells whether the outlook is a new one."""
        self._workload = self._workload.seen(ask)
        self._count += 1
        if self._count < self._lesson:
            return False
        self._lesson += min(LONGEST_LESSON, max(FIRST_LESSON, self._count // LESSON_SHARE))
        self.expected_demand = self._workload.expected_demand(self._free())
        return True

    def expecting(self, pod: Pod, demand: Demand) -> Demand:
        """Add to a Pod's demand what scorers need that look ahead, if it names any.

        Equal questions get the very same object, by which verdicts are found again.
        """
        if not uses_expected_demand(demand):
            return demand
        key = (demand, whole_cores(pod))
        if key not in self._demands:
            if len(self._demands) >= DEMANDS_KEPT:
                self._demands.clear()
            self._demands[key] = expecting(demand, key[1], self.expected_demand)
        return self._demands[key]

    def learn(self, pod: Pod, demand: Demand) -> None:
        """Count a Pod that kube-scheduler asks about, once, if its demand names a scorer that looks ahead."""
        if not uses_expected_demand(demand) or pod.uid in self._pods or len(pod.uid) > LONGEST_UID:
            return
        self._pods[pod.uid] = None
        if len(self._pods) > PODS_KEPT:
            del self._pods[next(iter(self._pods))]
        if self.arrived(demand_class(demand)):
            self._demands.clear()
