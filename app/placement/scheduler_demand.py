# SPDX-License-Identifier: Apache-2.0
"""The demand by which nodes are filtered and scored for a Pod: the demand of its ruling with facts about the cluster.

The extender and explain both use it, so that explain shows the scores that kube-scheduler gets. Such a fact is the
expected demand of the cluster's workload: the frequencies of its demand classes, and the free GPUs by product.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from math import ceil, inf

from app.kube.objects import RuntimeClass
from app.kube.pod_requests import CORE_MILLI, CPU
from app.kube.pods import Pod, workload_group
from app.placement.scorers import uses_expected_demand
from app.policy.demand import Demand, DemandClass, ExpectedDemand, ProductLimit

HeldUnits = tuple[tuple[Iterable[str] | None, int], ...]
"""What is held: the product, or all that it may be, in normal form; None for any product; and the units."""


def scheduler_demand(
    pod: Pod,
    demand: Demand,
    group_cliques: frozenset[str],
    expected: ExpectedDemand | None,
    classes: Mapping[str, RuntimeClass] | None,
    held: HeldUnits,
) -> Demand:
    """Add to a Pod's demand its runtime handler, the NVLink domains in which its workload runs, its CPU, the expected
    demand, and the limits of its namespace that are reached. `held` is what other pods of the namespace hold.
    """
    demand = with_cliques(with_runtime_handler(demand, pod, classes), group_cliques)
    demand = with_reached_limits(demand, held) if demand.namespace_limits else demand
    return expecting(demand, whole_cores(pod), expected)


def with_runtime_handler(demand: Demand, pod: Pod, classes: Mapping[str, RuntimeClass] | None) -> Demand:
    """Add the handler of the Pod's RuntimeClass; the same demand without a class, or where it is not known."""
    found = (classes or {}).get(pod.runtime_class_name or "")
    return _with_handler(demand, found.handler) if found is not None else demand


@lru_cache(maxsize=1024)
def _with_handler(demand: Demand, handler: str) -> Demand:
    """Add a runtime handler; pods of one template share the result, whose hash is then computed once."""
    return replace(demand, runtime_handler=handler)


def with_reached_limits(demand: Demand, held: HeldUnits) -> Demand:
    """Add the limits of the namespace that the pod would exceed; the same object where there are none.

    Only those carry what is used, so that the verdicts of pods below their limits stay cached.
    """
    reached = []
    for limit in demand.namespace_limits:
        used = used_of(limit, held)
        if used + demand.gpus > limit.most:
            reached.append(replace(limit, used=used))
    return replace(demand, reached_limits=tuple(reached)) if reached else demand


def used_of(limit: ProductLimit, held: HeldUnits) -> int:
    """Sum up the units that a limit concerns."""
    return sum(units for products, units in held if products is None or any(map(limit.concerns, products)))


def with_cliques(demand: Demand, group_cliques: frozenset[str]) -> Demand:
    """Add the NVLink domains in which pods of the same workload run; without any, return the same object."""
    return replace(demand, group_cliques=group_cliques) if group_cliques else demand


def expecting(demand: Demand, cpu_milli: int, expected: ExpectedDemand | None) -> Demand:
    """Add the Pod's CPU and the expected demand, if a scorer of the demand depends on them."""
    return replace(demand, cpu_milli=cpu_milli, expected_demand=expected) if uses_expected_demand(demand) else demand


def place_is_promised(pod: Pod, demand: Demand) -> bool:
    """Tell whether later decisions depend on the node of a GPU pod: for declared memory, for a limit of its namespace,
    or for pods of its workload.

    Those of a PodGroup are asked about in cycles that may be reverted, so that no answer depends on an earlier one.
    """
    own = bool(demand.declared_mib or demand.namespace_limits)
    if pod.pod_group:
        return demand.requests_gpus and own
    return demand.requests_gpus and (own or bool(workload_group(pod.namespace, pod.labels)))


def whole_cores(pod: Pod) -> int:
    """Give the CPU that a Pod requests in milli-CPU, rounded up to whole cores, as that of nodes is rounded down.

    Without rounding, pods that differ only in an amount of CPU would have demands of their own in all caches.
    """
    return CORE_MILLI * ceil(pod.amount(CPU))


FREE_STEPS, FREE_FLOOR = 4, 16
"""The free capacity of a product is rounded to powers of two in FREE_STEPS steps, once a FREE_FLOORth of its whole
capacity was added. A new amount invalidates cached verdicts, and the last free GPUs come and go with every pod."""


def expected_from_weights(
    weights: Mapping[DemandClass, float],
    free: Mapping[str, int],
    limits: Mapping[DemandClass, float] | None = None,
    seen_milli: float = inf,
) -> ExpectedDemand | None:
    """Give the expected demand by the weights of classes, and of limits where these are counted apart.

    None without classes. Equal weights are in an order of their own, so that their sums are equal to the last digit.
    """
    if not weights:
        return None
    classes = _shares(weights)
    apart = None if limits is None else tuple(item for item in _shares(limits) if item[0].constrained)
    return ExpectedDemand(classes, tuple(sorted(free.items())), seen_milli, apart)


def _shares(weights: Mapping[DemandClass, float]) -> tuple[tuple[DemandClass, float], ...]:
    """Divide weights by their sum, the highest first."""
    total = sum(weights.values())
    ordered = sorted(weights.items(), key=lambda item: (-item[1], *_order(item[0])))
    return tuple((demand_class, weight / total) for demand_class, weight in ordered)


def _order(demand_class: DemandClass) -> tuple[object, ...]:
    texts = tuple(tuple(pattern.text for pattern in patterns) for patterns in demand_class.products)
    denied = tuple(pattern.text for pattern in demand_class.denied_products)
    return (demand_class.cpu_milli, demand_class.gpus, demand_class.share_milli, texts, denied)


def free_floor(whole: int) -> int:
    """Give the capacity, 1 at least, that is added to the free capacity of a product before it is rounded."""
    return max(1, -(-whole // FREE_FLOOR))


def free_step(free: int, whole: int) -> tuple[int, int]:
    """Give the step to which the free capacity of a product belongs, of which `whole` is the capacity if all is free.

    It is the range of `free` plus the floor that is rounded alike, without its start, to its end.
    """
    floor = free_floor(whole)
    low, high, step = -1, floor, 0
    while high < free + floor:
        step += 1
        low, high = high, round(floor * 2 ** (step / FREE_STEPS)) + 1
    return low, high


def demand_class(demand: Demand) -> DemandClass:
    """Give the demand class of a demand."""
    gpus = sum(amount for _, amount in demand.resources)
    return DemandClass(demand.cpu_milli, gpus, demand.share_milli, demand.products, demand.denied_products)
