# SPDX-License-Identifier: Apache-2.0
"""The demand by which nodes are filtered and scored for a Pod: what policies say of it, and what the cluster adds.

The extender and explain both come here, so that an explanation shows the scores that kube-scheduler was given.
"""

from dataclasses import replace
from math import ceil

from app.kube.pod_requests import CORE_MILLI, CPU
from app.kube.pods import Pod
from app.placement.scorers import looks_ahead
from app.policy.demand import Demand
from app.policy.expected_demand import ExpectedDemand


def scheduler_demand(
    pod: Pod, demand: Demand, group_cliques: frozenset[str], expected: ExpectedDemand | None
) -> Demand:
    """Add to a Pod's demand the NVLink domains in which its group runs, and what scorers need that look ahead."""
    return expecting(with_cliques(demand, group_cliques), whole_cores(pod), expected)


def with_cliques(demand: Demand, group_cliques: frozenset[str]) -> Demand:
    """Add the NVLink domains in which pods of the same group run; the very demand where there are none."""
    return replace(demand, group_cliques=group_cliques) if group_cliques else demand


def expecting(demand: Demand, cpu_milli: int, expected: ExpectedDemand | None) -> Demand:
    """Add the Pod's CPU and the demand to be expected, if some scorer of the demand looks ahead."""
    return replace(demand, cpu_milli=cpu_milli, outlook=expected) if looks_ahead(demand) else demand


def whole_cores(pod: Pod) -> int:
    """Give the CPU that a Pod requests in milli-CPU, rounded up to whole cores, as that of nodes is rounded down.

    Each odd amount would else be a demand of its own, with verdicts of its own.
    """
    return CORE_MILLI * ceil(pod.amount(CPU))
