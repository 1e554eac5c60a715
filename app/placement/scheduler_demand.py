# SPDX-License-Identifier: Apache-2.0
"""The demand by which nodes are filtered and scored for a Pod: the demand of its ruling with facts about the cluster.

The extender and explain both use it, so that explain shows the scores that kube-scheduler gets.
"""

from dataclasses import replace
from math import ceil

from app.kube.pod_requests import CORE_MILLI, CPU
from app.kube.pods import Pod
from app.placement.scorers import uses_expected_demand
from app.policy.demand import Demand
from app.policy.expected_demand import ExpectedDemand


def scheduler_demand(
    pod: Pod, demand: Demand, group_cliques: frozenset[str], expected: ExpectedDemand | None
) -> Demand:
    """Add to a Pod's demand the NVLink domains in which its workload runs, its CPU, and the expected demand."""
    return expecting(with_cliques(demand, group_cliques), whole_cores(pod), expected)


def with_cliques(demand: Demand, group_cliques: frozenset[str]) -> Demand:
    """Add the NVLink domains in which pods of the same workload run; without any, return the same object."""
    return replace(demand, group_cliques=group_cliques) if group_cliques else demand


def expecting(demand: Demand, cpu_milli: int, expected: ExpectedDemand | None) -> Demand:
    """Add the Pod's CPU and the expected demand, if a scorer of the demand depends on them."""
    return replace(demand, cpu_milli=cpu_milli, expected_demand=expected) if uses_expected_demand(demand) else demand


def whole_cores(pod: Pod) -> int:
    """Give the CPU that a Pod requests in milli-CPU, rounded up to whole cores, as that of nodes is rounded down.

    Without rounding, pods that differ only in an amount of CPU would have demands of their own in all caches.
    """
    return CORE_MILLI * ceil(pod.amount(CPU))
