# SPDX-License-Identifier: Apache-2.0
"""Filters: functions that give the reason why a node cannot serve a demand; the tuples at the end list them in order.

A class filter judges facts that evicting pods cannot change, once for each NodeClass; a free filter judges what is free
now. Both give None if the node fits. Messages name what the pod wants, and no value of a node
(docs/reference/reasons.md).
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from operator import attrgetter

from app.knowledge.mig_geometry import place_instances
from app.knowledge.mig_profiles import profile_of
from app.kube.numa_zones import NUMAZones, topology_refusal
from app.nodes.model import FreeResources, NodeClass, Sharing
from app.placement.class_filters import (
    SETTLED,
    driver_new_enough,
    gpus_healthy,
    image_for_machine,
    image_has_code,
    mig_profile_offered,
    several_units_allowed,
    sharing_allowed,
    toolkit_targets_gpu,
)
from app.placement.mig_slices import exceeds_all_gpus, profiles_of, requested_slices
from app.policy.demand import Demand, DemandClass
from app.policy.facts import ClassFilter, FactConstraint
from app.policy.needs import CONSTRAINTS, LEAST_CAPABILITY, NODE_SELECTOR, WITH_FACT
from app.values.label_requirements import all_allow
from app.values.reasons import Code, Reason, join_with_or, reason

FreeFilter = Callable[[Demand, FreeResources], Reason | None]


class DecidedBy(Enum):
    """What decides a class filter: the GPU product alone, whatever else is on the node, or further facts of the node.

    Node affinity excludes the product labels that a filter of the first kind refuses (admission/affinity_terms.py).
    """

    PRODUCT = "product"
    NODE = "node"


def annotations_parse(demand: Demand, _node: NodeClass) -> Reason | None:
    """Refuse every node if an annotation does not parse, or if claims are for too many GPUs.

    Such a pod was admitted while the webhook was down, or before its claims.
    """
    return demand.invalid


def resources_offered(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a node that has none of a requested resource, with the likely cause."""
    for resource, amount in demand.resources:
        if node.allocatable(resource) > 0 or resource in node.dra_resources:
            continue
        if 0 < amount <= node.capacity(resource):
            return _devices_withdrawn(resource)
        if node.claims_only and resource.startswith(node.claims_only):
            return reason(Code.OfferedByClaimOnly, "a DRA driver serves the node's GPUs, to claims only", resource)
        if any(promise.concerns(resource) for promise in node.absent):
            return reason(Code.GhostGPUs, "labels promise GPUs that the node does not offer", resource)
        if profile_of(resource):
            return reason(Code.MIGProfileAbsent, "MIG profile not on this node", profile_of(resource) or "")
        return reason(Code.ResourceNotOffered, "resource not offered", resource)
    return None


