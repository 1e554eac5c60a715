# SPDX-License-Identifier: Apache-2.0
"""Filters: why a node cannot serve a demand. One small function each, here and in the files beside; the tuples at
the foot are the product.

A class filter judges what evicting pods cannot change, once per NodeClass; a free filter judges what is
free now. Both give None for "fits". Messages name what is wanted, never what a node has (docs/reference/reasons.md).
"""

from collections.abc import Callable

from app.knowledge.mig_profiles import profile_of
from app.nodes.model import FreeResources, NodeClass, Sharing
from app.placement.cuda_filters import compute_capability_served, driver_new_enough, toolkit_targets_gpu
from app.placement.mig_layouts import layout_fits
from app.placement.node_state_filters import driver_settled, healthy, mig_settled, mig_valid
from app.placement.unit_filters import (
    form_factor_allowed,
    interconnect_present,
    memory_large_enough,
    mig_profile_offered,
    one_replica_of_mps,
    sharing_allowed,
)
from app.policy.demand import Demand
from app.policy.expected_demand import DemandClass
from app.values.label_requirements import all_allow
from app.values.reasons import Code, Reason, either, reason

ClassFilter = Callable[[Demand, NodeClass], Reason | None]
FreeFilter = Callable[[Demand, FreeResources], Reason | None]


def annotations_parse(demand: Demand, _node: NodeClass) -> Reason | None:
    """Refuse everywhere what an annotation left unclear: the webhook was down when the pod was made."""
    return demand.invalid


def resources_offered(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a node that has none of a resource asked; labels that promise it make it a ghost."""
    for resource, amount in demand.resources:
        if node.allocatable(resource) > 0 or resource in node.by_dra:
            continue
        if 0 < amount <= node.capacity(resource):
            return _withdrawn(resource)
        if profile_of(resource):
            return reason(Code.MIGProfileAbsent, "MIG profile not on this node", profile_of(resource) or "")
        if node.labelled > 0 and not node.mig_invalid and not any(amount for _, amount in node.offered):
            return reason(Code.GhostGPUs, "labels promise GPUs that the device plugin does not offer", resource)
        return reason(Code.ResourceNotOffered, "resource not offered", resource)
    return None


def request_within_node(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a node that has fewer units in all than the pod asks; evicting does not bring sick devices back."""
    for resource, amount in demand.resources:
        if node.unit(resource) is Sharing.HAMi and _most(demand, resource) > node.registered > 0:
            return reason(
                Code.RequestExceedsNode, "a container asks more GPUs than HAMi shares out", f"{amount} {resource}"
            )
        if amount > node.allocatable(resource) and resource not in node.by_dra:
            if amount <= node.capacity(resource):
                return _withdrawn(resource)
            return reason(Code.RequestExceedsNode, "asks more than the node has in all", f"{amount} {resource}")
    return None


def _most(demand: Demand, resource: str) -> int:
    """Give the most units that one container asks: HAMi gives each of them from another GPU (its Fit)."""
    return max((amount for name, amount in demand.most if name == resource), default=0)


def _withdrawn(resource: str) -> Reason:
    return reason(Code.GPUUnhealthy, "the device plugin has withdrawn devices of the node", f"healthy {resource}")


def node_selected(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse nodes that a policy's node selector leaves out."""
    if node.labels is None or all_allow(demand.node_selector, dict(node.labels)):
        return None
    wants = ", ".join(dict.fromkeys(each.key for each in demand.node_selector))
    return reason(Code.NodeExcluded, "node left out by the policy's node selector", f"other values of {wants}")


def product_allowed(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse other products than those asked; an unknown product never fulfils a wish for one."""
    if not demand.products and not demand.denied_products:
        return None
    if node.several_models:
        return reason(Code.GPUFactsMissing, "GPUs of several models, labels tell of one", _wanted_products(demand))
    candidates = (node.product,) if node.product is not None else node.may_be
    if demand.resources and not candidates and not node.offered and not node.by_dra:
        return None  # no GPU node: resources_offered says so
    verdicts = {allows(demand, product) for product in candidates}
    if verdicts == {True}:
        return None
    if verdicts == {False}:
        return reason(Code.ProductNotAllowed, "GPU product not allowed", _wanted_products(demand))
    return reason(Code.GPUFactsMissing, "GPU product unknown", _wanted_products(demand))


def allows(demand: Demand | DemandClass, product: str) -> bool:
    """Tell whether a product, in normal form, is among those asked."""
    if any(pattern.matches(product) for pattern in demand.denied_products):
        return False
    return all(any(pattern.matches(product) for pattern in any_of) for any_of in demand.products)


def _wanted_products(demand: Demand) -> str:
    shortest = min(demand.products, key=len, default=())
    wanted = either([pattern.text for pattern in shortest])
    denied = either([pattern.text for pattern in demand.denied_products])
    return f"{wanted}, not {denied}" if wanted and denied else wanted or f"not {denied}"


def enough_units(demand: Demand, free: FreeResources) -> Reason | None:
    """Refuse a node with fewer free units than asked. kube-scheduler counts these too."""
    if demand.share_milli and free.gpus is not None:
        return None  # share_left looks closer
    for resource, amount in demand.resources:
        if free.units.get(resource, 0) < amount and resource not in free.uncounted:
            return reason(Code.InsufficientGPUs, "not enough free GPUs", f"{amount} {resource}")
    return None


def share_left(demand: Demand, free: FreeResources) -> Reason | None:
    """Refuse a node of which no GPU has the share left that is asked; known where GPUs are shown one by one."""
    if not demand.share_milli or free.gpus is None or demand.share_milli <= max(free.gpus, default=0):
        return None
    return reason(Code.InsufficientGPUs, "not enough free GPUs", f"{demand.share_milli} thousandths of one")


def memory_left(demand: Demand, free: FreeResources) -> Reason | None:
    """Refuse a node whose shared GPUs have no memory left that others have not declared.

    See docs/reference/sharing-and-memory.md#memory-budgets.
    """
    if not demand.declared_mib or not free.memory:
        return None
    for resource, amount in demand.resources:
        left = free.memory.get(resource)
        if left is not None and amount * demand.declared_mib > left:
            wants = f"{demand.declared_mib} MiB on each of {amount} {resource}"
            return reason(Code.GPUMemoryBudgetExceeded, "memory of the shared GPUs is given away", wants)
    return None


CLASS_FILTERS: tuple[ClassFilter, ...] = (
    annotations_parse,
    node_selected,
    product_allowed,
    mig_valid,
    mig_settled,
    driver_settled,
    healthy,
    resources_offered,
    sharing_allowed,
    one_replica_of_mps,
    mig_profile_offered,
    driver_new_enough,
    compute_capability_served,
    toolkit_targets_gpu,
    memory_large_enough,
    interconnect_present,
    form_factor_allowed,
    request_within_node,
)
"""In this order; the first refusal is the node's reason.

What no waiting mends comes first: a node left out, the wrong product; a node in the middle of a change comes before
the resources that it lacks meanwhile.
"""

FREE_FILTERS: tuple[FreeFilter, ...] = (enough_units, share_left, memory_left, layout_fits)
"""In this order."""

COUNTED_IN_TREE: frozenset[FreeFilter] = frozenset({enough_units, share_left, layout_fits})
"""Those that repeat kube-scheduler's own count: off in filter behind a live scheduler
(docs/reference/scores.md#counts)."""
