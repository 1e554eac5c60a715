# SPDX-License-Identifier: Apache-2.0
"""The demand by which nodes are filtered and scored for a Pod: the demand of its ruling with facts about the cluster.

The extender and explain both use it, so that explain shows the scores that kube-scheduler gets.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import ceil

from app.kube.pod_requests import CORE_MILLI, CPU
from app.kube.pods import Pod, workload_group
from app.nodes.reading import RuntimeClass
from app.placement.scorers import uses_expected_demand
from app.policy.demand import Demand, ExpectedDemand


def scheduler_demand(
    pod: Pod,
    demand: Demand,
    group_cliques: frozenset[str],
    expected: ExpectedDemand | None,
    classes: Mapping[str, RuntimeClass] | None,
) -> Demand:
    """Add to a Pod's demand its runtime handler, the NVLink domains in which its workload runs, its CPU, and the
    expected demand.
    """
    demand = with_cliques(with_runtime_handler(demand, pod, classes), group_cliques)
    return expecting(demand, whole_cores(pod), expected)


def with_runtime_handler(demand: Demand, pod: Pod, classes: Mapping[str, RuntimeClass] | None) -> Demand:
    """Add the handler of the Pod's RuntimeClass; the same demand without a class, or where it is not known."""
    found = (classes or {}).get(pod.runtime_class_name or "")
    return _with_handler(demand, found.handler) if found is not None else demand


@lru_cache(maxsize=1024)
def _with_handler(demand: Demand, handler: str) -> Demand:
    """Add a runtime handler; pods of one template share the result, whose hash is then computed once."""
    return replace(demand, runtime_handler=handler)


def with_cliques(demand: Demand, group_cliques: frozenset[str]) -> Demand:
    """Add the NVLink domains in which pods of the same workload run; without any, return the same object."""
    return replace(demand, group_cliques=group_cliques) if group_cliques else demand


def expecting(demand: Demand, cpu_milli: int, expected: ExpectedDemand | None) -> Demand:
    """Add the Pod's CPU and the expected demand, if a scorer of the demand depends on them."""
    return replace(demand, cpu_milli=cpu_milli, expected_demand=expected) if uses_expected_demand(demand) else demand


def place_is_promised(pod: Pod, demand: Demand) -> bool:
    """Tell whether later decisions depend on the node of a GPU pod: for declared memory or a pod group."""
    return demand.requests_gpus and bool(demand.declared_mib or workload_group(pod.namespace, pod.labels))


def whole_cores(pod: Pod) -> int:
    """Give the CPU that a Pod requests in milli-CPU, rounded up to whole cores, as that of nodes is rounded down.

    Without rounding, pods that differ only in an amount of CPU would have demands of their own in all caches.
    """
    return CORE_MILLI * ceil(pod.amount(CPU))