def request_within_node(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a node whose allocatable is less than the pod requests; evicting pods does not repair devices."""
    for resource, amount in demand.resources:
        if node.unit(resource) is Sharing.HAMi and _most_in_one_container(demand, resource) > node.hami_gpus > 0:
            return reason(
                Code.RequestExceedsNode, "a container asks for more GPUs than HAMi shares", f"{amount} {resource}"
            )
        if amount > node.allocatable(resource) and resource not in node.dra_resources:
            if amount <= node.capacity(resource):
                return _devices_tainted(resource) if node.claims_only else _devices_withdrawn(resource)
            return reason(Code.RequestExceedsNode, "asks for more than the node has", f"{amount} {resource}")
    return None


def _most_in_one_container(demand: Demand, resource: str) -> int:
    """Give the most units that one container requests; HAMi takes each of them from another GPU (its Fit)."""
    return max((amount for name, amount in demand.max_per_container if name == resource), default=0)


def _devices_withdrawn(resource: str) -> Reason:
    return reason(Code.GPUUnhealthy, "the device plugin has withdrawn devices of the node", f"healthy {resource}")


def _devices_tainted(resource: str) -> Reason:
    return reason(Code.GPUUnhealthy, "device taints keep claims off devices of the node", f"healthy {resource}")


NODE_SELECTED = FactConstraint(
    attrgetter("labels"), lambda selector, labels: all_allow(selector, dict(labels)), NODE_SELECTOR.value,
    Code.NodeExcluded, "node left out by the policy's node selector", "other values of {}",
    lambda selector: ", ".join(dict.fromkeys(requirement.key for requirement in selector)),
)  # fmt: skip
RUNTIME_HANDLER = FactConstraint(
    attrgetter("runtime_handlers"), lambda handler, handlers: handler in handlers, attrgetter("runtime_handler"),
    Code.RuntimeHandlerAbsent, "the node has no such runtime handler",
)  # fmt: skip
"""The kubelet of a node without the handler of the pod's RuntimeClass cannot start the pod."""


def product_allowed(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse products that are not allowed; an unknown product never meets a need for certain products."""
    if not demand.products and not demand.denied_products:
        return None
    if node.several_models:
        return reason(
            Code.GPUFactsMissing, "GPU product not certain, more units than the labels count", _wanted_products(demand)
        )
    candidates = node.candidates
    if demand.resources and not candidates and not node.offered and not node.dra_resources:
        return None  # the node has no GPUs, for which resources_offered has the reason
    verdicts = {allows_product(demand, product) for product in candidates}
    if verdicts == {True}:
        return None
    if verdicts == {False}:
        return reason(Code.ProductNotAllowed, "GPU product not allowed", _wanted_products(demand))
    return reason(Code.GPUFactsMissing, "GPU product unknown", _wanted_products(demand))


def allows_product(demand: Demand | DemandClass, product: str) -> bool:
    """Tell whether a demand allows a product in normal form."""
    if any(pattern.matches(product) for pattern in demand.denied_products):
        return False
    return all(any(pattern.matches(product) for pattern in any_of) for any_of in demand.products)


def within_namespace_limits(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a product of which the namespace would hold more than a policy allows it, pods being bound included."""
    if not demand.reached_limits:
        return None
    for limit in demand.reached_limits:
        if any(map(limit.concerns, node.candidates)):
            counted = "GPUs of any product" if limit.patterns[0].text == "*" else limit.patterns[0].text
            held = f"the namespace has {limit.used} of at most {limit.most} {counted}"
            return reason(Code.NamespaceLimitReached, held, f"{demand.gpus} more")
    return None


def numa_node_large_enough(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a node whose kubelet would refuse the pod, by its topology manager, even with no other pod on it."""
    if not demand.device_amounts or node.numa is None:
        return None
    return _refused_by_kubelet(demand, node.numa, Code.RequestExceedsNUMANode, "NUMA nodes too small")


def _refused_by_kubelet(demand: Demand, zones: NUMAZones, code: Code, wrong: str) -> Reason | None:
    """Give the reason if a kubelet, whose policy is known, would refuse the pod."""
    refusal = topology_refusal(demand.device_amounts, zones) if zones.policy else None
    return reason(code, f"{wrong} for the topology manager", refusal.wanted) if refusal is not None else None


def _wanted_products(demand: Demand) -> str:
    shortest = min(demand.products, key=len, default=())
    allowed = join_with_or([pattern.text for pattern in shortest])
    denied = join_with_or([pattern.text for pattern in demand.denied_products])
    return f"{allowed}, not {denied}" if allowed and denied else allowed or f"not {denied}"


def enough_units(demand: Demand, free: FreeResources) -> Reason | None:
    """Refuse a node with fewer free units than requested; kube-scheduler counts these too."""
    if demand.share_milli and free.gpus is not None:
        return None  # share_left judges the single GPUs
    for resource, amount in demand.resources:
        if free.units.get(resource, 0) < amount and resource not in free.uncounted:
            return reason(Code.InsufficientGPUs, "not enough free GPUs", f"{amount} {resource}")
    return None


def numa_node_free(demand: Demand, free: FreeResources) -> Reason | None:
    """Refuse a node whose kubelet would refuse the pod, by its topology manager, for what other pods hold."""
    if not demand.device_amounts or free.numa is None:
        return None
    return _refused_by_kubelet(demand, free.numa, Code.InsufficientGPUsOnNUMANode, "not enough free on one NUMA node")


def share_left(demand: Demand, free: FreeResources) -> Reason | None:
    """Refuse a node on which no GPU has the requested share left, where the single GPUs are known."""
    if not demand.share_milli or free.gpus is None or demand.share_milli <= max(free.gpus, default=0):
        return None
    return reason(Code.InsufficientGPUs, "not enough free GPUs", f"{demand.share_milli} thousandths of one")


def memory_left(demand: Demand, free: FreeResources) -> Reason | None:
    """Refuse a node on whose shared GPUs other pods have declared the memory that the pod declares.

    See docs/reference/sharing-and-memory.md#memory-budgets.
    """
    if not demand.declared_mib or not free.memory:
        return None
    for resource, amount in demand.resources:
        left = free.memory.get(resource)
        if left is not None and amount * demand.declared_mib > left:
            wants = f"{demand.declared_mib} MiB on each of {amount} {resource}"
            return reason(Code.GPUMemoryBudgetExceeded, "memory of the shared GPUs is promised to other pods", wants)
    return None


def layout_fits(demand: Demand, free: FreeResources) -> Reason | None:
    """Refuse a node whose GPUs have no place for the requested MIG slices beside the existing ones.

    It applies only where MIG slices are created on demand, since those of a device plugin are fixed and counted
    exactly. The filter repeats what kube-scheduler's DynamicResources plugin checks by the shared counters of the same
    ResourceSlices. Behind a live scheduler it is left out, because our later view would only add false
    refusals.
    """
    if free.layouts is None:
        return None
    slices = requested_slices(demand, free)
    if not slices:
        return None
    wants = " and ".join(f"{amount} {name}" for name, amount in slices)
    refusal = reason(Code.LayoutDoesNotFit, "no room for the MIG slices beside others", wants)
    if exceeds_all_gpus(slices, free.layouts):
        return refusal
    return None if place_instances(free.layouts, profiles_of(slices)) is not None else refusal


def served_by_one(demand: Demand, free: FreeResources) -> Reason | None:
    """Refuse a node on which the pod could get a GPU that another pod has, one of them by the plugin, one by a claim.

    Neither the plugin nor kube-scheduler knows which GPUs the other one has given (world/gpu_allocations.py).
    """
    if (twice := free.twice) is None:
        return None
    resources = {resource for resource, _ in demand.resources}
    claims = resources.union(name for name, _ in demand.claims) & twice.by_claims
    if resources & twice.not_by_plugin or (claims and resources & twice.by_plugin):
        return _HELD_BY_CLAIM
    return _HELD_BY_PLUGIN if claims and twice.not_by_claims else None


_HELD_BY_CLAIM = reason(
    Code.GPUHeldByClaim,
    "device plugin and DRA both serve the node's GPUs, and the plugin may give one that a claim has",
)
_HELD_BY_PLUGIN = reason(
    Code.GPUHeldByDevicePlugin,
    "device plugin and DRA both serve the node's GPUs, and a claim may get one that the plugin has given",
)

_CLASS_FILTERS: tuple[tuple[ClassFilter, DecidedBy], ...] = (
    (annotations_parse, DecidedBy.NODE),
    (NODE_SELECTED.judge, DecidedBy.NODE),
    (image_for_machine, DecidedBy.NODE),
    (RUNTIME_HANDLER.judge, DecidedBy.NODE),
    (product_allowed, DecidedBy.PRODUCT),
    (within_namespace_limits, DecidedBy.NODE),
    *((row.judge, DecidedBy.NODE) for row in SETTLED),
    (gpus_healthy, DecidedBy.NODE),
    (resources_offered, DecidedBy.NODE),
    (sharing_allowed, DecidedBy.NODE),
    (several_units_allowed, DecidedBy.NODE),
    (mig_profile_offered, DecidedBy.NODE),
    (driver_new_enough, DecidedBy.NODE),
    (CONSTRAINTS[LEAST_CAPABILITY].judge, DecidedBy.PRODUCT),
    (toolkit_targets_gpu, DecidedBy.PRODUCT),
    (image_has_code, DecidedBy.PRODUCT),
    *(
        (CONSTRAINTS[need].judge, DecidedBy.PRODUCT if fact.by_product else DecidedBy.NODE)
        for need, fact in WITH_FACT
        if need is not LEAST_CAPABILITY
    ),
    (request_within_node, DecidedBy.NODE),
    (numa_node_large_enough, DecidedBy.NODE),
)
"""The class filters in order; the first refusal is the reason for the node.

Causes that waiting cannot change, such as the wrong product, come first. A node that is being changed comes before the
resources that it lacks meanwhile.
"""
CLASS_FILTERS = tuple(class_filter for class_filter, _ in _CLASS_FILTERS)


_MAKERS: Mapping[ClassFilter, Callable[[Demand], ClassFilter | None]] = {
    row.judge: row.filter_for for row in (NODE_SELECTED, RUNTIME_HANDLER, *SETTLED, *CONSTRAINTS.values())
}


@lru_cache(maxsize=1024)
def class_filters_of(demand: Demand) -> tuple[ClassFilter, ...]:
    """List the class filters for a demand, without those of constraints that it does not have."""
    makers = ((_MAKERS.get(accepts), accepts) for accepts in CLASS_FILTERS)
    return tuple(filter(None, (accepts if make is None else make(demand) for make, accepts in makers)))


PRODUCT_FILTERS = tuple(class_filter for class_filter, decided_by in _CLASS_FILTERS if decided_by is DecidedBy.PRODUCT)

FREE_FILTERS: tuple[FreeFilter, ...] = (
    enough_units, share_left, memory_left, layout_fits, served_by_one, numa_node_free,
)  # fmt: skip
"""The free filters in order."""

COUNTED_IN_TREE: frozenset[FreeFilter] = frozenset({enough_units, share_left, layout_fits})
"""The free filters that repeat kube-scheduler's own counts; the filter verb leaves them out behind a live scheduler
(docs/reference/scores.md#counts)."""
