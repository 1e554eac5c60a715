# SPDX-License-Identifier: Apache-2.0
"""Learns the workload from the pods that kube-scheduler asks about, as the expected demand for scorers (F52).

An expected demand stays the same for a while, because a new one invalidates all cached verdicts of demands with it.
"""

from collections.abc import Callable, Mapping

from app.kube.pods import Pod
from app.placement.scheduler_demand import expecting, whole_cores
from app.placement.scorers import uses_expected_demand
from app.placement.workload import Workload, demand_class
from app.policy.demand import Demand
from app.policy.expected_demand import DemandClass, ExpectedDemand

FIRST_LESSON, LONGEST_LESSON = 32, 1_000
"""Arrivals before the first expected demand is made, and the most arrivals between two later ones (guesses)."""
LESSON_SHARE = 4
"""It is made again after a quarter more arrivals."""
PODS_KEPT = 4_096
"""UIDs of counted pods; a pod without a place is asked about repeatedly, and counts once."""
LONGEST_UID = 36
"""Characters of a UID of the API server; pods with a longer one are not counted."""
DEMANDS_KEPT = 1_024
"""Demands with the current expected demand; as many as there are cached rulings (app/cluster/ruling_cache.py)."""


class DemandLearning:
    """The workload so far. `free` returns the free GPU milli by product.

    `expected_demand` is made of both; None at first.
    """

    def __init__(self, free: Callable[[], Mapping[str, int]]) -> None:
        self.expected_demand: ExpectedDemand | None = None
        self._free = free
        self._workload = Workload()
        self._count, self._lesson = 0, FIRST_LESSON
        self._pods: dict[str, None] = {}
        self._demands: dict[tuple[Demand, int], Demand] = {}

    def arrived(self, ask: DemandClass) -> bool:
        """Count an arrival; tell whether the expected demand has changed."""
        self._workload = self._workload.seen(ask)
        self._count += 1
        if self._count < self._lesson:
            return False
        self._lesson += min(LONGEST_LESSON, max(FIRST_LESSON, self._count // LESSON_SHARE))
        self.expected_demand = self._workload.expected_demand(self._free())
        return True

    def expecting(self, pod: Pod, demand: Demand) -> Demand:
        """Add to a Pod's demand what scorers that look ahead need, if it names any.

        Equal requests get the very same object, which is the key of cached verdicts.
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
